"""Queries of search indexes over REST; and what search keeps in a scope, and how far it is.

An index's definition names its store, and whoever may write in the scope may name any. So a server opens only those
that its operator allows: `NADI_REST_SEARCH` lists folders and URLs, with spaces between, below which they may be."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.endpoint import RestCall, on_scope, on_stream, reply
from nadi.errors import NotFoundError, PermissionDeniedError, ProtocolError, StoreError
from nadi.limits import REST_SEARCHES, REST_STANDING_QUERIES
from nadi.web import bodies
from nadi.web.clients import asked, bound_of, through_client
from nadi.web.stream_cuts import SCOPE, STREAM

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager
    from nadi.search.searching.index_search import Hit, Search

log = logging.getLogger(__name__)

ALLOWED = "NADI_REST_SEARCH"
_CODES = {
    400: "The query, or a place, can't be one; or the index has no such field.",
    403: f"Not allowed; or the server may not open the index's store: see {ALLOWED}.",
    404: "There is no such stream, or it has no search index.",
    500: "The index can't be read: its records or its shards are damaged, or the server's cache can't be used.",
}


@dataclass(slots=True, eq=False)
class _CachedSearch:
    """asked: how many are asking just now. It is closed once it `is_gone` and nobody does."""

    search: Search
    asked: int = 0
    is_gone: bool = False

    def close_if_idle(self) -> None:
        if self.is_gone and not self.asked:
            self.search.close()


_Known = OrderedDict[tuple[str, str], _CachedSearch]
_known: dict[StreamManager, _Known] = {}


@through_client("GET", STREAM + "/search", on_stream(Act.READ), bodies.SearchPage, _CODES, bodies.SearchFor)
async def search(call: RestCall, manager: StreamManager) -> Response:
    """Find events in a stream's search index, a page of them."""
    query = asked(call, bodies.SearchFor)
    async with _asking(call, manager) as found:
        page = await found.query(
            query.query, order=query.order, limit=query.limit, after=query.after or None, **query.bounds
        )
    return reply(bodies.SearchPage(page.count, page.next, [_seen(hit, query.event_bytes or None) for hit in page.hits]))


@through_client("GET", STREAM + "/search/counts", on_stream(Act.READ), list[bodies.SearchCount], _CODES, bodies.CountBy)
async def counts(call: RestCall, manager: StreamManager) -> Response:
    """Count the events that fit a query, by a field or by time."""
    query = asked(call, bodies.CountBy)
    interval_s = None if query.interval is UNSET else query.interval
    async with _asking(call, manager) as found:
        counted = await found.count(query.query, by=query.by, interval_s=interval_s, limit=query.limit, **query.bounds)
    return reply([bodies.SearchCount(_text(value), count) for value, count in counted.items()])


# --- what search keeps, and how far it is: no index is opened for it -------------------------------


@through_client("GET", SCOPE + "/searched", on_scope(Permission.READ), list[bodies.SearchKept])
async def searched(call: RestCall, manager: StreamManager) -> Response:
    """List the streams of a scope that have a search index, or standing queries."""
    from nadi.search.definition import Definitions
    from nadi.search.percolate.records import sets_of

    definitions = Definitions(manager, call.scope)
    (indexes, no_indexes), (sets, no_sets) = await definitions.catalog.all(), await sets_of(definitions).all()
    indexed = {stream for stream, one in indexes.items() if not one.is_dropped}
    indexed |= {one.name for one in no_indexes}  # what is wrong with these is told by who is asked for one
    matched = {*sets, *(one.name for one in no_sets)}
    names = sorted(name for name in indexed | matched if shows(call.caller, call.scope, name))
    return reply([bodies.SearchKept(name, name in indexed, name in matched) for name in names])


@through_client("GET", STREAM + "/search/index", on_stream(Act.READ), bodies.SearchIndex)
async def index(call: RestCall, manager: StreamManager) -> Response:
    """Show a stream's search index, and how far it is."""
    from nadi.search.catalog import Indexes

    scope, stream = call.stream
    found = await Indexes(manager, scope).status(stream)
    fields = [bodies.SearchField(one.name, one.kind, found.having[one.name]) for one in found.definition.fields]
    return reply(
        bodies.SearchIndex(
            found.definition.format,
            fields,
            found.definition.is_stopped,
            found.indexed,
            found.unfit,
            found.gaps,
            found.past_bytes,
            found.behind_bytes,
            len(found.indexers),
        )
    )


