"""IdempotentWriter: each event once, though the process that writes them may be killed at any moment and begin again.

The caller keeps what is to be written until it is stored: a file, a request that its sender repeats. Its events have
numbers that ascend, by which every segment remembers how far this writer's id has come; so a writer that begins again,
in whatever process, may be given what was stored already, and leaves it out. An append holds all events of a call that
go to one segment and is atomic with the last one's number.

Splits and merges lose nothing of that. A segment knows the last number of each writer. A key's last number is the
highest of the segments that have taken it: a segment that follows others takes of a writer only what those have not,
once they are sealed and can't change any more.

Unlike the outputs of an EventSender, the writer's id and its numbers are the caller's, so that another process can go
on. There is an append at a time to each segment.
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

_ASKED_AT_ONCE = 32  # segments
_EPOCHS_KEPT = 100
_SEALED_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class StoredNumber:
    """The last number stored of the keys low ≤ position < high; NO_VERSION if there is none."""

    low: float
    high: float
    number: int


class StreamShape:
    """A stream's segments as writers need them, shared by all that write to it by one client."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.stores, self.scope, self.stream = stores, scope, stream
        self._current: list[SegmentRange] | None = None
        self._epochs: LRUCache[int, list[SegmentRange]] = LRUCache(_EPOCHS_KEPT)
        self._sealed: LRUCache[int, None] = LRUCache(_SEALED_KEPT)

    def name_of(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    async def current(self) -> list[SegmentRange]:
        """The segments that take events, as far as is known; StreamSealedError if there are none."""
        if self._current is None:
            self._current = await self.stores.controller.current_segments(self.scope, self.stream) or None
        if self._current is None:
            raise StreamSealedError(f"stream {self.scope}/{self.stream}")
        return self._current

    @property
    def is_known(self) -> bool:
        """Whether nothing speaks against the segments that `current` has said."""
        return self._current is not None

    def outdated(self) -> None:
        """One of them takes no more: ask again next time."""
        self._current = None

    async def newest_epoch(self) -> int:
        return max(segment_epoch(segment.segment_id) for segment in await self.current())

    async def older_numbers(
        self, segment: SegmentRange, writer_id: bytes, since_epoch: int, known: dict[int, int]
    ) -> list[StoredNumber]:
        """The writer's numbers in the segments that this one follows, at however many removes.

        since_epoch: what was replaced by that epoch isn't looked at; nor is what is gone. known: numbers that were
        asked for, by segment, which this adds to.
        """
        found: list[StoredNumber] = []
        seen, following = set[int](), deque([segment])
        while following:
            newer = following.popleft()
            epoch = segment_epoch(newer.segment_id)
            if epoch <= since_epoch:
                continue
            for older in await self._epoch(epoch - 1):
                if share_keys(older, newer) and older.segment_id not in seen:
                    seen.add(older.segment_id)
                    following.append(older)
                    if older.segment_id not in known:
                        known[older.segment_id] = await self._sealed_number(older.segment_id, writer_id)
                    if known[older.segment_id] != NO_VERSION:
                        found.append(StoredNumber(older.low, older.high, known[older.segment_id]))
        return found

    async def _epoch(self, epoch: int) -> list[SegmentRange]:
        """Its segments, those of them that are still known."""
        if epoch not in self._epochs:
            self._epochs[epoch] = await self.stores.controller.epoch_segments(self.scope, self.stream, epoch)
        return self._epochs[epoch]

    async def _sealed_number(self, segment_id: int, writer_id: bytes) -> int:
        """A writer's last number in a segment that others follow, once it is sealed: it is about to be."""
        name, backoff = self.name_of(segment_id), Backoff()
        try:
            while segment_id not in self._sealed:
                if (await segment_info(self.stores, name)).is_sealed:
                    self._sealed[segment_id] = None
                else:
                    await backoff.pause()
            asked = wire.GetSegmentAttribute(0, name, id_in(writer_id, segment_id), "")
            return (await self.stores.ask(asked, wire.SegmentAttribute)).value
        except SegmentNotFoundError:
            return NO_VERSION


def id_in(writer_id: bytes, segment_id: int) -> bytes:
    """What a writer's id is in a segment: a connection knows writers by their ids alone, each in one segment."""
    return hashlib.blake2b(segment_id.to_bytes(8, "big"), digest_size=16, key=writer_id).digest()


async def epoch_at(shape: StreamShape, at_ms: int) -> int:
    """The oldest epoch that still had segments at that time."""
    cut = await shape.stores.controller.cut_at(shape.scope, shape.stream, at_ms)
    return min(map(segment_epoch, cut.positions), default=0)


class NumberedEvent(NamedTuple):
    """number: not negative. position: of its key in the key space, as `model.keyspace` has it."""

    number: int
    position: float
    data: bytes


class IdempotentWriter:
    """Of one id, which two writers at a time don't share: they would get in each other's way, and lose nothing.

    writer_id: 16 bytes. since_epoch: the shape's newest epoch, or an earlier one, at a time when nothing had been
    written under the id. only_number: all its events have this number, and it writes once; what was stored under
    another is a ConflictError.
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
        self._stored: dict[int, list[StoredNumber]] = {}  # by segment that takes events: what it and others have
        self._final: dict[int, int] = {}  # the numbers of sealed segments, which don't change any more

    async def write(self, events: Sequence[NumberedEvent], timeout: float | None = None) -> None:
        """Return once all are stored, those included that were before; their numbers don't descend.

        Events of one position keep their order. StreamSealedError, EventTooLargeError, RequestTimeoutError: after it,
        or after a cancellation, some may be stored, and a repetition stores the others.
        """
        if (largest := max((len(event.data) for event in events), default=0)) > MAX_EVENT_BYTES:
            raise EventTooLargeError(largest, MAX_EVENT_BYTES)
        async with TimeLimit(timeout, lambda: f"not everything was stored within {timeout} s", self._trouble):
            left = list(events)
            while left:
                left = await self._write(left)

    async def last_number(self, position: float) -> int:
        """The highest number stored under the id for keys of that position, NO_VERSION if there is none."""
        while True:
            self._segments = await self._shape.current()
            highs = [segment.high for segment in self._segments]
            segment = self._segments[min(bisect_left(highs, position), len(highs) - 1)]
            try:
                return _last(await self._numbers(segment), position)
            except StreamSealedError:
                self._drop(segment)
                self._shape.outdated()

    async def last_numbers(self) -> set[int]:
        """The highest numbers stored under the id in the segments that take events, and in those that they follow."""
        while True:
            self._segments = await self._shape.current()
            found: set[int] = set()
            for low in range(0, len(self._segments), _ASKED_AT_ONCE):
                some = self._segments[low : low + _ASKED_AT_ONCE]
                outcomes = await asyncio.gather(*map(self._numbers, some), return_exceptions=True)
                for segment, outcome in zip(some, outcomes, strict=True):
                    if isinstance(outcome, StreamSealedError):
                        self._drop(segment)
                        self._shape.outdated()
                    elif isinstance(outcome, BaseException):
                        raise outcome
                    else:
                        found |= {piece.number for piece in outcome}
            if self._shape.is_known:
                return found - {NO_VERSION}

    def close(self) -> None:
        for appender in self._appenders.values():
            appender.close()
        self._appenders.clear()
        self._stored.clear()

    def _trouble(self) -> NadiError | None:
        troubles = (appender.trouble for appender in self._appenders.values())
        return next(filter(None, troubles), None) or self._shape.stores.waits_for()

    async def _write(self, events: list[NumberedEvent]) -> list[NumberedEvent]:
        """Write what the segments take; return the events of those that were sealed."""
        self._segments = await self._shape.current()
        highs = [segment.high for segment in self._segments]
        parts: dict[int, list[NumberedEvent]] = {}
        for event in events:
            at = min(bisect_left(highs, event.position), len(highs) - 1)
            parts.setdefault(at, []).append(event)
        outcomes = await asyncio.gather(
            *(self._write_to(self._segments[at], part) for at, part in parts.items()), return_exceptions=True
        )
        left: list[NumberedEvent] = []
        for part, outcome in zip(parts.values(), outcomes, strict=True):
            if isinstance(outcome, StreamSealedError):
                left += part
            elif isinstance(outcome, BaseException):
                raise outcome
        if left:
            self._shape.outdated()
            left.sort(key=lambda event: event.number)  # stable: those of one number keep their order
        return left

    async def _write_to(self, segment: SegmentRange, events: list[NumberedEvent]) -> None:
        try:
            found = await self._numbers(segment)
            new = _not_in(found, events)
            if self._only is not None:
                self._check({_last(found, event.position) for event in events})
            while new:
                framed, number = frame_events([event.data for event in new]), new[-1].number
                appender = self._appenders[segment.segment_id]
                last = await self._answered(appender, appender.append_block(framed, len(new), number))
                self._check({last})
                own = StoredNumber(segment.low, segment.high, last)
                found = [own, *(piece for piece in found[1:] if piece.number > last)]
                self._stored[segment.segment_id] = found
                new = _not_in(found, new)
        except StreamSealedError:
            self._drop(segment)
            raise

    def _drop(self, segment: SegmentRange) -> None:
        self._stored.pop(segment.segment_id, None)
        if (appender := self._appenders.pop(segment.segment_id, None)) is not None:
            appender.close()

    async def _numbers(self, segment: SegmentRange) -> list[StoredNumber]:
        """The segment's own number first, and then those before it that count for some of its keys."""
        found = self._stored.get(segment.segment_id)
        if found is None:
            name, own_id = self._shape.name_of(segment.segment_id), id_in(self._id, segment.segment_id)
            appender = SegmentAppender(self._shape.stores, name, own_id, self._purpose)
            self._appenders[segment.segment_id] = appender
            own = StoredNumber(segment.low, segment.high, await self._answered(appender, appender.last_number()))
            found = [own, *await self._shape.older_numbers(segment, self._id, self._since, self._final)]
            self._stored[segment.segment_id] = found
        return found

    async def _answered(self, appender: SegmentAppender, number: Awaitable[int]) -> int:
        """StreamSealedError if the segment takes no more, whatever became of it."""
        try:
            return await number
        except (SegmentNotFoundError, StreamRecreatedError, StreamNotFoundError):
            raise StreamSealedError(appender.segment) from None
        except AccessDeniedError:
            self._shape.stores.forget(appender.segment)  # another token may work
            raise

    def _check(self, lasts: set[int]) -> None:
        if self._only is not None and not lasts <= {NO_VERSION, self._only}:
            raise ConflictError("other data was stored under this name already: give new data a new one")


def _not_in(found: list[StoredNumber], events: list[NumberedEvent]) -> list[NumberedEvent]:
    if len(found) == 1:  # nearly always
        return events[bisect_right(events, found[0].number, key=lambda event: event.number) :]
    return [event for event in events if event.number > _last(found, event.position)]


def _last(found: list[StoredNumber], position: float) -> int:
    return max((piece.number for piece in found if _has(piece, position)), default=NO_VERSION)


def _has(piece: StoredNumber, position: float) -> bool:
    """Whether its segment took that position: a border belongs to what ends there, as writers have it."""
    return piece.low < position <= piece.high or position == piece.low == 0.0
