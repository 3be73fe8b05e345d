"""A server and a shell for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from tests.cli.test_streams import Shell


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder) as server:
        yield server


@pytest.fixture(scope="module")
def manager(server: nadi.standalone.EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        yield manager


@pytest.fixture(scope="module")
def shell(server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager) -> Shell:
    return Shell(server.controller_uri)
