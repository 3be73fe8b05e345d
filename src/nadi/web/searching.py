"""Search over REST: queries of indexes, and the state of indexes and standing queries of a scope.

An index's definition names its store, and every writer in the scope can define one. A server therefore opens only
stores that its operator allows: `NADI_REST_SEARCH` lists allowed folders and URL prefixes, separated by spaces."""

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
from nadi.web.clients import bound_of, parse_query, through_client
from nadi.web.stream_cuts import SCOPE, STREAM

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager
    from nadi.search.searching.index_search import Hit, Search

log = logging.getLogger(__name__)

ALLOWED = "NADI_REST_SEARCH"
_CODES = {
    400: "The query or a position is invalid, or the index lacks a field.",
    403: f"Permission denied, or the server may not open the index's store: see {ALLOWED}.",
    404: "The stream doesn't exist or doesn't have a search index.",
    500: "The index is unreadable: records or shards are damaged, or the server's cache is unusable.",
}


@dataclass(slots=True, eq=False)
class _CachedSearch:
    """An open index. active: number of running queries; it is closed when it has been evicted and none is running."""

    search: Search
    active: int = 0
    is_evicted: bool = False

    def close_if_idle(self) -> None:
        if self.is_evicted and not self.active:
            self.search.close()


_Known = OrderedDict[tuple[str, str], _CachedSearch]
_known: dict[StreamManager, _Known] = {}


@through_client("GET", STREAM + "/search", on_stream(Act.READ), bodies.SearchPage, _CODES, bodies.SearchFor)
async def search(call: RestCall, manager: StreamManager) -> Response:
    """Search a stream's index and return a page of hits."""
    query = parse_query(call, bodies.SearchFor)
    async with _index_of(call, manager) as searcher:
        page = await searcher.query(
            query.query, order=query.order, limit=query.limit, after=query.after or None, **query.bounds
        )
    return reply(bodies.SearchPage(page.count, page.next, [_seen(hit, query.event_bytes or None) for hit in page.hits]))


@through_client("GET", STREAM + "/search/counts", on_stream(Act.READ), list[bodies.SearchCount], _CODES, bodies.CountBy)
async def counts(call: RestCall, manager: StreamManager) -> Response:
    """Count the events that match a query, by a field or by time."""
    query = parse_query(call, bodies.CountBy)
    interval_s = None if query.interval is UNSET else query.interval
    async with _index_of(call, manager) as searcher:
        counted = await searcher.count(
            query.query, by=query.by, interval_s=interval_s, limit=query.limit, **query.bounds
        )
    return reply([bodies.SearchCount(_text(value), count) for value, count in counted.items()])


# --- state, which is read without opening an index -------------------------------------


@through_client("GET", SCOPE + "/searched", on_scope(Permission.READ), list[bodies.SearchDefinitions])
async def searched(call: RestCall, manager: StreamManager) -> Response:
    """List the streams of a scope that have a search index or standing queries."""
    from nadi.search.definition import Definitions
    from nadi.search.percolate.records import sets_of

    definitions = Definitions(manager, call.scope)
    (indexes, bad_indexes), (sets, bad_sets) = await definitions.catalog.all(), await sets_of(definitions).all()
    indexed = {stream for stream, definition in indexes.items() if not definition.is_deleted}
    indexed |= {record.name for record in bad_indexes}  # a request for one of them reports the problem
    matched = {*sets, *(record.name for record in bad_sets)}
    names = sorted(name for name in indexed | matched if shows(call.caller, call.scope, name))
    return reply([bodies.SearchDefinitions(name, name in indexed, name in matched) for name in names])


@through_client("GET", STREAM + "/search/index", on_stream(Act.READ), bodies.SearchIndex)
async def index(call: RestCall, manager: StreamManager) -> Response:
    """Show a stream's search index and its progress."""
    from nadi.search.catalog import Indexes

    scope, stream = call.stream
    status = await Indexes(manager, scope).status(stream)
    fields = [
        bodies.SearchField(field.name, field.kind, status.field_counts[field.name])
        for field in status.definition.fields
    ]
    return reply(
        bodies.SearchIndex(
            status.definition.format,
            fields,
            status.definition.is_stopped,
            status.indexed,
            status.invalid,
            status.gaps,
            status.backfill_bytes,
            status.lag_bytes,
            len(status.indexers),
        )
    )


@through_client("GET", STREAM + "/search/standing", on_stream(Act.READ), bodies.StandingQueriesBody)
async def standing(call: RestCall, manager: StreamManager) -> Response:
    """Show a stream's standing queries and their progress."""
    from nadi.search.percolate.catalog import StandingQueries

    scope, stream = call.stream
    queries = StandingQueries(manager, scope)
    status = await queries.status(stream)
    first = islice(await queries.list(stream), REST_STANDING_QUERIES)
    return reply(
        bodies.StandingQueriesBody(
            status.definition.hits,
            status.queries,
            status.catching_up,
            status.definition.is_stopped,
            status.events,
            status.hits,
            status.invalid,
            status.gaps,
            status.lag_bytes,
            len(status.matchers),
            [bodies.StandingQueryBody(query.name, query.text, query.created_ms) for query in first],
        )
    )


@asynccontextmanager
async def _index_of(call: RestCall, manager: StreamManager) -> AsyncIterator[Search]:
    """Yield the stream's index, opened once per client. Errors in its records and shards are the index owner's and
    become responses with status 500."""
    try:
        cached = await _opened(call, manager)
        cached.active += 1
        try:
            yield cached.search
        finally:
            cached.active -= 1
            cached.close_if_idle()
    except (StoreError, ProtocolError) as error:
        log.warning("can't query the index of %s/%s: %s", *call.stream, error)
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
        if (deleted := known.get((scope, stream))) is not None:
            await deleted.search.discard()
            _forget(known, scope, stream)
        raise
    _check_allowed(definition.url)
    cached = known.get((scope, stream))
    if cached is None or (cached.search.definition.id, cached.search.definition.url) != (definition.id, definition.url):
        _forget(known, scope, stream)
        cached = known[scope, stream] = _CachedSearch(Search(definitions, definition))
        while len(known) > REST_SEARCHES:
            _forget(known, *next(iter(known)))
    known.move_to_end((scope, stream))
    return cached


def _forget(known: _Known, scope: str, stream: str) -> None:
    if (cached := known.pop((scope, stream), None)) is not None:
        cached.is_evicted = True
        cached.close_if_idle()


def forget_all(manager: StreamManager) -> None:
    """Close the indexes that a client opened, when the client ends."""
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
        f"this server may not open {url}: add it to {ALLOWED} in the server's environment, or query with a client"
    )


def _seen(hit: Hit, most: int | None) -> bodies.SearchHit:
    arrival_time = round(hit.arrival_time.timestamp() * 1000)
    excerpt, marks = (
        (None, []) if hit.excerpt is None else (hit.excerpt.text, [list(range_) for range_ in hit.excerpt.matches])
    )
    event = hit.data[:most].decode(errors="replace")
    return bodies.SearchHit(hit.segment_id, hit.offset, arrival_time, hit.score, event, len(hit.data), excerpt, marks)


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


BOUND = bound_of(globals())
