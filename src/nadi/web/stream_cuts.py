"""REST endpoints of cuts and their times, bookmarks, slices, reader groups' positions, truncation, and the unreadable
records of a scope (damaged, or from a newer nadi), which the lists omit."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.responses import Response

from nadi.access.names import Act, Need, need
from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.endpoint import DATA, RestCall, on_scope, on_stream, reply
from nadi.errors import BookmarkNotFoundError, NadiError, SliceNotFoundError
from nadi.naming import BOOKMARKS_TABLE, TABLE_SUFFIX
from nadi.web import bodies
from nadi.web.clients import bound_of, parse_query, through_client

if TYPE_CHECKING:
    from nadi.client.aio import Bookmark, NamedSlice, StreamManager
    from nadi.model.reports import GroupLagReport
    from nadi.model.streamcut import StreamCut
    from nadi.web.reading.times import CutTimes

SCOPE = DATA + "/{scopeName}"
STREAM = SCOPE + "/streams/{streamName}"
_BOOKMARK, _SLICE = SCOPE + "/bookmarks/{bookmarkName}", SCOPE + "/slices/{sliceName}"
_NAMES = {404: "The scope, stream or position doesn't exist."}
_TAKEN = {409: "The name is already in use."}


def _writes(call: RestCall) -> Need:
    """Require the permission that the client's request needs, before anything is done."""
    return need(call.scope, BOOKMARKS_TABLE + TABLE_SUFFIX, Act.WRITE)


def _times(manager: StreamManager, query: bodies.ByTimes | None = None) -> CutTimes:
    from nadi.web.reading.times import CutTimes

    return CutTimes(manager, query.by or None if query else None)


async def _cut_seen(times: CutTimes, cut: StreamCut) -> bodies.CutBody:
    return bodies.CutBody(cut.as_text(), await times.of(cut))


# --- cuts -----------------------------------------------------------------------------------------


@through_client("GET", STREAM + "/span", on_stream(Act.READ), bodies.StreamSpan, query=bodies.ByTimes)
async def span(call: RestCall, manager: StreamManager) -> Response:
    """Show the head and tail of a stream, with the times of its first and last events."""
    from nadi.web.reading.span import stream_span

    return reply(await stream_span(manager, *call.stream, parse_query(call, bodies.ByTimes).by or None))


@through_client(
    "GET",
    STREAM + "/cut",
    on_stream(Act.READ),
    bodies.CutBody,
    query=bodies.CutAt,
    codes={400: "The position is invalid."},
)
async def cut(call: RestCall, manager: StreamManager) -> Response:
    """Show the cut of a position in a stream, and its time."""
    query = parse_query(call, bodies.CutAt)
    return reply(await _cut_seen(_times(manager, query), await manager.cuts(*call.stream).named(query.at)))


@through_client("POST", STREAM + "/truncation", on_stream(Act.CHANGE), bodies.CutBody, body=bodies.TruncateBody)
async def truncate(call: RestCall, manager: StreamManager) -> Response:
    """Delete all events of a stream before a position."""
    position = await manager.cuts(*call.stream).named(call.body.at)
    await manager.truncate_stream(position)
    return reply(await _cut_seen(_times(manager), position))


# --- bookmarks ------------------------------------------------------------------------------------


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


async def seen_bookmark(times: CutTimes, bookmark: Bookmark) -> bodies.BookmarkBody:
    at = await _cut_seen(times, bookmark.cut)
    return bodies.BookmarkBody(
        bookmark.name, bookmark.stream, at.cut, at.time, _ms(bookmark.created_at), bookmark.note, list(bookmark.tags)
    )


@through_client(
    "GET", SCOPE + "/bookmarks", on_scope(Permission.READ), list[bodies.BookmarkBody], query=bodies.StreamQuery
)
async def bookmarks(call: RestCall, manager: StreamManager) -> Response:
    """List a scope's bookmarks with their times."""
    query = parse_query(call, bodies.StreamQuery)
    listed, times = await manager.bookmarks(call.scope).list(stream=query.stream or None), _times(manager, query)
    return reply([await seen_bookmark(times, bookmark) for bookmark in listed])


@through_client(
    "POST",
    SCOPE + "/bookmarks",
    _writes,
    bodies.BookmarkBody,
    status=201,
    body=bodies.CreateBookmark,
    codes=_NAMES | _TAKEN,
)
async def create_bookmark(call: RestCall, manager: StreamManager) -> Response:
    """Create a bookmark at a position of a stream."""
    body: bodies.CreateBookmark = call.body
    cut = await manager.cuts(call.scope, body.streamName).named(body.at)
    created = await manager.bookmarks(call.scope).create(body.name, cut, note=body.note, tags=body.tags)
    return reply(await seen_bookmark(_times(manager), created), 201)


@through_client("PUT", _BOOKMARK, _writes, bodies.BookmarkBody, body=bodies.Rename, codes=_TAKEN)
async def rename_bookmark(call: RestCall, manager: StreamManager) -> Response:
    """Rename a bookmark."""
    renamed = await manager.bookmarks(call.scope).rename(call.part("bookmarkName"), call.body.name)
    return reply(await seen_bookmark(_times(manager), renamed))


