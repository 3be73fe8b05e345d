"""Follows segments, each from its position, and yields blocks, gaps and ends; keeps the record of the positions
(`SegmentPositions`)."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.reading.boundary import segment_ranges
from nadi.client.reading.read_ahead import Gap, SegmentSource, share_bytes
from nadi.client.segments.info import successors_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    EpochExpiredError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    SegmentTruncatedError,
    StreamRecreatedError,
    TruncatedError,
    UnavailableError,
)
from nadi.model.event import EventBlock
from nadi.model.frontier import WAITING, may_begin
from nadi.model.readergroup import NamedRange
from nadi.model.segments import SegmentRange, oldest_by_key, share_keys
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name

_ids = itertools.count()


class PositionConflictError(Exception):
    """Another worker has changed the record: read it again."""


class SegmentProgress(msgspec.Struct, frozen=True, array_like=True):
    """A segment's key range and the position up to which it is processed. order: of its last event, in microseconds
    since 1970, see `building`. is_done: read to its end. origin: where following began."""

    segment_id: int
    low: float
    high: float
    reached: int = 0
    order: int = 0
    is_done: bool = False
    origin: int = 0

    @property
    def range(self) -> SegmentRange:
        return SegmentRange(self.segment_id, self.low, self.high)


class SegmentPositions(msgspec.Struct, frozen=True):
    """The positions of all workers, changed by compare-and-set. segments: by id; a done segment stays until no earlier
    segment can lead to it; gaps: number of gaps of truncated or damaged data. Changes raise PositionConflictError if
    another worker was faster."""

    segments: dict[int, SegmentProgress] = {}
    gaps: int = 0

    @classmethod
    def started(cls, segments: Iterable[SegmentProgress]) -> Self:
        return cls(segments={reach.segment_id: reach for reach in segments})

    @property
    def followed(self) -> list[SegmentProgress]:
        """The segments to read: not done, and without an unfinished predecessor that has their keys."""
        open_ = [reach.segment_id for reach in self.segments.values() if not reach.is_done]
        return [
            self.segments[segment] for segment in may_begin([self.segments[segment].range for segment in open_], open_)
        ]

    def positions(self) -> dict[int, int]:
        """Return the positions of the stream cut before which all is done."""
        return cut_of(self.segments.values())

    def at(self, segment_id: int, offset: int) -> SegmentProgress:
        """Return the segment; PositionConflictError unless it is processed up to that offset and isn't done."""
        reach = self.segments.get(segment_id)
        if reach is None or reach.is_done or reach.reached != offset:
            at = "gone" if reach is None else "done" if reach.is_done else f"at {reach.reached}"
            raise PositionConflictError(f"another worker has changed segment {segment_id}: it is {at}, not at {offset}")
        return reach

    def completed(self, segment_id: int, at: int, successors: Iterable[SegmentRange], *, gaps: int = 0) -> Self:
        """Return a copy with a segment done, whose end is `at`."""
        self.at(segment_id, at)
        return self.with_successors(
            [SegmentProgress(successor.segment_id, successor.low, successor.high) for successor in successors],
            [segment_id],
            gaps,
        )

    def passed(self, segment_id: int, start: int, to: int) -> Self:
        """Return a copy with a gap passed."""
        reach = self.at(segment_id, start)
        return self.with_segments(self.segments | {segment_id: replace(reach, reached=to)}, 1)

    def with_successors(self, successors: Iterable[SegmentProgress], done: Iterable[int], gaps: int = 1) -> Self:
        """Return a copy with the segments `done` marked and their successors added; or with the segments of the
        stream's head, if those between are forgotten."""
        segments = self.segments | {segment: replace(self.segments[segment], is_done=True) for segment in done}
        for reach in successors:
            segments.setdefault(reach.segment_id, reach)
        return self.with_segments(segments, gaps)

    def with_segments(self, segments: Mapping[int, SegmentProgress], gaps: int = 0) -> Self:
        first_open = min((reach.segment_id for reach in segments.values() if not reach.is_done), default=None)
        needed = self.needed()
        stored = {
            number: reach
            for number, reach in segments.items()
            if not reach.is_done or first_open is None or first_open < number or number in needed
        }
        return replace(self, segments=stored, gaps=self.gaps + gaps)

    def needed(self) -> Collection[int]:
        """Return the segments that stay in the record when they are done."""
        return ()


@dataclass(slots=True)
class Followed:
    """A segment that is read. order: of the last event that is in a shard."""

    reach: SegmentProgress
    source: SegmentSource
    order: int
    taken: list[EventBlock] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The end of the data taken."""
        return self.source.returned_to

    @property
    def error(self) -> NadiError | None:
        """The error of the next gap or of a failed source; None if a block is next or the segment ended."""
        item = self.source.peek()
        return item.error if isinstance(item, Gap) else self.source.error

    @property
    def is_finished(self) -> bool:
        """Whether all readable data was taken."""
        if isinstance(self.source.peek(), EventBlock) or isinstance(self.error, UnavailableError):
            return False
        return self.source.has_ended or self.error is not None


class Follower:
    """Reads segments ahead. `wakeup` is set when data has arrived or a segment has ended."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self._stores, self._scope, self._stream = stores, scope, stream
        self._purpose = f"worker {next(_ids)}"
        self._followed: dict[int, Followed] = {}
        self.wakeup = asyncio.Event()

    def follow(self, segments: Iterable[SegmentProgress], ends: Mapping[int, int] | None = None) -> None:
        """Follow exactly these segments; those already followed continue. ends: by segment, where to stop; a source
        that stops there is finished."""
        ends = ends or {}
        requested = {
            reach.segment_id: reach for reach in segments if reach.reached < ends.get(reach.segment_id, math.inf)
        }
        for segment_id in self._followed.keys() - requested.keys():
            self.leave(segment_id)
        for segment_id, reach in requested.items():
            if segment_id in self._followed:
                continue
            source = SegmentSource(
                self._stores,
                NamedRange(segment_name(self._scope, self._stream, reach.segment_id), reach.low, reach.high),
                reach.reached,
                ends.get(segment_id),
                purpose=self._purpose,
                read_ahead_bytes=share_bytes(len(requested)),
                news=self.wakeup.set,
            )
            self._followed[segment_id] = Followed(reach, source, reach.order)

    def leave(self, segment_id: int) -> None:
        """Stop following a segment and drop its read-ahead data."""
        segment = self._followed.pop(segment_id, None)
        if segment is not None:
            segment.source.close()

    def close(self) -> None:
        for segment_id in list(self._followed):
            self.leave(segment_id)
        self._stores.release(self._purpose)

    def all(self) -> Iterable[Followed]:
        return self._followed.values()

    def finished(self) -> Iterator[Followed]:
        """Return the segments that have ended and whose data was all taken."""
        return (segment for segment in list(self._followed.values()) if segment.is_finished)

    def take(self, most_bytes: int, most_events: int) -> int:
        """Take arrived blocks of all segments in turn, up to about these limits; return their size in bytes."""
        size = events = 0
        for segment in self._followed.values():
            segment.source.retry()
        due = [segment for segment in self._followed.values() if isinstance(segment.source.peek(), EventBlock)]
        while due and size < most_bytes and events < most_events:
            for segment in list(due):
                block = segment.source.take()
                segment.taken.append(block)
                segment.source.returned_to = block.offset + block.size_bytes
                size += block.size_bytes
                events += len(block)
                if not isinstance(segment.source.peek(), EventBlock):
                    due.remove(segment)
        return size

    def taken(self) -> list[tuple[Followed, list[EventBlock]]]:
        """Return the blocks taken since the last call."""
        taken = [(segment, segment.taken) for segment in self._followed.values() if segment.taken]
        for segment, _ in taken:
            segment.taken = []
        return taken


def gap_end(error: NadiError) -> int | None:
    """Return the position behind a gap, or None if the whole segment is gone; raise other errors."""
    if isinstance(error, EpochExpiredError):
        raise error
    if isinstance(error, SegmentTruncatedError):
        return None
    if isinstance(error, TruncatedError):
        return error.start_offset
    if isinstance(error, DamagedDataError):
        return error.end_offset
    raise error


def cut_of(segments: Iterable[SegmentProgress]) -> dict[int, int]:
    """Return the positions of the stream cut before which all is done, from the progress of each segment."""
    remaining: list[SegmentProgress] = []
    for reach in sorted(segments, key=lambda reach: reach.segment_id):
        if not reach.is_done or any(share_keys(reach, older) for older in remaining):
            remaining.append(reach)
    keys: dict[int, float] = {}
    for piece in oldest_by_key(reach.range for reach in remaining):
        keys[piece.segment_id] = keys.get(piece.segment_id, 0.0) + piece.high - piece.low
    return {
        reach.segment_id: reach.reached
        if abs(keys[reach.segment_id] - (reach.high - reach.low)) < _NO_KEYS  # it owns all its keys
        else WAITING
        for reach in remaining
        if reach.segment_id in keys
    }


_NO_KEYS = 1e-15  # rounding error of a segment's summed key ranges, below the width of any key


async def progress_at(stores: SegmentStores, scope: str, cut: StreamCut) -> list[SegmentProgress]:
    """Return the progress of a cut's segments if all before the cut is done."""
    return [
        SegmentProgress(segment.segment_id, segment.low, segment.high, max(cut.positions[segment.segment_id], 0))
        for segment in await segment_ranges(stores, scope, cut.stream, cut)
    ]


async def measure_lag_bytes(manager: StreamManager, reached: StreamCut) -> int | None:
    """Return the number of bytes from a cut to its stream's tail; None if unknown, because some are truncated."""
    cuts = manager.cuts(reached.scope, reached.stream)
    if not reached.positions:
        return 0  # a sealed stream, to its end
    try:
        return await cuts.bytes_between(reached, await cuts.tail())
    except (InvalidStreamCutError, NotFoundError, StreamRecreatedError, TruncatedError):
        return None


async def check_same(stores: SegmentStores, scope: str, stream: str, segments: Iterable[int], remedy: str) -> None:
    """Raise StreamRecreatedError with `remedy` if the stream doesn't have these segments, or StreamNotFoundError."""
    newest = max(segments, default=None)
    if newest is not None:
        try:
            await successors_of(stores, scope, stream, newest)
        except EpochExpiredError:  # nothing says that it is another stream
            pass
        except StreamRecreatedError as error:
            raise StreamRecreatedError(scope, stream, remedy) from error
