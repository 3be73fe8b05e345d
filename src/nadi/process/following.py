"""Segments that a worker follows, each from its own position: blocks as they come, gaps and ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from nadi.client.reading.boundary import segment_ranges
from nadi.client.reading.read_ahead import Gap, SegmentSource, share_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    EpochGoneError,
    NadiError,
    SegmentGoneError,
    TruncatedError,
    UnavailableError,
)
from nadi.model.event import EventBlock
from nadi.model.frontier import WAITING
from nadi.model.readergroup import NamedRange
from nadi.model.segments import SegmentRange, oldest_by_key, share_keys
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name

_ids = itertools.count()


class OvertakenError(Exception):
    """Another worker has changed that meanwhile: look again."""


class Reach(msgspec.Struct, frozen=True, array_like=True):
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


@dataclass(slots=True)
class Followed:
    """order: of the last event that is in a shard."""

    reach: Reach
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

    def follow(self, reaches: Iterable[Reach]) -> None:
        """Follow these, from where they are, and no others; those that are followed go on."""
        wanted = {reach.segment_id: reach for reach in reaches}
        for segment_id in self._followed.keys() - wanted.keys():
            self.leave(segment_id)
        for segment_id, reach in wanted.items():
            if segment_id in self._followed:
                continue
            source = SegmentSource(
                self._stores,
                NamedRange(segment_name(self._scope, self._stream, reach.segment_id), reach.low, reach.high),
                reach.reached,
                None,
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


def cut_of(reaches: Iterable[Reach]) -> dict[int, int]:
    """The positions of the stream cut before which all is done, given how far each segment is."""
    left: list[Reach] = []
    for reach in sorted(reaches, key=lambda one: one.segment_id):
        if not reach.is_done or any(share_keys(reach, older) for older in left):
            left.append(reach)
    keys: dict[int, float] = {}
    for piece in oldest_by_key(reach.range for reach in left):
        keys[piece.segment_id] = keys.get(piece.segment_id, 0.0) + piece.high - piece.low
    return {
        reach.segment_id: reach.reached if _is_all(keys[reach.segment_id], reach) else WAITING
        for reach in left
        if reach.segment_id in keys
    }


def _is_all(keys: float, reach: Reach) -> bool:
    return abs(keys - (reach.high - reach.low)) < _NO_KEYS


_NO_KEYS = 1e-15  # the sum of a segment's parts may differ by less than any key's


async def reaches(stores: SegmentStores, scope: str, cut: StreamCut) -> list[Reach]:
    """The segments of a cut, as they are while all before it is done."""
    return [
        Reach(one.segment_id, one.low, one.high, max(cut.positions[one.segment_id], 0))
        for one in await segment_ranges(stores, scope, cut.stream, cut)
    ]
