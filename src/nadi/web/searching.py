"""Queries of search indexes over REST; and what search keeps in a scope, and how far it is.

An index's definition names its store, and whoever may write in the scope may name any. So a server opens only those
that its operator allows: `NADI_REST_SEARCH` lists folders and URLs, with spaces between, below which they may be."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.endpoint import Call, Parameter, on_scope, on_stream, reply
from nadi.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, ProtocolError, StoreError
from nadi.limits import REST_SEARCHES, REST_STANDING_QUERIES
from nadi.web import bodies
from nadi.web.clients import through_client
from nadi.web.places import SCOPE, STREAM

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager
    from nadi.search.asking.searching import Hit, Search

log = logging.getLogger(__name__)

ALLOWED = "NADI_REST_SEARCH"
_TEXT = {"type": "string"}
_PLACE = {"type": "string", "minLength": 1}
_BOUNDS = (
    Parameter("query", "What to find: see docs/search.md.", _TEXT),
    Parameter("key", "Only segments that have that routing key, and others; may be said several times.", _TEXT),
    Parameter("since", "Only events from that place on: see the bodies of bookmarks.", _PLACE),
    Parameter("until", "Only events up to that place.", _PLACE),
    Parameter("waitFor", "Answer once all up to that place is indexed.", _PLACE),
)
_SEARCH = (
    *_BOUNDS,
    Parameter("order", "Which come first.", {"type": "string", "enum": ["newest", "oldest", "best"]}),
    Parameter(
        "limit",
        "Hits of a page; it has fewer, and a `next`, where its events have more than 16 MiB.",
        {"type": "integer", "minimum": 1, "maximum": 1000},
    ),
    Parameter("after", "The page that begins there: `next` of the one before.", _PLACE),
    Parameter("eventBytes", "Of each event at most so many; all if it is left out.", {"type": "integer", "minimum": 1}),
)
_COUNTS = (
    *_BOUNDS,
    Parameter("by", "Count by that field, or by _came.", _PLACE, required=True),
    Parameter("interval", "Of a count by time, or of numbers: in seconds.", {"type": "number", "minimum": 0}),
    Parameter("limit", "The most frequent so many.", {"type": "integer", "minimum": 1, "maximum": 10000}),
)
_CODES = {
    400: "The query, or a place, can't be one; or the index has no such field.",
    403: f"Not allowed; or the server may not open the index's store: see {ALLOWED}.",
    404: "There is no such stream, or it has no search index.",
    500: "The index can't be read: its records or its shards are damaged, or the server's cache can't be used.",
}


@dataclass(slots=True, eq=False)
class _Kept:
    """asked: how many are asking just now. It is closed once it `is_gone` and nobody does."""

    search: Search
    asked: int = 0
    is_gone: bool = False

    def close_if_idle(self) -> None:
        if self.is_gone and not self.asked:
            self.search.close()


_Known = OrderedDict[tuple[str, str], _Kept]
_known: dict[StreamManager, _Known] = {}


@through_client(
    "GET",
    STREAM + "/search",
    on_stream(Act.READ),
    bodies.SearchPage,
    query=_SEARCH,
    codes=_CODES,
)
async def search(call: Call, manager: StreamManager) -> Response:
    """Find events in a stream's search index, a page of them."""
    _check_asked(call, _SEARCH)
    most = None if call.asked("eventBytes") is None else _number(call, "eventBytes", 0)
    if most == 0:
        raise InvalidArgumentError("eventBytes is at least 1")
    async with _asking(call, manager) as found:
        page = await found.query(
            call.asked("query") or "",
            order=call.asked("order") or "newest",  # type: ignore[arg-type]
            limit=_number(call, "limit", 20),
            after=call.asked("after"),
            since=call.asked("since"),
            until=call.asked("until"),
            keys=_keys(call),
            wait_for=call.asked("waitFor"),
        )
    return reply(bodies.SearchPage(page.count, page.next, [_seen(hit, most) for hit in page.hits]))


