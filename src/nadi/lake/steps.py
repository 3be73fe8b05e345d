"""Where the next commit ends: at the stream's tail, or at a legal cut before it, if that is too far for one commit.

A cut before the tail is made as a reader would get there (`model.frontier`): finished segments are passed, and each of
those that may be read then is read on by an equal share, up to a boundary between its events.
"""

from __future__ import annotations

import asyncio

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.places import cuts as places
from nadi.client.places.segment_ends import SegmentEnds, pass_finished
from nadi.client.reading.boundary import frontier_at, segment_ranges
from nadi.errors import StreamNotFoundError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire


async def next_cut(manager: StreamManager, start: StreamCut, most_bytes: int) -> tuple[StreamCut, int]:
    """The cut, and how many bytes lie before it from `start` on: at most about so many. TruncatedError if some of them
    are gone."""
    cuts = manager.cuts(start.scope, start.stream)
    tail = await cuts.tail()
    slices = await places.slices_between(cuts, start, tail)
    total = sum(one.size_bytes for one in slices)
    if total <= most_bytes:
        return (tail if total else start), total
    stores = stores_of(manager)
    ends = SegmentEnds(stores, start.scope, start.stream)
    frontier = await frontier_at(stores, start)
    offsets = {segment: max(start.positions[segment], 0) for segment in frontier.active}
    infos = await pass_finished(ends, frontier, offsets)
    left = {segment: max(infos[segment].write_offset - offset, 0) for segment, offset in offsets.items()}
    share = max(most_bytes // max(sum(size > 0 for size in left.values()), 1), 1)

    async def read_on(segment: int) -> int:
        if left[segment] <= share:
            return offsets[segment] + left[segment]
        name = segment_name(start.scope, start.stream, segment)
        asked = wire.LocateOffset(0, name, offsets[segment] + share, "")
        return (await stores.ask(asked, wire.OffsetLocated)).offset

    reached = dict(zip(offsets, await asyncio.gather(*map(read_on, offsets)), strict=True))
    cut = StreamCut(start.scope, start.stream, frontier.positions(reached))
    return cut, sum(reached[segment] - offsets[segment] for segment in offsets)


async def ranges_between(manager: StreamManager, start: StreamCut, end: StreamCut) -> list[SegmentRange]:
    """The segments between two cuts, also those without an event, with their keys."""
    found = await manager.cuts(start.scope, start.stream).segments_between(start, end)
    asked = StreamCut(start.scope, start.stream, dict.fromkeys(found, 0))
    return await segment_ranges(stores_of(manager), start.scope, start.stream, asked) if found else []


async def behind_head(manager: StreamManager, cut: StreamCut) -> StreamCut:
    """The same place, or where the stream begins now, whichever is later under each key."""
    cuts = manager.cuts(cut.scope, cut.stream)
    return await cuts.latest(cut, await cuts.head())


async def is_there(manager: StreamManager, scope: str, stream: str) -> bool:
    try:
        await manager.stream_configuration(scope, stream)
    except StreamNotFoundError:
        return False
    return True
