"""What a player knows of its stream: segments and their rates, where it begins and ends, places with names."""

from __future__ import annotations

import asyncio

from nadi.client.aio import Bookmark, NamedSlice, StreamManager
from nadi.client.manager.streams import stores_of
from nadi.errors import AccessDeniedError
from nadi.limits import NOTEBOOK_PLACES, NOTEBOOK_SEGMENTS
from nadi.model.streamcut import StreamCut
from nadi.notebook.messages import StreamKnown
from nadi.web.bodies import BookmarkSeen, CutSeen, SliceSeen
from nadi.web.reading.times import time_of


async def known(manager: StreamManager, scope: str, stream: str, *, has_places: bool) -> StreamKnown:
    """All that is asked for; of segments, bookmarks and slices the newest if there are too many."""
    info, segments, loads = await asyncio.gather(
        manager.stream_info(scope, stream),
        manager.segment_history(scope, stream),
        manager.segment_loads(scope, stream),
    )
    head, tail = await asyncio.gather(_cut(manager, info.head), _cut(manager, info.tail))
    bookmarks, slices = await _places(manager, scope, stream) if has_places else (None, None)
    newest = segments[-NOTEBOOK_SEGMENTS:]
    return StreamKnown(newest, loads, head, tail, info.is_sealed, bookmarks, slices)


async def _places(
    manager: StreamManager, scope: str, stream: str
) -> tuple[list[BookmarkSeen] | None, list[SliceSeen] | None]:
    try:
        marks = await manager.bookmarks(scope).list(stream=stream)
        slices = await manager.slices(scope).list(stream=stream)
    except AccessDeniedError:
        return None, None
    return (
        [await _bookmark(manager, one) for one in sorted(marks, key=_made)[-NOTEBOOK_PLACES:]],
        [await _slice(manager, one) for one in sorted(slices, key=_made)[-NOTEBOOK_PLACES:]],
    )


def _made(one: Bookmark | NamedSlice) -> int:
    return round(one.made_at.timestamp() * 1000)


async def _cut(manager: StreamManager, cut: StreamCut) -> CutSeen:
    return CutSeen(cut.as_text(), await time_of(stores_of(manager), cut))


async def _bookmark(manager: StreamManager, one: Bookmark) -> BookmarkSeen:
    at = await _cut(manager, one.cut)
    return BookmarkSeen(one.name, one.stream, at.cut, at.time, _made(one), one.note, list(one.tags))


async def _slice(manager: StreamManager, one: NamedSlice) -> SliceSeen:
    start, end = await _cut(manager, one.start), await _cut(manager, one.end)
    return SliceSeen(one.name, one.stream, start, end, _made(one), one.note, list(one.tags))
