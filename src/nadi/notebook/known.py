"""What a player knows of its stream: segments and their rates, where it begins and ends, places with names."""

from __future__ import annotations

import asyncio

from nadi.client.aio import Bookmark, NamedSlice, StreamManager
from nadi.errors import AccessDeniedError
from nadi.limits import NOTEBOOK_PLACES, NOTEBOOK_SEGMENTS
from nadi.model.streamcut import StreamCut
from nadi.notebook.messages import StreamKnown
from nadi.web.bodies import BookmarkSeen, CutSeen, SliceSeen
from nadi.web.reading.span import stream_span
from nadi.web.reading.times import CutTimes


async def known(
    manager: StreamManager, scope: str, stream: str, *, has_places: bool, by: str | None = None
) -> StreamKnown:
    """All that is asked for; of segments, bookmarks and slices the newest if there are too many."""
    span, segments, loads = await asyncio.gather(
        stream_span(manager, scope, stream, by),
        manager.segment_history(scope, stream),
        manager.segment_loads(scope, stream),
    )
    times = CutTimes(manager, by)
    bookmarks, slices = await _places(manager, times, scope, stream) if has_places else (None, None)
    return StreamKnown(segments[-NOTEBOOK_SEGMENTS:], loads, span, bookmarks, slices)


async def _places(
    manager: StreamManager, times: CutTimes, scope: str, stream: str
) -> tuple[list[BookmarkSeen] | None, list[SliceSeen] | None]:
    try:
        marks = await manager.bookmarks(scope).list(stream=stream)
        slices = await manager.slices(scope).list(stream=stream)
    except AccessDeniedError:
        return None, None
    return (
        [await _bookmark(times, one) for one in sorted(marks, key=_made)[-NOTEBOOK_PLACES:]],
        [await _slice(times, one) for one in sorted(slices, key=_made)[-NOTEBOOK_PLACES:]],
    )


def _made(one: Bookmark | NamedSlice) -> int:
    return round(one.made_at.timestamp() * 1000)


async def _cut(times: CutTimes, cut: StreamCut) -> CutSeen:
    return CutSeen(cut.as_text(), await times.of(cut))


async def _bookmark(times: CutTimes, one: Bookmark) -> BookmarkSeen:
    at = await _cut(times, one.cut)
    return BookmarkSeen(one.name, one.stream, at.cut, at.time, _made(one), one.note, list(one.tags))


async def _slice(times: CutTimes, one: NamedSlice) -> SliceSeen:
    start, end = await _cut(times, one.start), await _cut(times, one.end)
    return SliceSeen(one.name, one.stream, start, end, _made(one), one.note, list(one.tags))
