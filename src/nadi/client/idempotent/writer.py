"""Write each event exactly once, even if the writing process is killed at any time and restarted.

The caller keeps the events until they are stored: a file, or a request that its sender repeats. Their numbers ascend,
and every segment stores the last number of the writer's id. So a restarted writer, in any process, may be passed events
that are stored already, and skips them. An append contains all events of a call for one segment and is atomic with the
last one's number.

This survives splits and merges: a key's last number is the highest one in the segments that have taken the key. A
successor stores only events above the numbers of its predecessors, which are read once these are sealed and final.

Unlike with an EventSender, the caller chooses the writer id and the numbers, so that another process can continue. One
append at a time is in flight to each segment.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from nadi.backoff import Backoff
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import APPENDS, SegmentStores
from nadi.errors import (
    AccessDeniedError,
    ConflictError,
    EventTooLargeError,
    NadiError,
    SegmentNotFoundError,
    StreamNotFoundError,
    StreamRecreatedError,
    StreamSealedError,
)
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.framing import frame_events
from nadi.model.segments import SegmentRange, share_keys
from nadi.naming import segment_epoch, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION

_SEGMENTS_AT_ONCE = 32
_CACHED_EPOCHS = 100
_CACHED_SEALED = 10_000


@dataclass(frozen=True, slots=True)
class StoredNumber:
    """The last stored number of a segment's keys, low to high; NO_VERSION if none."""

    low: float
    high: float
    number: int


class StreamShape:
    """A stream's segments, cached for all idempotent writers of a client."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.stores, self.scope, self.stream = stores, scope, stream
        self._current: list[SegmentRange] | None = None
        self._epochs: LRUCache[int, list[SegmentRange]] = LRUCache(_CACHED_EPOCHS)
        self._sealed: LRUCache[int, None] = LRUCache(_CACHED_SEALED)

    def name_of(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    async def current(self) -> list[SegmentRange]:
        """Return the segments that last were known to take events; raise StreamSealedError if the stream is sealed."""
        if self._current is None:
            self._current = await self.stores.controller.current_segments(self.scope, self.stream) or None
        if self._current is None:
            raise StreamSealedError(f"stream {self.scope}/{self.stream}")
        return self._current

    @property
    def is_known(self) -> bool:
        """Whether the segments last returned by `current` are not known to be outdated."""
        return self._current is not None

    def invalidate(self) -> None:
        """Discard the current segments, because one is sealed."""
        self._current = None

    async def newest_epoch(self) -> int:
        return max(segment_epoch(segment.segment_id) for segment in await self.current())

    async def older_numbers(
        self, segment: SegmentRange, writer_id: bytes, since_epoch: int, known: dict[int, int]
    ) -> list[StoredNumber]:
        """Return the writer's numbers in all direct and indirect predecessors of a segment.

        since_epoch: segments replaced by this epoch or earlier are ignored, and so are missing ones. known: cache of
        numbers by segment, which this extends.
        """
        numbers: list[StoredNumber] = []
        seen, unvisited = set[int](), deque([segment])
        while unvisited:
            newer = unvisited.popleft()
            epoch = segment_epoch(newer.segment_id)
            if epoch <= since_epoch:
                continue
            for older in await self._epoch(epoch - 1):
                if share_keys(older, newer) and older.segment_id not in seen:
                    seen.add(older.segment_id)
                    unvisited.append(older)
                    if older.segment_id not in known:
                        known[older.segment_id] = await self._sealed_number(older.segment_id, writer_id)
                    if known[older.segment_id] != NO_VERSION:
                        numbers.append(StoredNumber(older.low, older.high, known[older.segment_id]))
        return numbers

    async def _epoch(self, epoch: int) -> list[SegmentRange]:
        """Return the epoch's segments that are still known."""
        if epoch not in self._epochs:
            self._epochs[epoch] = await self.stores.controller.epoch_segments(self.scope, self.stream, epoch)
        return self._epochs[epoch]

    async def _sealed_number(self, segment_id: int, writer_id: bytes) -> int:
        """Return a writer's last number in a segment with successors, after waiting until the segment is sealed."""
        name, backoff = self.name_of(segment_id), Backoff()
        try:
            while segment_id not in self._sealed:
                if (await segment_info(self.stores, name)).is_sealed:
                    self._sealed[segment_id] = None
                else:
                    await backoff.pause()
            request = wire.GetSegmentAttribute(0, name, id_in(writer_id, segment_id), "")
            return (await self.stores.ask(request, wire.SegmentAttribute)).value
        except SegmentNotFoundError:
            return NO_VERSION


