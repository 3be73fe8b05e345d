"""A client for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nadi.client.aio import StreamManager
from nadi.testing import RestartableServer


@pytest.fixture
async def manager(nadi_server: RestartableServer) -> AsyncIterator[StreamManager]:
    async with StreamManager(nadi_server.controller_uri) as manager:
        yield manager
