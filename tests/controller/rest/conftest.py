"""A real server with a real store in its own process, and a client of its REST port."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        yield server


@pytest.fixture(scope="package")
def rest(server: EmbeddedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.rest_uri, timeout=60) as client:
        yield client


@pytest.fixture(scope="package")
def manager(server: EmbeddedServer) -> Iterator[StreamManager]:
    with StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.fixture
def scope(rest: httpx.Client, request: pytest.FixtureRequest) -> str:
    """A scope for this test only."""
    name = request.node.name.replace("_", "-").partition("[")[0]
    assert rest.post("/v1/scopes", json={"scopeName": name}).status_code == 201
    return str(name)
