"""One server for the whole run, with a scope for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder) as server:
        yield server


@pytest.fixture(scope="module")
def uri(server: nadi.standalone.EmbeddedServer) -> Iterator[str]:
    """The server has a scope `sc`. Tests name streams differently: a recreated one has other ids of segments."""
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        yield server.controller_uri
        manager.delete_scope("sc", recursive=True)


@pytest.fixture
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager
