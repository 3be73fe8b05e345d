"""Reads the segments of a range of a stream in pieces, and merges their events by time.

`Lanes` opens a segment when the replay approaches its first event, older epochs first, and yields the events of all
segments ordered by time. It holds one block per segment.

By event time, the time is read from each event, and events are ordered as in the time index: a late event is due with
the latest event before it in its segment. Events without an event time are counted instead.
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

_CLOCK_SKEW_MS = 5_000  # between servers: a segment may contain events from before its creation
NO_TIME = -(1 << 63)  # also the start of a segment whose first event time is unknown


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event and the time at which it is due, in ms since 1970; own_ms: its time, earlier if the event is late. data:
    None for a placeholder of a segment in which no event has been found yet, so that others needn't wait for it."""

    at_ms: int
    own_ms: int
    segment: int
    offset: int
    data: memoryview | None


class _Lane:
    """One segment, from an event boundary on."""

    def __init__(self, lanes: Lanes, begins_ms: int, piece: SegmentSlice) -> None:
        self._lanes, self._piece = lanes, piece
        self._segment = segment_name(lanes.scope, lanes.stream, piece.segment_id)
        self._times = LaneTimes(lanes.stores, self._segment, begins_ms)
        self._due_ms = begins_ms
        self._position = piece.start
        self._blocks: AsyncGenerator[EventBlock, None] | None = None
        self.events: deque[TimedEvent] = deque()

    @property
    def segment_id(self) -> int:
        return self._piece.segment_id

    async def fill(self) -> bool:
        """Load the next block's events; return False at the end."""
        deadline_s = time.monotonic() + self._lanes.patience_s
        while not self.events and self._position < self._piece.end:
            if time.monotonic() > deadline_s:
                self.events.append(TimedEvent(self._due_ms, self._due_ms, self.segment_id, self._position, None))
                break
            try:
                if self._blocks is None:
                    self._blocks = self._read()
                block = await anext(self._blocks, None)
                if block is None:
                    self._position = self._piece.end
                    break
                await self._add(block)
            except TruncatedError as error:
                await self.seek(max(error.start_offset, self._position))
            except NotFoundError:
                self._position = self._piece.end  # truncated away
        return bool(self.events)

    def _read(self) -> AsyncGenerator[EventBlock, None]:
        segment, start, end = self._segment, self._position, self._piece.end
        return read_segment_range(self._lanes.stores, segment, start, end, SKIP, read=self._lanes.read_pieces)

    async def _add(self, block: EventBlock) -> None:
        offsets = block.offsets()
        own = due = await self._own_times(block)
        if own is None:
            own = due = await self._times.of(offsets, block.offset + block.size_bytes)
        else:
            due = np.maximum.accumulate(np.append(self._due_ms, own))[1:]
            self._due_ms = int(due[-1])
        boundaries = [*block.starts.tolist(), block.size_bytes]
        rows = zip(due.tolist(), own.tolist(), offsets.tolist(), boundaries, islice(boundaries, 1, None), strict=False)
        first_ms, end_ms = self._lanes.within_ms
        for at_ms, own_ms, offset, start, end in rows:
            if own_ms == NO_TIME:
                self._lanes.timeless += 1
            elif first_ms <= own_ms < end_ms:
                data = block.data[start + HEADER_BYTES : end]
                self.events.append(TimedEvent(at_ms, own_ms, self.segment_id, offset, data))
        self._position = block.offset + block.size_bytes

    async def _own_times(self, block: EventBlock) -> Numbers | None:
        """Return the events' own times; None by arrival."""
        if self._lanes.own_times is None:
            return None
        times = await asyncio.to_thread(self._lanes.own_times, block.events())
        return np.where(times.is_valid(), np.asarray(times.fill_null(0)) // 1000, NO_TIME)

    async def seek(self, offset: int) -> None:
        """Continue at this offset, unless it is before the current position."""
        await self.close()
        self.events.clear()
        self._position = min(max(offset, self._position), self._piece.end)

    async def skip(self, until_ms: int, patience_s: float) -> None:
        """Skip events before this time: seek by the time index, then read for at most this long."""
        with suppress(NotFoundError):
            clock = self._lanes.clock
            request = wire.LocateMoment(0, self._segment, until_ms * (1000 if clock else 1), clock, "")
            located = await self._lanes.stores.ask(request, wire.MomentLocated)
            loaded = self.events[-1].offset if self.events else -1
            if located.offset > max(self._position, loaded):
                await self.seek(located.offset)
        deadline_s = time.monotonic() + patience_s
        while await self.fill():
            while self.events and (self.events[0].at_ms < until_ms or self.events[0].data is None):
                self.events.popleft()
            if self.events or time.monotonic() > deadline_s:
                return

    async def close(self) -> None:
        if self._blocks is not None:
            await self._blocks.aclose()
            self._blocks = None


class Lanes:
    """The open segments of a range; `take` returns events ordered by time. pieces: of the range, ordered by start, each
    with the time before which it has no events. purpose: of the connections, which `close` closes. event_time: the
    field with the event time; within_ms: range of times. timeless: counts events without an event time; the reader
    resets it."""

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
        self.clock, self.own_times, self.timeless = clock_by(event_time), _time_parser(event_time), 0
        self._purpose = purpose
        self._waiting = deque(pieces)
        self._open: list[tuple[int, int, _Lane]] = []  # a heap ordered by the time of the next event

    async def next_ms(self) -> int | None:
        """Return the time of the next event; None at the end."""
        while self._waiting and (not self._open or self._waiting[0][0] - _CLOCK_SKEW_MS <= self._open[0][0]):
            await self._push(_Lane(self, *self._waiting.popleft()))
        return self._open[0][0] if self._open else None

    @property
    def patience_s(self) -> float:
        """Limit on reading one segment without finding an event while the others wait."""
        return PAGE_BEHIND_S / (len(self._open) + 1)

    @property
    def has_event(self) -> bool:
        """Whether `take` returns an event, not a placeholder."""
        return bool(self._open) and self._open[0][2].events[0].data is not None

    async def take(self) -> TimedEvent:
        """Return the next event or placeholder. Only valid before the end."""
        _, _, lane = self._open[0]
        event = lane.events.popleft()
        if lane.events or await lane.fill():
            heapq.heapreplace(self._open, (lane.events[0].at_ms, lane.segment_id, lane))
        else:
            heapq.heappop(self._open)
            await lane.close()
        return event

    async def skip(self, until_ms: int, patience_s: float = 0.0) -> None:
        """Skip events before this time: exactly if that takes at most `patience_s` per segment, else by the index."""
        lanes = [lane for _, _, lane in self._open]
        self._open = []
        while self._waiting and self._waiting[0][0] < until_ms:
            lanes.append(_Lane(self, *self._waiting.popleft()))
        for lane in lanes:
            await lane.skip(until_ms, patience_s)
            await self._push(lane)

    async def close(self) -> None:
        for _, _, lane in self._open:
            await lane.close()
        self.stores.release(self._purpose)

    async def read_pieces(
        self, stores: SegmentStores, segment: str, start: int, end: int, /, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]:
        """Like `read_bytes`, but over connections shared by all segments, with little read-ahead."""
        while start < end:
            share = PAGE_PIECES_BYTES // (len(self._open) + 1)
            stop = min(start + max(min(PAGE_PIECE_BYTES, share), PAGE_PIECE_LEAST_BYTES), end)
            async for data in read_bytes(stores, segment, start, stop, purpose=self._purpose):
                yield data
            start = stop

    async def _push(self, lane: _Lane) -> None:
        if await lane.fill():
            heapq.heappush(self._open, (lane.events[0].at_ms, lane.segment_id, lane))
        else:
            await lane.close()


def _time_parser(event_time: EventTime | None) -> Times | None:
    if event_time is None:
        return None
    from nadi.client.stream_cuts.event_index import times_of

    return times_of(event_time)
