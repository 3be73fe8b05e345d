"""A Spark session for the whole run, and a server with a scope for each module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import nadi
from tests.support.spark import spark_session

from .queries import Home, served

# append times are exact
_LIMITS = f"{os.environ.get('NADI_LIMITS', '')},time_index_ms=1,time_index_bytes=1"


@dataclass
class World:
    uri: str
    manager: nadi.StreamManager
    spark: Any

    def options(self, stream: str, **more: Any) -> dict[str, Any]:
        return {"controller": self.uri, "scope": "home", "stream": stream, **more}

    def read(self, stream: str, **more: Any) -> Any:
        return self.spark.read.format("nadi").options(**self.options(stream, **more)).load()

    def read_stream(self, stream: str, **more: Any) -> Any:
        return self.spark.readStream.format("nadi").options(**self.options(stream, **more)).load()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with served(tmp_path_factory.mktemp("server"), _LIMITS) as home:
        yield World(home.uri, home.manager, spark)


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A server with a scope, without Spark; a module may set SERVER_LIMITS."""
    limits = getattr(request.module, "SERVER_LIMITS", os.environ.get("NADI_LIMITS", ""))
    with served(tmp_path_factory.mktemp("server"), limits) as home:
        yield home
