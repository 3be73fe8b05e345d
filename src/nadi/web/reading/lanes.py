"""Segments of a stretch of a stream, each read in pieces, with the times at which its events came.

`Lanes` opens a segment once playing comes near its first event, those of older epochs first, and gives events of all of
them in the order of their times. Of each segment it holds one block at a time.

By the events' own time it reads that from each event, and gives them in the order in which the time index finds them:
one that came late is due with the latest before it in its segment. Events without that time are counted instead.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from nadi.client.reading.damage import SKIP
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.errors import NotFoundError, TruncatedError
from nadi.limits import PAGE_BEHIND_S, PAGE_PIECE_BYTES, PAGE_PIECE_LEAST_BYTES, PAGE_PIECES_BYTES
from nadi.model.event import EventBlock
from nadi.model.event_time import EventTime
from nadi.model.framing import HEADER_BYTES
from nadi.naming import segment_name
from nadi.web.reading.times import LaneTimes, Numbers, clock_by
from nadi.wire import commands as wire

if TYPE_CHECKING:
    from nadi.client.stream_cuts.event_index import Times

_ODD_CLOCKS_MS = 5_000  # between those of servers: a segment may have events of before it was made
NO_TIME = -(1 << 63)  # also of a segment of which nobody knows when its events begin


@dataclass(frozen=True, slots=True)
class Came:
    """An event, and when it is due, in ms since 1970; own_ms: its time, which is earlier if it came late. data: None
    stands for no event, so that nothing waits for a segment in which none is found."""

    at_ms: int
    own_ms: int
    segment: int
    offset: int
    data: memoryview | None


class _Lane:
    """One segment from an event boundary on."""

    def __init__(self, lanes: Lanes, begins_ms: int, piece: SegmentSlice) -> None:
        self._lanes, self._piece = lanes, piece
        self._segment = segment_name(lanes.scope, lanes.stream, piece.segment_id)
        self._times = LaneTimes(lanes.stores, self._segment, begins_ms)
        self._due_ms = begins_ms
        self._reached = piece.start
        self._blocks: AsyncGenerator[EventBlock, None] | None = None
        self.events: deque[Came] = deque()

    @property
    def segment_id(self) -> int:
        return self._piece.segment_id

    async def fill(self) -> bool:
        """Have the next block's events; False at the end."""
        ends_s = time.monotonic() + self._lanes.patience_s
        while not self.events and self._reached < self._piece.end:
            if time.monotonic() > ends_s:
                self.events.append(Came(self._due_ms, self._due_ms, self.segment_id, self._reached, None))
                break
            try:
                if self._blocks is None:
                    self._blocks = self._read()
                block = await anext(self._blocks, None)
                if block is None:
                    self._reached = self._piece.end
                    break
                await self._take(block)
            except TruncatedError as error:
                await self.go_to(max(error.start_offset, self._reached))
            except NotFoundError:
                self._reached = self._piece.end  # truncated away
        return bool(self.events)

    def _read(self) -> AsyncGenerator[EventBlock, None]:
        segment, start, end = self._segment, self._reached, self._piece.end
        return read_segment_range(self._lanes.stores, segment, start, end, SKIP, read=self._lanes.read_pieces)

    async def _take(self, block: EventBlock) -> None:
        offsets = block.offsets()
        own = due = await self._own_times(block)
        if own is None:
            own = due = await self._times.of(offsets, block.offset + block.size_bytes)
        else:
            due = np.maximum.accumulate(np.append(self._due_ms, own))[1:]
            self._due_ms = int(due[-1])
        borders = [*block.starts.tolist(), block.size_bytes]
        found = zip(due.tolist(), own.tolist(), offsets.tolist(), borders, islice(borders, 1, None), strict=False)
        first_ms, end_ms = self._lanes.within_ms
        for at_ms, own_ms, offset, start, end in found:
            if own_ms == NO_TIME:
                self._lanes.timeless += 1
            elif first_ms <= own_ms < end_ms:
                data = block.data[start + HEADER_BYTES : end]
                self.events.append(Came(at_ms, own_ms, self.segment_id, offset, data))
        self._reached = block.offset + block.size_bytes

    async def _own_times(self, block: EventBlock) -> Numbers | None:
        """Return the times that the events have themselves; None by arrival."""
        if self._lanes.own_times is None:
            return None
        times = await asyncio.to_thread(self._lanes.own_times, block.events())
        return np.where(times.is_valid(), np.asarray(times.fill_null(0)) // 1000, NO_TIME)

    async def go_to(self, offset: int) -> None:
        """Go on there, or where it is if that lies before it."""
        await self.close()
        self.events.clear()
        self._reached = min(max(offset, self._reached), self._piece.end)

    async def pass_over(self, until_ms: int, patience_s: float) -> None:
        """Leave out what came before then: from the time index's place for it on, as long as that takes no longer."""
        with suppress(NotFoundError):
            clock = self._lanes.clock
            asked = wire.LocateMoment(0, self._segment, until_ms * (1000 if clock else 1), clock, "")
            found = await self._lanes.stores.ask(asked, wire.MomentLocated)
            held = self.events[-1].offset if self.events else -1
            if found.offset > max(self._reached, held):
                await self.go_to(found.offset)
        ends_s = time.monotonic() + patience_s
        while await self.fill():
            while self.events and (self.events[0].at_ms < until_ms or self.events[0].data is None):
                self.events.popleft()
            if self.events or time.monotonic() > ends_s:
                return

    async def close(self) -> None:
        if self._blocks is not None:
            await self._blocks.aclose()
            self._blocks = None


class Lanes:
    """`take` events in the order of their times. pieces: of the stretch, in the order in which they begin, each with
    the time before which it has no events. purpose: of its connections, which `close` ends. event_time: the field with
    the events' own time; within_ms: the range of such times. timeless counts the events without one; its reader resets
    it."""

    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        stream: str,
        pieces: Iterable[tuple[int, SegmentSlice]],
        purpose: str,
        event_time: EventTime | None = None,
        within_ms: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        self.stores, self.scope, self.stream, self.within_ms = stores, scope, stream, within_ms
        self.clock, self.own_times, self.timeless = clock_by(event_time), _reader(event_time), 0
        self._purpose = purpose
        self._waiting = deque(pieces)
        self._open: list[tuple[int, int, _Lane]] = []  # a heap, by the time of the next event

    async def next_ms(self) -> int | None:
        """When the next event came; None at the end."""
        while self._waiting and (not self._open or self._waiting[0][0] - _ODD_CLOCKS_MS <= self._open[0][0]):
            await self._put(_Lane(self, *self._waiting.popleft()))
        return self._open[0][0] if self._open else None

    @property
    def patience_s(self) -> float:
        """How long one segment may be read without an event while the others wait."""
        return PAGE_BEHIND_S / (len(self._open) + 1)

    @property
    def has_event(self) -> bool:
        """Whether `take` gives one."""
        return bool(self._open) and self._open[0][2].events[0].data is not None

    async def take(self) -> Came:
        """The next event, or what stands for none; there must be one of them."""
        _, _, lane = self._open[0]
        event = lane.events.popleft()
        if lane.events or await lane.fill():
            heapq.heapreplace(self._open, (lane.events[0].at_ms, lane.segment_id, lane))
        else:
            heapq.heappop(self._open)
            await lane.close()
        return event

    async def pass_over(self, until_ms: int, patience_s: float = 0.0) -> None:
        """Leave out what came before then, to the event if that takes no longer than so for a segment."""
        lanes = [lane for _, _, lane in self._open]
        self._open = []
        while self._waiting and self._waiting[0][0] < until_ms:
            lanes.append(_Lane(self, *self._waiting.popleft()))
        for lane in lanes:
            await lane.pass_over(until_ms, patience_s)
            await self._put(lane)

    async def close(self) -> None:
        for _, _, lane in self._open:
            await lane.close()
        self.stores.release(self._purpose)

    async def read_pieces(
        self, stores: SegmentStores, segment: str, start: int, end: int, /, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]:
        """As `read_bytes`, of which it is a part: over connections that all segments share, and little ahead."""
        while start < end:
            share = PAGE_PIECES_BYTES // (len(self._open) + 1)
            stop = min(start + max(min(PAGE_PIECE_BYTES, share), PAGE_PIECE_LEAST_BYTES), end)
            async for data in read_bytes(stores, segment, start, stop, purpose=self._purpose):
                yield data
            start = stop

    async def _put(self, lane: _Lane) -> None:
        if await lane.fill():
            heapq.heappush(self._open, (lane.events[0].at_ms, lane.segment_id, lane))
        else:
            await lane.close()


def _reader(event_time: EventTime | None) -> Times | None:
    if event_time is None:
        return None
    from nadi.client.stream_cuts.event_index import times_of

    return times_of(event_time)
