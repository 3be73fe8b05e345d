"""Segments that a worker follows, each from its own position: blocks as they come, gaps and ends; and the record of
the positions (`SegmentPositions`)."""

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
from nadi.client.segments.info import what_became_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    EpochGoneError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    SegmentGoneError,
    StreamNotFoundError,
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
    """Another worker has changed that meanwhile: look again."""


class SegmentProgress(msgspec.Struct, frozen=True, array_like=True):
    """A segment, the keys it takes, and how far it is indexed. order: of its last event, in microseconds since 1970;
    see `building`. is_done: it was read to its end. origin: where its following began."""

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
    """How far all workers are, changed by compare-and-set. segments: by id, one that is done until no earlier one may
    still lead to it; gaps: places where data was gone or damaged. Changes raise OvertakenError if another worker was
    faster."""

    segments: dict[int, SegmentProgress] = {}
    gaps: int = 0

    @classmethod
    def started(cls, found: Iterable[SegmentProgress]) -> Self:
        return cls(segments={reach.segment_id: reach for reach in found})

    @property
    def followed(self) -> list[SegmentProgress]:
        """The segments that aren't done, and whose keys no older one has: so each key's events are handled in order."""
        open_ = [reach.segment_id for reach in self.segments.values() if not reach.is_done]
        return [self.segments[one] for one in may_begin([self.segments[one].range for one in open_], open_)]

    def positions(self) -> dict[int, int]:
        """The positions of the stream cut before which all is done."""
        return cut_of(self.segments.values())

    def at(self, segment_id: int, offset: int) -> SegmentProgress:
        """The segment, which is processed up to there and isn't done."""
        reach = self.segments.get(segment_id)
        if reach is None or reach.is_done or reach.reached != offset:
            at = "gone" if reach is None else "done" if reach.is_done else f"at {reach.reached}"
            raise PositionConflictError(
                f"another worker was faster in segment {segment_id}: it is {at}, not at {offset}"
            )
        return reach

    def completed(self, segment_id: int, at: int, successors: Iterable[SegmentRange], *, gaps: int = 0) -> Self:
        """With a segment done that was processed up to its end `at`."""
        self.at(segment_id, at)
        return self.with_found(
            [SegmentProgress(one.segment_id, one.low, one.high) for one in successors], [segment_id], gaps
        )

    def passed(self, segment_id: int, start: int, to: int) -> Self:
        """With a gap passed."""
        reach = self.at(segment_id, start)
        return self.with_segments(self.segments | {segment_id: replace(reach, reached=to)}, 1)

    def with_found(self, found: Iterable[SegmentProgress], gone: Iterable[int], gaps: int = 1) -> Self:
        """With segments that follow those that are gone, which are done; or those of the stream's head, where what
        leads there is forgotten."""
        segments = self.segments | {one: replace(self.segments[one], is_done=True) for one in gone}
        for reach in found:
            segments.setdefault(reach.segment_id, reach)
        return self.with_segments(segments, gaps)

    def with_segments(self, segments: Mapping[int, SegmentProgress], gaps: int = 0) -> Self:
        first_open = min((one.segment_id for one in segments.values() if not one.is_done), default=None)
        needed = self.needed()
        kept = {
            number: reach
            for number, reach in segments.items()
            if not reach.is_done or first_open is None or first_open < number or number in needed
        }
        return replace(self, segments=kept, gaps=self.gaps + gaps)

    def needed(self) -> Collection[int]:
        """The segments that stay when they are done."""
        return ()


@dataclass(slots=True)
class Followed:
    """order: of the last event that is in a shard."""

    reach: SegmentProgress
    source: SegmentSource
    order: int
    taken: list[EventBlock] = field(default_factory=list)

    @property
    def given(self) -> int:
        """Where what was taken ends."""
        return self.source.given

    @property
    def error(self) -> NadiError | None:
        """What comes next instead of a block: a gap's, or why it ended if not at its end."""
        item = self.source.peek()
        return item.error if isinstance(item, Gap) else self.source.error

    @property
    def is_over(self) -> bool:
        """Whether everything that could be read was taken."""
        if isinstance(self.source.peek(), EventBlock) or isinstance(self.error, UnavailableError):
            return False
        return self.source.has_ended or self.error is not None


