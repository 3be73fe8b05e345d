"""The blocking face of search: see `nadi.client.blocking.face`."""

from __future__ import annotations

from nadi.client.blocking.face import Closing, Face, described, ends, on_loop, opens, waits
from nadi.client.control.loop_thread import LoopThread
from nadi.search import catalog as aio
from nadi.search.asking import searching
from nadi.search.standing import catalog as standing


@described(searching.Search)
class Search(Closing[searching.Search]):
    """See nadi.search.asking.searching.Search."""

    query = waits(searching.Search.query)
    count = waits(searching.Search.count)
    wait = waits(searching.Search.wait)
    reached = waits(searching.Search.reached)
    hit_cut = waits(searching.Search.hit_cut)
    close = ends(on_loop(searching.Search.close))


@described(aio.Indexes)
class Indexes(Face[aio.Indexes]):
    """See nadi.search.catalog.Indexes."""

    create = waits(aio.Indexes.create)
    get = waits(aio.Indexes.get)
    list = waits(aio.Indexes.list)
    unreadable = waits(aio.Indexes.unreadable)
    list_with_unreadable = waits(aio.Indexes.list_with_unreadable)
    status = waits(aio.Indexes.status)
    stop = waits(aio.Indexes.stop)
    drop = waits(aio.Indexes.drop)
    open = opens(aio.Indexes.open, Search)

    def __init__(self, thread: LoopThread, core: aio.Indexes) -> None:
        super().__init__(thread, core)


@described(standing.StandingQueries)
class StandingQueries(Face[standing.StandingQueries]):
    """See nadi.search.standing.catalog.StandingQueries."""

    create = waits(standing.StandingQueries.create)
    get = waits(standing.StandingQueries.get)
    add = waits(standing.StandingQueries.add)
    list = waits(standing.StandingQueries.list)
    unreadable = waits(standing.StandingQueries.unreadable)
    list_with_unreadable = waits(standing.StandingQueries.list_with_unreadable)
    remove = waits(standing.StandingQueries.remove)
    status = waits(standing.StandingQueries.status)
    stop = waits(standing.StandingQueries.stop)
    drop = waits(standing.StandingQueries.drop)

    def __init__(self, thread: LoopThread, core: standing.StandingQueries) -> None:
        super().__init__(thread, core)
