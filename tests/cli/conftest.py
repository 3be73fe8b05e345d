"""One server for the session, and a scope `home` per module, deleted at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from tests.cli.test_streams import Shell


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        yield server


@pytest.fixture(scope="module")
def manager(server: nadi.standalone.EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        yield manager
        manager.delete_scope("home", recursive=True)


@pytest.fixture(scope="module")
def shell(server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager) -> Shell:
    return Shell(server.controller_uri)
