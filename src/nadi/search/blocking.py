"""The blocking API of search, see `nadi.client.blocking.face`. `indexes` and `standing_queries` accept a blocking or an
asyncio client."""

from __future__ import annotations

from typing import overload

from nadi.client import aio
from nadi.client.blocking.face import Closing, Face, described, ends, inside, on_loop, opens, waits
from nadi.client.blocking.manager import StreamManager
from nadi.search import catalog, objects
from nadi.search.objects import OrphanedShards
from nadi.search.percolate import catalog as standing
from nadi.search.searching import index_search


@described(index_search.Search)
class Search(Closing[index_search.Search]):
    """See nadi.search.searching.index_search.Search."""

    query = waits(index_search.Search.query)
    count = waits(index_search.Search.count)
    wait = waits(index_search.Search.wait)
    reached = waits(index_search.Search.reached)
    hit_cut = waits(index_search.Search.hit_cut)
    close = ends(on_loop(index_search.Search.close))


@described(catalog.Indexes)
class Indexes(Face[catalog.Indexes]):
    """See nadi.search.catalog.Indexes."""

    create = waits(catalog.Indexes.create)
    get = waits(catalog.Indexes.get)
    list = waits(catalog.Indexes.list)
    unreadable = waits(catalog.Indexes.unreadable)
    list_with_unreadable = waits(catalog.Indexes.list_with_unreadable)
    status = waits(catalog.Indexes.status)
    stop = waits(catalog.Indexes.stop)
    delete = waits(catalog.Indexes.delete)
    open = opens(catalog.Indexes.open, Search)


@described(standing.StandingQueries)
class StandingQueries(Face[standing.StandingQueries]):
    """See nadi.search.percolate.catalog.StandingQueries."""

    create = waits(standing.StandingQueries.create)
    get = waits(standing.StandingQueries.get)
    add = waits(standing.StandingQueries.add)
    list = waits(standing.StandingQueries.list)
    unreadable = waits(standing.StandingQueries.unreadable)
    list_with_unreadable = waits(standing.StandingQueries.list_with_unreadable)
    remove = waits(standing.StandingQueries.remove)
    status = waits(standing.StandingQueries.status)
    stop = waits(standing.StandingQueries.stop)
    delete = waits(standing.StandingQueries.delete)


def orphaned_shards(manager: StreamManager, where: str) -> list[OrphanedShards]:
    """Return the shards in a store (a folder or a URL) that deleted indexes have left, as when a program has deleted
    their scope; and unknown folders, which aren't this server's. `clean` deletes the former."""
    thread, core = inside(manager)
    return thread.run(objects.find(core, where))


def clean(manager: StreamManager, where: str) -> list[OrphanedShards]:
    """Delete the shards that deleted indexes of this server have left in a store, and return them."""
    thread, core = inside(manager)
    return thread.run(objects.find(core, where, delete=True))


@overload
def indexes(manager: aio.StreamManager, scope: str) -> catalog.Indexes: ...
@overload
def indexes(manager: StreamManager, scope: str) -> Indexes: ...
def indexes(manager: aio.StreamManager | StreamManager, scope: str) -> catalog.Indexes | Indexes:
    """Return the search indexes of a scope: blocking with a client of `nadi`, for asyncio with one of
    `nadi.client.aio`."""
    if isinstance(manager, aio.StreamManager):
        return catalog.Indexes(manager, scope)
    thread, core = inside(manager)
    return Indexes(thread, thread.result(catalog.Indexes, core, scope))


@overload
def standing_queries(manager: aio.StreamManager, scope: str) -> standing.StandingQueries: ...
@overload
def standing_queries(manager: StreamManager, scope: str) -> StandingQueries: ...
def standing_queries(
    manager: aio.StreamManager | StreamManager, scope: str
) -> standing.StandingQueries | StandingQueries:
    """Return the standing queries of a scope, like `indexes`."""
    if isinstance(manager, aio.StreamManager):
        return standing.StandingQueries(manager, scope)
    thread, core = inside(manager)
    return StandingQueries(thread, thread.result(standing.StandingQueries, core, scope))
