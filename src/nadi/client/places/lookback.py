"""The cut some events before another one.

A segment's events can only be followed forwards, for each says how long it is. So to go back, a place some bytes before
the end is taken, the store says where the next event begins there (LocateOffset), and how long the events from there on
are (ListEventSizes), which carries none of their bytes; if these are too few, it is tried again from further back.

Events of different segments have no order but time. So of each segment the last events are found, and those that came
last are taken, as the segments' time indexes tell; where these don't tell, within about ten seconds, each segment gives
an equal share. If all segments of an epoch together have too few, those of the epoch before come in, and all that
follows them is taken. As the segments of an epoch share the keys among them, and what they begin with follows what was
before, such a cut is legal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from nadi.client.places.arrivals import came_by
from nadi.client.reading.damage import SKIP
from nadi.client.reading.event_places import event_places
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import EpochGoneError, SegmentNotFoundError
from nadi.limits import KIB
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.wire import commands as wire
from nadi.wire.moments import Numbers

_AT_ONCE = 8  # segments
_FIRST_REACH_BYTES = 4 * KIB
_USUAL_EVENT_BYTES = 256
_FURTHER = 4  # times as far, if what was found is too little
_SAME_TIME_MS = 10_000  # what an index may leave open
_TO_ITS_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Last:
    """The last events of a segment before `end`: their offsets, and by when each had come."""

    offsets: Numbers
    came_by: Numbers
    end: int

    def start_of(self, count: int) -> int:
        return int(self.offsets[-count]) if count else self.end


async def cut_before(stores: SegmentStores, head: StreamCut, cut: StreamCut, events: int) -> StreamCut:
    """The cut `events` events before `cut`, which is settled; `head` if there are fewer."""
    found: dict[int, _Last] = {}
    level = dict(cut.positions)
    epoch = max(map(segment_epoch, level))
    first_epoch = min(map(segment_epoch, head.positions))
    while True:
        try:
            found |= await _last_of_all(stores, cut, level, found, events)
        except SegmentNotFoundError:  # truncated away: what is left begins with the head
            return head
        wanted = events - sum(len(last.offsets) for segment, last in found.items() if segment not in level)
        here = {segment: found[segment] for segment in level if segment in found}
        if sum(len(last.offsets) for last in here.values()) >= wanted:
            begun = {segment: here[segment].start_of(count) for segment, count in _shares(here, wanted).items()}
            return StreamCut(cut.scope, cut.stream, {segment: begun.get(segment, -1) for segment in level})
        if epoch <= first_epoch:
            return head
        epoch -= 1
        try:
            pieces = await stores.controller.epoch_segments(cut.scope, cut.stream, epoch)
        except EpochGoneError:
            return head
        level = {piece.segment_id: cut.positions.get(piece.segment_id, _TO_ITS_END) for piece in pieces}


async def _last_of_all(
    stores: SegmentStores, cut: StreamCut, level: Mapping[int, int], known: Mapping[int, _Last], most: int
) -> dict[int, _Last]:
    """Of the segments that were begun and aren't known yet. level: where each is to end."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def of(segment: int, end: int) -> _Last:
        async with turns:
            return await _last_of(stores, segment_name(cut.scope, cut.stream, segment), end, most)

    new = {segment: end for segment, end in level.items() if end >= 0 and segment not in known}
    tasks = [asyncio.create_task(of(segment, end)) for segment, end in new.items()]
    try:
        return dict(zip(new, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()


async def _last_of(stores: SegmentStores, name: str, end: int, most: int) -> _Last:
    import numpy as np

    info = await segment_info(stores, name)
    start, end = info.start_offset, max(min(end, info.write_offset), info.start_offset)
    reach = max(_FIRST_REACH_BYTES, most * _USUAL_EVENT_BYTES)
    while True:
        begin = start
        if end - reach > start:
            begin = (await stores.ask(wire.LocateOffset(0, name, end - reach, ""), wire.OffsetLocated)).offset
        parts: list[Numbers] = []
        async with aclosing(event_places(stores, name, begin, end, SKIP)) as places:
            async for some in places:
                parts.append(some.offsets())
        offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if len(offsets) >= most or begin <= start:
            offsets = offsets[-most:]
            times = np.maximum.accumulate(await came_by(stores, name, offsets, end))
            return _Last(offsets, times, end)
        reach *= _FURTHER


def _shares(found: Mapping[int, _Last], wanted: int) -> dict[int, int]:
    """How many of its last events each segment gives, `wanted` in all.

    >>> import numpy as np
    >>> def last(*times):
    ...     return _Last(np.arange(len(times)), np.array(times), len(times))
    >>> _shares({0: last(5_000, 60_000, 61_000), 1: last(62_000, 62_001), 2: last(7_000)}, 3)
    {0: 2, 1: 1, 2: 0}
    """
    import numpy as np

    segments = list(found)
    counts = [len(found[segment].offsets) for segment in segments]
    owner = np.repeat(np.arange(len(segments)), counts)
    times = np.concatenate([found[segment].came_by for segment in segments])
    from_end = np.concatenate([np.arange(count)[::-1] for count in counts])
    age = (times.max(initial=0) - times) // _SAME_TIME_MS
    chosen = owner[np.lexsort((from_end, age))[:wanted]]
    return dict(zip(segments, np.bincount(chosen, minlength=len(segments)).tolist(), strict=True))
