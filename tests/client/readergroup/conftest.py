"""A server for each module, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.client import ReaderGroupManager, StreamManager


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        yield server.controller_uri


@pytest.fixture
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager


@pytest.fixture
def groups(manager: StreamManager) -> ReaderGroupManager:
    return manager.reader_group_manager("sc")