@through_client("DELETE", _BOOKMARK, _writes, status=204)
async def delete_bookmark(call: RestCall, manager: StreamManager) -> Response:
    """Delete a bookmark; the events stay."""
    if not await manager.bookmarks(call.scope).delete(call.part("bookmarkName")):
        raise BookmarkNotFoundError(call.scope, call.part("bookmarkName"))
    return Response(status_code=204)


# --- slices ---------------------------------------------------------------------------------------


async def seen_slice(times: CutTimes, named: NamedSlice) -> bodies.SliceBody:
    start, end = await asyncio.gather(_cut_seen(times, named.start), _cut_seen(times, named.end))
    return bodies.SliceBody(named.name, named.stream, start, end, _ms(named.created_at), named.note, list(named.tags))


@through_client("GET", SCOPE + "/slices", on_scope(Permission.READ), list[bodies.SliceBody], query=bodies.StreamQuery)
async def slices(call: RestCall, manager: StreamManager) -> Response:
    """List a scope's named slices with the times of their ends."""
    query = parse_query(call, bodies.StreamQuery)
    listed, times = await manager.slices(call.scope).list(stream=query.stream or None), _times(manager, query)
    return reply([await seen_slice(times, named) for named in listed])


@through_client(
    "POST",
    SCOPE + "/slices",
    _writes,
    bodies.SliceBody,
    status=201,
    body=bodies.CreateSlice,
    codes=_NAMES | _TAKEN,
)
async def create_slice(call: RestCall, manager: StreamManager) -> Response:
    """Create a slice between two positions of a stream."""
    body: bodies.CreateSlice = call.body
    cuts = manager.cuts(call.scope, body.streamName)
    start, end = await asyncio.gather(cuts.named(body.start), cuts.named(body.end, end=True))
    created = await manager.slices(call.scope).create(body.name, start, end, note=body.note, tags=body.tags)
    return reply(await seen_slice(_times(manager), created), 201)


@through_client("PUT", _SLICE, _writes, bodies.SliceBody, body=bodies.Rename, codes=_TAKEN)
async def rename_slice(call: RestCall, manager: StreamManager) -> Response:
    """Rename a slice."""
    renamed = await manager.slices(call.scope).rename(call.part("sliceName"), call.body.name)
    return reply(await seen_slice(_times(manager), renamed))


@through_client("DELETE", _SLICE, _writes, status=204)
async def delete_slice(call: RestCall, manager: StreamManager) -> Response:
    """Delete a slice; the events stay."""
    if not await manager.slices(call.scope).delete(call.part("sliceName")):
        raise SliceNotFoundError(call.scope, call.part("sliceName"))
    return Response(status_code=204)


# --- reader groups --------------------------------------------------------------------------------


@through_client("GET", STREAM + "/groups", on_stream(Act.CHANGE), list[bodies.ReaderGroupBody], query=bodies.ByTimes)
async def groups(call: RestCall, manager: StreamManager) -> Response:
    """List the reader groups that read a stream, with position and lag."""
    times = _times(manager, parse_query(call, bodies.ByTimes))
    lags = await manager.reader_lags(*call.stream)
    return reply(await asyncio.gather(*(_group(call, manager, times, lag) for lag in lags)))


async def _group(
    call: RestCall, manager: StreamManager, times: CutTimes, lag: GroupLagReport
) -> bodies.ReaderGroupBody:
    position, why = None, lag.why
    try:
        group = await manager.reader_group_manager(lag.scope).get_reader_group(lag.group)
        cut = (await group.stream_cuts()).get(call.stream.key)
        position = await _cut_seen(times, cut) if cut is not None else None
    except NadiError as error:  # no permission for the group, or a group of another client
        why = why or str(error)
    return bodies.ReaderGroupBody(
        lag.scope,
        lag.group,
        position,
        lag.readers,
        lag.segments,
        lag.lag_bytes,
        lag.lag_events,
        lag.lag_seconds,
        why,
    )


# --- unreadable records --------------------------------------------------------------------------


@through_client("GET", SCOPE + "/unreadable", on_scope(Permission.READ), list[bodies.UnreadableRecordBody])
async def unreadable(call: RestCall, manager: StreamManager) -> Response:
    """List a scope's unreadable records, each with its problem and a remedy."""
    from nadi.search.definition import Definitions
    from nadi.search.percolate.records import sets_of

    scope, definitions = call.scope, Definitions(manager, call.scope)
    by_name = {
        "bookmark": await manager.bookmarks(scope).unreadable(),
        "slice": await manager.slices(scope).unreadable(),
        "stream table": await manager.stream_tables(scope).unreadable(),
    }
    by_stream = {
        "search index": (await definitions.catalog.all())[1],
        "standing queries": (await sets_of(definitions).all())[1],
    }
    visible = {
        kind: [record for record in records if shows(call.caller, scope, record.name)]
        for kind, records in by_stream.items()
    }
    return reply(
        [
            bodies.UnreadableRecordBody(kind, record.name, record.problem)
            for kind, records in (by_name | visible).items()
            for record in records
        ]
    )


BOUND = bound_of(globals())
