"""A client, a scope and a folder for each test; PyIceberg is an extra."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.testing import RestartableServer

pytest.importorskip("pyiceberg")
from tests.lake.world import Meters

_numbers = itertools.count()


@pytest.fixture
def manager(nadi_server: RestartableServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(nadi_server.controller_uri) as manager:
        yield manager


@pytest.fixture
def scope(manager: nadi.StreamManager) -> str:
    name = f"home{next(_numbers)}"
    manager.create_scope(name)
    return name


@pytest.fixture
def meters(request: pytest.FixtureRequest, manager: nadi.StreamManager, scope: str, tmp_path: Path) -> Meters:
    """The stream `meters`, of two segments or as many as the test says."""
    return Meters(manager, scope, tmp_path, getattr(request, "param", 2))