@through_client("GET", STREAM + "/search/standing", on_stream(Act.READ), bodies.StandingQueriesSeen)
async def standing(call: RestCall, manager: StreamManager) -> Response:
    """Show a stream's standing queries, and how far it is matched with them."""
    from nadi.search.percolate.catalog import StandingQueries

    scope, stream = call.stream
    queries = StandingQueries(manager, scope)
    found = await queries.status(stream)
    first = islice(await queries.list(stream), REST_STANDING_QUERIES)
    return reply(
        bodies.StandingQueriesSeen(
            found.definition.hits,
            found.queries,
            found.catching_up,
            found.definition.is_stopped,
            found.events,
            found.hits,
            found.unfit,
            found.gaps,
            found.behind_bytes,
            len(found.matchers),
            [bodies.StandingQuerySeen(one.name, one.text, one.created_ms) for one in first],
        )
    )


@asynccontextmanager
async def _asking(call: RestCall, manager: StreamManager) -> AsyncIterator[Search]:
    """The index of the stream, opened once for each client. Its records and its shards are others' to write: what is
    wrong with them is told to who asks."""
    try:
        kept = await _opened(call, manager)
        kept.asked += 1
        try:
            yield kept.search
        finally:
            kept.asked -= 1
            kept.close_if_idle()
    except (StoreError, ProtocolError) as error:
        log.warning("the index of %s/%s can't be asked: %s", *call.stream, error)
        raise HTTPException(500, str(error)) from error


async def _opened(call: RestCall, manager: StreamManager) -> _CachedSearch:
    from nadi.search.definition import Definitions
    from nadi.search.searching.index_search import Search

    scope, stream = call.stream
    definitions = Definitions(manager, scope)
    known = _known.setdefault(manager, OrderedDict())
    try:
        async with definitions.named(stream):
            definition = await definitions.get(stream)
    except NotFoundError:
        if (gone := known.get((scope, stream))) is not None:
            await gone.search.discard()
            _forget(known, scope, stream)
        raise
    _check_allowed(definition.url)
    kept = known.get((scope, stream))
    if kept is None or (kept.search.definition.id, kept.search.definition.url) != (definition.id, definition.url):
        _forget(known, scope, stream)
        kept = known[scope, stream] = _CachedSearch(Search(definitions, definition))
        while len(known) > REST_SEARCHES:
            _forget(known, *next(iter(known)))
    known.move_to_end((scope, stream))
    return kept


def _forget(known: _Known, scope: str, stream: str) -> None:
    if (kept := known.pop((scope, stream), None)) is not None:
        kept.is_gone = True
        kept.close_if_idle()


def forget_all(manager: StreamManager) -> None:
    """Close the indexes that a client opened, as it ends."""
    known = _known.pop(manager, OrderedDict())
    for scope, stream in list(known):
        _forget(known, scope, stream)


def _check_allowed(url: str) -> None:
    from nadi.object_log.urls import folder_of
    from nadi.search.objects import url_of

    folder = folder_of(url)
    for allowed in os.environ.get(ALLOWED, "").split():
        above = url_of(allowed)
        root = folder_of(above)
        if folder is not None and root is not None:
            if folder.resolve().is_relative_to(root.resolve()):
                return
        elif folder is None and root is None and ".." not in url and f"{url}/".startswith(above.rstrip("/") + "/"):
            return
    raise PermissionDeniedError(
        f"this server may not open {url}: start it with {ALLOWED} set to what it may open, or query with a client"
    )


def _seen(hit: Hit, most: int | None) -> bodies.SearchHit:
    came = round(hit.came.timestamp() * 1000)
    excerpt, marks = (None, []) if hit.excerpt is None else (hit.excerpt.text, [list(one) for one in hit.excerpt.found])
    event = hit.data[:most].decode(errors="replace")
    return bodies.SearchHit(hit.segment_id, hit.offset, came, hit.score, event, len(hit.data), excerpt, marks)


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


BOUND = bound_of(globals())
