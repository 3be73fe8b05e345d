"""`indexes`: what works with a client of either face."""

from __future__ import annotations

from typing import overload

from nadi.client import aio
from nadi.client.blocking import manager as blocking
from nadi.client.blocking.face import inside
from nadi.search.blocking import Indexes as BlockingIndexes
from nadi.search.catalog import Indexes


@overload
def indexes(manager: aio.StreamManager, scope: str) -> Indexes: ...
@overload
def indexes(manager: blocking.StreamManager, scope: str) -> BlockingIndexes: ...
def indexes(manager: aio.StreamManager | blocking.StreamManager, scope: str) -> Indexes | BlockingIndexes:
    """Return the search indexes of a scope: blocking with a client of `nadi`, for asyncio with one of
    `nadi.client.aio`."""
    if isinstance(manager, aio.StreamManager):
        return Indexes(manager, scope)
    thread, core = inside(manager)
    return BlockingIndexes(thread, thread.result(Indexes, core, scope))
