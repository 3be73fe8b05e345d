"""A server, a client of it, and a stream of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from nadi.client import StreamManager


@pytest.fixture(scope="package")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamManager]:
    with nadi.embedded(tmp_path_factory.mktemp("data")) as server, StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.fixture
def scope(manager: StreamManager, request: pytest.FixtureRequest) -> str:
    """A scope of the test (for all its cases), with a stream of two segments."""
    name = request.node.name.replace("_", "-").partition("[")[0][:60]
    manager.create_scope(name)
    manager.create_stream(name, "meters", 2)
    return str(name)
