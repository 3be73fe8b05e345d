"""A client for each test, and a stream with an index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nadi.client.aio import StreamManager
from nadi.testing import RestartableServer
from tests.search.standing import Standing
from tests.search.support import Indexed


@pytest.fixture
async def manager(nadi_server: RestartableServer) -> AsyncIterator[StreamManager]:
    async with StreamManager(nadi_server.controller_uri) as manager:
        yield manager


@pytest.fixture
async def logs(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, tmp_path: Path
) -> AsyncIterator[Indexed]:
    """The stream `logs` of two segments, not indexed yet."""
    await manager.create_stream(nadi_scope, "logs", 2)
    await manager.create_stream(nadi_scope, "unfit")
    indexed = Indexed(manager, nadi_scope, tmp_path, nadi_server.controller_uri)
    yield indexed
    await indexed.close()


@pytest.fixture
def watched(logs: Indexed) -> Standing:
    return Standing(logs)
