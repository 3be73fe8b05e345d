"""`indexes` and `standing_queries`, which work with a client of either face; and what is left in stores."""

from __future__ import annotations

from typing import overload

from nadi.client import aio
from nadi.client.blocking import manager as blocking
from nadi.client.blocking.face import inside
from nadi.search import blocking as faces
from nadi.search import leftover
from nadi.search.catalog import Indexes
from nadi.search.leftover import Leftover
from nadi.search.standing.catalog import StandingQueries


def leftovers(manager: blocking.StreamManager, where: str) -> list[Leftover]:
    """Return what indexes that are gone have left in a store, a folder or a URL, as after a program has deleted their
    scope; and what of others is there that isn't one of this server's. `clean` deletes the former."""
    thread, core = inside(manager)
    return thread.run(leftover.find(core, where))


def clean(manager: blocking.StreamManager, where: str) -> list[Leftover]:
    """Delete what indexes of this server that are gone have left in a store, and return that."""
    thread, core = inside(manager)
    return thread.run(leftover.remove(core, where))


@overload
def indexes(manager: aio.StreamManager, scope: str) -> Indexes: ...
@overload
def indexes(manager: blocking.StreamManager, scope: str) -> faces.Indexes: ...
def indexes(manager: aio.StreamManager | blocking.StreamManager, scope: str) -> Indexes | faces.Indexes:
    """Return the search indexes of a scope: blocking with a client of `nadi`, for asyncio with one of
    `nadi.client.aio`."""
    if isinstance(manager, aio.StreamManager):
        return Indexes(manager, scope)
    thread, core = inside(manager)
    return faces.Indexes(thread, thread.result(Indexes, core, scope))


@overload
def standing_queries(manager: aio.StreamManager, scope: str) -> StandingQueries: ...
@overload
def standing_queries(manager: blocking.StreamManager, scope: str) -> faces.StandingQueries: ...
def standing_queries(
    manager: aio.StreamManager | blocking.StreamManager, scope: str
) -> StandingQueries | faces.StandingQueries:
    """Return the standing queries of a scope, like `indexes`."""
    if isinstance(manager, aio.StreamManager):
        return StandingQueries(manager, scope)
    thread, core = inside(manager)
    return faces.StandingQueries(thread, thread.result(StandingQueries, core, scope))
