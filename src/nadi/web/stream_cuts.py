"""Places in streams: cuts and when they were, bookmarks, slices, where reader groups stand, and truncation; and what
clients keep in a scope by name and can't be read, which the lists leave out: damaged, or of a newer nadi."""

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
from nadi.web.clients import asked, bound_of, through_client

if TYPE_CHECKING:
    from nadi.client.aio import Bookmark, NamedSlice, StreamManager
    from nadi.model.reports import GroupLagReport
    from nadi.model.streamcut import StreamCut
    from nadi.web.reading.times import CutTimes

SCOPE = DATA + "/{scopeName}"
STREAM = SCOPE + "/streams/{streamName}"
_BOOKMARK, _SLICE = SCOPE + "/bookmarks/{bookmarkName}", SCOPE + "/slices/{sliceName}"
_NAMES = {404: "There is no such scope, stream, or place."}
_TAKEN = {409: "The scope has one of that name."}


def _writes(call: RestCall) -> Need:
    """The client is asked for the same again; here it is before anything is done."""
    return need(call.scope, BOOKMARKS_TABLE + TABLE_SUFFIX, Act.WRITE)


def _times(manager: StreamManager, query: bodies.ByTimes | None = None) -> CutTimes:
    from nadi.web.reading.times import CutTimes

    return CutTimes(manager, query.by or None if query else None)


async def _seen_by(times: CutTimes, cut: StreamCut) -> bodies.CutSeen:
    return bodies.CutSeen(cut.as_text(), await times.of(cut))


# --- cuts -----------------------------------------------------------------------------------------


@through_client("GET", STREAM + "/span", on_stream(Act.READ), bodies.StreamSpan, query=bodies.ByTimes)
async def span(call: RestCall, manager: StreamManager) -> Response:
    """Show where a stream begins and ends, and when its first and last events came or happened."""
    from nadi.web.reading.span import stream_span

    return reply(await stream_span(manager, *call.stream, asked(call, bodies.ByTimes).by or None))


@through_client(
    "GET",
    STREAM + "/cut",
    on_stream(Act.READ),
    bodies.CutSeen,
    query=bodies.CutAt,
    codes={400: "There is no such place."},
)
async def cut(call: RestCall, manager: StreamManager) -> Response:
    """Show the cut of a place in a stream, and when the stream stood there."""
    query = asked(call, bodies.CutAt)
    return reply(await _seen_by(_times(manager, query), await manager.cuts(*call.stream).named(query.at)))


@through_client("POST", STREAM + "/truncation", on_stream(Act.CHANGE), bodies.CutSeen, body=bodies.TruncateBody)
async def truncate(call: RestCall, manager: StreamManager) -> Response:
    """Delete all events of a stream that lie before a place."""
    place = await manager.cuts(*call.stream).named(call.body.at)
    await manager.truncate_stream(place)
    return reply(await _seen_by(_times(manager), place))


# --- bookmarks ------------------------------------------------------------------------------------


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


async def seen_bookmark(times: CutTimes, mark: Bookmark) -> bodies.BookmarkSeen:
    at = await _seen_by(times, mark.cut)
    return bodies.BookmarkSeen(mark.name, mark.stream, at.cut, at.time, _ms(mark.made_at), mark.note, list(mark.tags))


@through_client(
    "GET", SCOPE + "/bookmarks", on_scope(Permission.READ), list[bodies.BookmarkSeen], query=bodies.StreamQuery
)
async def bookmarks(call: RestCall, manager: StreamManager) -> Response:
    """List a scope's bookmarks, with the times at which they lie."""
    query = asked(call, bodies.StreamQuery)
    found, times = await manager.bookmarks(call.scope).list(stream=query.stream or None), _times(manager, query)
    return reply([await seen_bookmark(times, one) for one in found])


@through_client(
    "POST",
    SCOPE + "/bookmarks",
    _writes,
    bodies.BookmarkSeen,
    status=201,
    body=bodies.CreateBookmark,
    codes=_NAMES | _TAKEN,
)
async def create_bookmark(call: RestCall, manager: StreamManager) -> Response:
    """Make a bookmark of a place in a stream."""
    body: bodies.CreateBookmark = call.body
    place = await manager.cuts(call.scope, body.streamName).named(body.at)
    made = await manager.bookmarks(call.scope).create(body.name, place, note=body.note, tags=body.tags)
    return reply(await seen_bookmark(_times(manager), made), 201)


@through_client("PUT", _BOOKMARK, _writes, bodies.BookmarkSeen, body=bodies.Rename, codes=_TAKEN)
async def rename_bookmark(call: RestCall, manager: StreamManager) -> Response:
    """Give a bookmark another name."""
    made = await manager.bookmarks(call.scope).rename(call.part("bookmarkName"), call.body.name)
    return reply(await seen_bookmark(_times(manager), made))


