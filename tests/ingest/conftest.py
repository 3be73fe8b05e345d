"""A server for all tests of a module, with the scope `in`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data")) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("in")
        yield server
