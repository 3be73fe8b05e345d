"""A real server with its page in a separate process, and a client of its REST port."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import nadi
from nadi.client import StreamManager
from nadi.limits import MIB
from nadi.standalone.embedded import EmbeddedServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that never skips events in a replay, even if the machine stalls."""
    limits = {"NADI_LIMITS": f"page_behind_s=60,page_batch_bytes={64 * MIB}"}
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0, environment=limits) as server:
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
def scope(manager: StreamManager, request: pytest.FixtureRequest) -> str:
    """A scope per test, with a stream of two segments."""
    name = request.node.name.replace("_", "-").replace("[", "-").strip("]")[:60]
    assert manager.create_scope(name)
    manager.create_stream(name, "meters", 2)
    return str(name)