@through_client("DELETE", _BOOKMARK, _writes, status=204)
async def delete_bookmark(call: RestCall, manager: StreamManager) -> Response:
    """Delete a bookmark; the events stay."""
    if not await manager.bookmarks(call.scope).delete(call.part("bookmarkName")):
        raise BookmarkNotFoundError(call.scope, call.part("bookmarkName"))
    return Response(status_code=204)


# --- slices ---------------------------------------------------------------------------------------


async def seen_slice(times: CutTimes, one: NamedSlice) -> bodies.SliceSeen:
    start, end = await asyncio.gather(_seen_by(times, one.start), _seen_by(times, one.end))
    return bodies.SliceSeen(one.name, one.stream, start, end, _ms(one.made_at), one.note, list(one.tags))


@through_client("GET", SCOPE + "/slices", on_scope(Permission.READ), list[bodies.SliceSeen], query=bodies.StreamQuery)
async def slices(call: RestCall, manager: StreamManager) -> Response:
    """List a scope's named slices, with the times between which they lie."""
    query = asked(call, bodies.StreamQuery)
    found, times = await manager.slices(call.scope).list(stream=query.stream or None), _times(manager, query)
    return reply([await seen_slice(times, one) for one in found])


@through_client(
    "POST",
    SCOPE + "/slices",
    _writes,
    bodies.SliceSeen,
    status=201,
    body=bodies.CreateSlice,
    codes=_NAMES | _TAKEN,
)
async def create_slice(call: RestCall, manager: StreamManager) -> Response:
    """Make a slice of what lies between two places in a stream."""
    body: bodies.CreateSlice = call.body
    cuts = manager.cuts(call.scope, body.streamName)
    start, end = await asyncio.gather(cuts.named(body.start), cuts.named(body.end, end=True))
    made = await manager.slices(call.scope).create(body.name, start, end, note=body.note, tags=body.tags)
    return reply(await seen_slice(_times(manager), made), 201)


@through_client("PUT", _SLICE, _writes, bodies.SliceSeen, body=bodies.Rename, codes=_TAKEN)
async def rename_slice(call: RestCall, manager: StreamManager) -> Response:
    """Give a slice another name."""
    renamed = await manager.slices(call.scope).rename(call.part("sliceName"), call.body.name)
    return reply(await seen_slice(_times(manager), renamed))


@through_client("DELETE", _SLICE, _writes, status=204)
async def delete_slice(call: RestCall, manager: StreamManager) -> Response:
    """Delete a slice; the events stay."""
    if not await manager.slices(call.scope).delete(call.part("sliceName")):
        raise SliceNotFoundError(call.scope, call.part("sliceName"))
    return Response(status_code=204)


# --- reader groups --------------------------------------------------------------------------------


@through_client("GET", STREAM + "/groups", on_stream(Act.CHANGE), list[bodies.GroupSeen], query=bodies.ByTimes)
async def groups(call: RestCall, manager: StreamManager) -> Response:
    """List the reader groups that read a stream: where each stands, and how far it is behind."""
    times = _times(manager, asked(call, bodies.ByTimes))
    lags = await manager.reader_lags(*call.stream)
    return reply(await asyncio.gather(*(_group(call, manager, times, one) for one in lags)))


async def _group(call: RestCall, manager: StreamManager, times: CutTimes, lag: GroupLagReport) -> bodies.GroupSeen:
    position, why = None, lag.why
    try:
        group = await manager.reader_group_manager(lag.scope).get_reader_group(lag.group)
        found = (await group.stream_cuts()).get(call.stream.key)
        position = await _seen_by(times, found) if found is not None else None
    except NadiError as error:  # of a group that the caller may not see, or of another client's kind
        why = why or str(error)
    return bodies.GroupSeen(
        lag.scope,
        lag.group,
        position,
        lag.readers,
        lag.segments,
        lag.bytes_behind,
        lag.events_behind,
        lag.seconds_behind,
        why,
    )


# --- what can't be read --------------------------------------------------------------------------


@through_client("GET", SCOPE + "/unreadable", on_scope(Permission.READ), list[bodies.UnreadableSeen])
async def unreadable(call: RestCall, manager: StreamManager) -> Response:
    """List what a scope has under a name that can't be read: what is wrong with it, and what to do."""
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
    seen = {kind: [one for one in found if shows(call.caller, scope, one.name)] for kind, found in by_stream.items()}
    return reply(
        [
            bodies.UnreadableSeen(kind, one.name, one.problem)
            for kind, found in (by_name | seen).items()
            for one in found
        ]
    )


BOUND = bound_of(globals())