def id_in(writer_id: bytes, segment_id: int) -> bytes:
    """Derive a writer's id for one segment, because a connection identifies its writers by id alone."""
    return hashlib.blake2b(segment_id.to_bytes(8, "big"), digest_size=16, key=writer_id).digest()


async def epoch_at(shape: StreamShape, at_ms: int) -> int:
    """Return the oldest epoch that still had segments at time `at_ms`."""
    cut = await shape.stores.controller.cut_at(shape.scope, shape.stream, at_ms)
    return min(map(segment_epoch, cut.positions), default=0)


class NumberedEvent(NamedTuple):
    """An event to write. number: not negative. position: its key's position in the key space, see `model.keyspace`."""

    number: int
    position: float
    data: bytes


class StoredEvents(NamedTuple):
    """Events that one append has stored. end: of the segment behind them; -1 if the reply was lost."""

    segment: SegmentRange
    end: int
    events: list[NumberedEvent]


class IdempotentWriter:
    """Writer under one id. Two concurrent writers with the same id disturb each other, but lose no event.

    writer_id: 16 bytes. since_epoch: the stream's newest epoch, or an earlier one, at a time when no event had been
    written under the id. only_number: the number of all events of a writer that writes once; ConflictError is raised
    if another number was stored.
    """

    def __init__(
        self,
        shape: StreamShape,
        writer_id: bytes,
        *,
        since_epoch: int = 0,
        only_number: int | None = None,
        purpose: str = APPENDS,
    ) -> None:
        self._shape, self._id, self._since = shape, writer_id, since_epoch
        self._only, self._purpose = only_number, purpose
        self._segments: list[SegmentRange] = []
        self._appenders: dict[int, SegmentAppender] = {}
        self._stored: dict[int, list[StoredNumber]] = {}  # current segment -> its number and its predecessors'
        self._final: dict[int, int] = {}  # sealed segment -> its final number

    async def write(self, events: Sequence[NumberedEvent], timeout: float | None = None) -> list[StoredEvents]:
        """Store the events that are not stored yet, and return these once all are stored; numbers must not decrease.

        Events of one position keep their order. Raises StreamSealedError, EventTooLargeError, RequestTimeoutError:
        after the latter, or after a cancellation, some events may be stored; a repetition stores the others.
        """
        if (largest := max((len(event.data) for event in events), default=0)) > MAX_EVENT_BYTES:
            raise EventTooLargeError(largest, MAX_EVENT_BYTES)
        overdue = (
            f"writing to {self._shape.scope}/{self._shape.stream} took over {timeout} s: some events are not stored"
        )
        async with TimeLimit(timeout, lambda: overdue, self._trouble):
            pending, stored = list(events), list[StoredEvents]()
            while pending:
                pending = await self._write(pending, stored)
        return stored

    async def last_number(self, position: float) -> int:
        """Return the highest number stored under the id for keys at this position; NO_VERSION if none."""
        while True:
            self._segments = await self._shape.current()
            highs = [segment.high for segment in self._segments]
            segment = self._segments[min(bisect_left(highs, position), len(highs) - 1)]
            try:
                return _last(await self._numbers(segment), position)
            except StreamSealedError:
                self._drop(segment)
                self._shape.invalidate()

    async def last_numbers(self) -> set[int]:
        """Return the highest numbers stored under the id in the current segments and in their predecessors."""
        while True:
            self._segments = await self._shape.current()
            numbers: set[int] = set()
            for low in range(0, len(self._segments), _SEGMENTS_AT_ONCE):
                group = self._segments[low : low + _SEGMENTS_AT_ONCE]
                outcomes = await asyncio.gather(*map(self._numbers, group), return_exceptions=True)
                for segment, outcome in zip(group, outcomes, strict=True):
                    if isinstance(outcome, StreamSealedError):
                        self._drop(segment)
                        self._shape.invalidate()
                    elif isinstance(outcome, BaseException):
                        raise outcome
                    else:
                        numbers |= {stored.number for stored in outcome}
            if self._shape.is_known:
                return numbers - {NO_VERSION}

    def close(self) -> None:
        for appender in self._appenders.values():
            appender.close()
        self._appenders.clear()
        self._stored.clear()

    def _trouble(self) -> NadiError | None:
        troubles = (appender.trouble for appender in self._appenders.values())
        return next(filter(None, troubles), None) or self._shape.stores.waits_for()

    async def _write(self, events: list[NumberedEvent], stored: list[StoredEvents]) -> list[NumberedEvent]:
        """Write to the current segments; return the events for those that turned out to be sealed."""
        self._segments = await self._shape.current()
        highs = [segment.high for segment in self._segments]
        parts: dict[int, list[NumberedEvent]] = {}
        for event in events:
            at = min(bisect_left(highs, event.position), len(highs) - 1)
            parts.setdefault(at, []).append(event)
        outcomes = await asyncio.gather(
            *(self._write_to(self._segments[at], part, stored) for at, part in parts.items()), return_exceptions=True
        )
        pending: list[NumberedEvent] = []
        for part, outcome in zip(parts.values(), outcomes, strict=True):
            if isinstance(outcome, StreamSealedError):
                pending += part
            elif isinstance(outcome, BaseException):
                raise outcome
        if pending:
            self._shape.invalidate()
            pending.sort(key=lambda event: event.number)  # stable: events of one number keep their order
        return pending

    async def _write_to(self, segment: SegmentRange, events: list[NumberedEvent], stored: list[StoredEvents]) -> None:
        try:
            numbers = await self._numbers(segment)
            new = _unstored(numbers, events)
            if self._only is not None:
                self._check({_last(numbers, event.position) for event in events})
            while new:
                framed, number = frame_events([event.data for event in new]), new[-1].number
                appender = self._appenders[segment.segment_id]
                last = await self._answered(appender, appender.append_block(framed, len(new), number))
                self._check({last})
                if last == number:
                    stored.append(StoredEvents(segment, appender.end, new))
                current = StoredNumber(segment.low, segment.high, last)
                numbers = [current, *(older for older in numbers[1:] if older.number > last)]
                self._stored[segment.segment_id] = numbers
                new = _unstored(numbers, new)
        except StreamSealedError:
            self._drop(segment)
            raise

    def _drop(self, segment: SegmentRange) -> None:
        self._stored.pop(segment.segment_id, None)
        if (appender := self._appenders.pop(segment.segment_id, None)) is not None:
            appender.close()

    async def _numbers(self, segment: SegmentRange) -> list[StoredNumber]:
        """Return the segment's number first, then the numbers of its predecessors."""
        numbers = self._stored.get(segment.segment_id)
        if numbers is None:
            name, own_id = self._shape.name_of(segment.segment_id), id_in(self._id, segment.segment_id)
            appender = SegmentAppender(self._shape.stores, name, own_id, self._purpose)
            self._appenders[segment.segment_id] = appender
            current = StoredNumber(segment.low, segment.high, await self._answered(appender, appender.last_number()))
            numbers = [current, *await self._shape.older_numbers(segment, self._id, self._since, self._final)]
            self._stored[segment.segment_id] = numbers
        return numbers

    async def _answered(self, appender: SegmentAppender, number: Awaitable[int]) -> int:
        """Await a number; raise StreamSealedError if the segment is sealed or missing."""
        try:
            return await number
        except (SegmentNotFoundError, StreamRecreatedError, StreamNotFoundError):
            raise StreamSealedError(appender.segment) from None
        except AccessDeniedError:
            self._shape.stores.forget(appender.segment)  # another token may work
            raise

    def _check(self, lasts: set[int]) -> None:
        if self._only is not None and not lasts <= {NO_VERSION, self._only}:
            raise ConflictError("other data was stored under this name before: use a new name for new data")


def _unstored(numbers: list[StoredNumber], events: list[NumberedEvent]) -> list[NumberedEvent]:
    if len(numbers) == 1:  # the usual case
        return events[bisect_right(events, numbers[0].number, key=lambda event: event.number) :]
    return [event for event in events if event.number > _last(numbers, event.position)]


def _last(numbers: list[StoredNumber], position: float) -> int:
    return max((stored.number for stored in numbers if _covers(stored, position)), default=NO_VERSION)


def _covers(stored: StoredNumber, position: float) -> bool:
    """Return whether the segment took this position; a border belongs to the range that ends there, as for writers."""
    return stored.low < position <= stored.high or position == stored.low == 0.0
