"""A server for all ingest tests, with a client and the scope `in`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        yield server


@pytest.fixture(scope="package")
def manager(server: EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("in")
        yield manager