@through_client(
    "GET",
    STREAM + "/search/counts",
    on_stream(Act.READ),
    list[bodies.SearchCount],
    query=_COUNTS,
    codes=_CODES,
)
async def counts(call: Call, manager: StreamManager) -> Response:
    """Count the events that fit a query, by a field or by time."""
    _check_asked(call, _COUNTS)
    interval = call.asked("interval")
    try:
        interval_s = None if interval is None else float(interval)
    except ValueError:
        raise InvalidArgumentError(f"interval is a number, not {interval!r:.60}") from None
    async with _asking(call, manager) as found:
        counted = await found.count(
            call.asked("query") or "",
            by=call.asked("by") or "",
            interval_s=interval_s,
            limit=_number(call, "limit", 20),
            since=call.asked("since"),
            until=call.asked("until"),
            keys=_keys(call),
            wait_for=call.asked("waitFor"),
        )
    return reply([bodies.SearchCount(_text(value), count) for value, count in counted.items()])


# --- what search keeps, and how far it is: no index is opened for it -------------------------------


@through_client("GET", SCOPE + "/searched", on_scope(Permission.READ), list[bodies.SearchKept])
async def searched(call: Call, manager: StreamManager) -> Response:
    """List the streams of a scope that have a search index, or standing queries."""
    from nadi.search.definition import Definitions
    from nadi.search.standing.records import sets_of

    definitions = Definitions(manager, call.scope)
    (indexes, no_indexes), (sets, no_sets) = await definitions.catalog.all(), await sets_of(definitions).all()
    indexed = {stream for stream, one in indexes.items() if not one.is_dropped}
    indexed |= {one.name for one in no_indexes}  # what is wrong with these is told by who is asked for one
    matched = {*sets, *(one.name for one in no_sets)}
    names = sorted(name for name in indexed | matched if shows(call.caller, call.scope, name))
    return reply([bodies.SearchKept(name, name in indexed, name in matched) for name in names])


@through_client("GET", STREAM + "/search/index", on_stream(Act.READ), bodies.SearchIndex)
async def index(call: Call, manager: StreamManager) -> Response:
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
async def standing(call: Call, manager: StreamManager) -> Response:
    """Show a stream's standing queries, and how far it is matched with them."""
    from nadi.search.standing.catalog import StandingQueries

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


BOUND = (search, counts, searched, index, standing)


@asynccontextmanager
async def _asking(call: Call, manager: StreamManager) -> AsyncIterator[Search]:
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


async def _opened(call: Call, manager: StreamManager) -> _Kept:
    from nadi.search.asking.searching import Search
    from nadi.search.definition import Definitions

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
        kept = known[scope, stream] = _Kept(Search(definitions, definition))
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
    from nadi.engines.urls import folder_of
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


def _check_asked(call: Call, known: Sequence[Parameter]) -> None:
    """InvalidArgumentError for what would have no effect."""
    names = {one.name for one in known}
    if unknown := next((name for name in call.request.query_params if name not in names), None):
        raise InvalidArgumentError(f"there is no parameter {unknown[:60]!r}, only {', '.join(sorted(names))}")


def _number(call: Call, name: str, usual: int) -> int:
    text = call.asked(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidArgumentError(f"{name} is a number, not {text[:60]!r}")
    return int(text)


def _keys(call: Call) -> list[str] | None:
    return call.request.query_params.getlist("key") or None


def _seen(hit: Hit, most: int | None) -> bodies.SearchHit:
    came = round(hit.came.timestamp() * 1000)
    excerpt, marks = (None, []) if hit.excerpt is None else (hit.excerpt.text, [list(one) for one in hit.excerpt.found])
    event = hit.data[:most].decode(errors="replace")
    return bodies.SearchHit(hit.segment_id, hit.offset, came, hit.score, event, len(hit.data), excerpt, marks)


def _text(value: object) -> str:
    from datetime import datetime

    return value.isoformat() if isinstance(value, datetime) else str(value)