class Follower:
    """`news` is set when something came, or ended."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self._stores, self._scope, self._stream = stores, scope, stream
        self._purpose = f"worker {next(_ids)}"
        self._followed: dict[int, Followed] = {}
        self.news = asyncio.Event()

    def follow(self, reaches: Iterable[SegmentProgress], ends: Mapping[int, int] | None = None) -> None:
        """Follow these, from where they are, and no others; those that are followed go on. ends: up to where, of some
        segments; a source that ends there is over."""
        ends = ends or {}
        wanted = {one.segment_id: one for one in reaches if one.reached < ends.get(one.segment_id, math.inf)}
        for segment_id in self._followed.keys() - wanted.keys():
            self.leave(segment_id)
        for segment_id, reach in wanted.items():
            if segment_id in self._followed:
                continue
            source = SegmentSource(
                self._stores,
                NamedRange(segment_name(self._scope, self._stream, reach.segment_id), reach.low, reach.high),
                reach.reached,
                ends.get(segment_id),
                purpose=self._purpose,
                read_ahead_bytes=share_bytes(len(wanted)),
                news=self.news.set,
            )
            self._followed[segment_id] = Followed(reach, source, reach.order)

    def leave(self, segment_id: int) -> None:
        """Let go of a segment, and of what was read ahead in it."""
        found = self._followed.pop(segment_id, None)
        if found is not None:
            found.source.close()

    def close(self) -> None:
        for segment_id in list(self._followed):
            self.leave(segment_id)
        self._stores.release(self._purpose)

    def all(self) -> Iterable[Followed]:
        return self._followed.values()

    def over(self) -> Iterator[Followed]:
        """Those that ended, and of which all was taken."""
        return (one for one in list(self._followed.values()) if one.is_over)

    def take(self, most_bytes: int, most_events: int) -> int:
        """Add what came to what is taken of each segment, in turns, up to about so much; how many bytes it is."""
        size = events = 0
        for one in self._followed.values():
            one.source.try_again()
        due = [one for one in self._followed.values() if isinstance(one.source.peek(), EventBlock)]
        while due and size < most_bytes and events < most_events:
            for one in list(due):
                block = one.source.take()
                one.taken.append(block)
                one.source.given = block.offset + block.size_bytes
                size += block.size_bytes
                events += len(block)
                if not isinstance(one.source.peek(), EventBlock):
                    due.remove(one)
        return size

    def taken(self) -> list[tuple[Followed, list[EventBlock]]]:
        """What was taken since the last call."""
        found = [(one, one.taken) for one in self._followed.values() if one.taken]
        for one, _ in found:
            one.taken = []
        return found


def gap_end(error: NadiError) -> int | None:
    """Where to go on after that; None if the whole segment is gone. What isn't a gap is raised."""
    if isinstance(error, EpochGoneError):
        raise error
    if isinstance(error, SegmentGoneError):
        return None
    if isinstance(error, TruncatedError):
        return error.start_offset
    if isinstance(error, DamagedDataError):
        return error.end_offset
    raise error


def cut_of(reaches: Iterable[SegmentProgress]) -> dict[int, int]:
    """The positions of the stream cut before which all is done, given how far each segment is."""
    left: list[SegmentProgress] = []
    for reach in sorted(reaches, key=lambda one: one.segment_id):
        if not reach.is_done or any(share_keys(reach, older) for older in left):
            left.append(reach)
    keys: dict[int, float] = {}
    for piece in oldest_by_key(reach.range for reach in left):
        keys[piece.segment_id] = keys.get(piece.segment_id, 0.0) + piece.high - piece.low
    return {
        reach.segment_id: reach.reached
        if abs(keys[reach.segment_id] - (reach.high - reach.low)) < _NO_KEYS  # all are its own
        else WAITING
        for reach in left
        if reach.segment_id in keys
    }


_NO_KEYS = 1e-15  # the sum of a segment's parts may differ by less than any key's


async def reaches(stores: SegmentStores, scope: str, cut: StreamCut) -> list[SegmentProgress]:
    """The segments of a cut, as they are while all before it is done."""
    return [
        SegmentProgress(one.segment_id, one.low, one.high, max(cut.positions[one.segment_id], 0))
        for one in await segment_ranges(stores, scope, cut.stream, cut)
    ]


async def behind_bytes(manager: StreamManager, reached: StreamCut) -> int | None:
    """How many bytes lie from a cut to its stream's tail; None if that can't be told, as some of them are gone."""
    cuts = manager.cuts(reached.scope, reached.stream)
    if not reached.positions:
        return 0  # a sealed stream, to its end
    try:
        return await cuts.bytes_between(reached, await cuts.tail())
    except (InvalidStreamCutError, NotFoundError, StreamRecreatedError, TruncatedError):
        return None


async def check_same(stores: SegmentStores, scope: str, stream: str, segments: Iterable[int], remedy: str) -> None:
    """Raise StreamRemadeError, with what to do, or StreamNotFoundError, if the stream isn't the one that had these
    segments."""
    newest = max(segments, default=None)
    error = None if newest is None else await what_became_of(stores, segment_name(scope, stream, newest))
    if isinstance(error, StreamRecreatedError):
        raise StreamRecreatedError(scope, stream, remedy) from error
    if isinstance(error, StreamNotFoundError):
        raise error
