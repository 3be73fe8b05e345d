"""Segments by the keys they take, and the algebra of key ranges: which share keys, what they leave open, who is oldest.

A segment takes low ≤ position < high of the key space [0, 1). Its id begins with the epoch that made it, and the
segments of an epoch tile the key space: two that one epoch made never share a key, and of two that share
one the smaller id is the older.

>>> left, right, both = SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0), SegmentRange((1 << 32) | 2, 0.0, 1.0)
>>> share_keys(left, both), share_keys(left, right), gaps([left])
(True, False, [(0.5, 1.0)])
>>> [(piece.segment_id, piece.low, piece.high) for piece in oldest_by_key([right, both])]
[(4294967298, 0.0, 0.5), (1, 0.5, 1.0)]
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from nadi.errors import InvalidStreamCutError
from nadi.model.keyspace import key_position
from nadi.naming import segment_epoch

KeyRange = tuple[float, float]


class Keys(Protocol):
    """Whatever takes keys: low ≤ position < high."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Segment(Keys, Protocol):
    """Keys with the id of the segment that takes them."""

    @property
    def segment_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment and the keys it takes: low ≤ position < high of the key space."""

    segment_id: int
    low: float
    high: float

    def takes_any(self, routing_keys: Iterable[str]) -> bool:
        """Whether events of one of these keys are in it, if there are any."""
        return any(self.low <= key_position(key) < self.high for key in routing_keys)


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows others, and the ids of all those."""

    segment: SegmentRange
    predecessors: tuple[int, ...]


def share_keys(one: Keys, other: Keys) -> bool:
    """Whether there is a key that both take."""
    return one.low < other.high and other.low < one.high


def gaps(taken: Iterable[Keys]) -> list[KeyRange]:
    """The parts of the key space that nobody takes."""
    found, reached = [], 0.0
    for piece in sorted(taken, key=lambda piece: piece.low):
        if piece.low > reached:
            found.append((reached, piece.low))
        reached = max(reached, piece.high)
    if reached < 1.0:
        found.append((reached, 1.0))
    return found


def tiles(segments: Sequence[Keys]) -> bool:
    """Whether these, in order, take each key once; borders are compared bit for bit."""
    if not segments or segments[0].low != 0.0 or segments[-1].high != 1.0:
        return False
    borders = all(a.high == b.low for a, b in itertools.pairwise(segments))
    return borders and all(piece.low < piece.high for piece in segments)


def joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Neighbours made one as far as they touch; borders are compared bit for bit."""
    blocks: list[KeyRange] = []
    for low, high in sorted(ranges):
        if blocks and blocks[-1][1] == low:
            blocks[-1] = (blocks[-1][0], high)
        else:
            blocks.append((low, high))
    return blocks


def oldest_by_key(segments: Iterable[Segment]) -> list[SegmentRange]:
    """Over each key the oldest of the segments that take it, as disjoint pieces in order of the keys."""
    starts = sorted((piece.low, piece.high, piece.segment_id) for piece in segments)
    borders = sorted({low for low, _, _ in starts} | {high for _, high, _ in starts})
    found: list[SegmentRange] = []
    under_way: list[tuple[int, float]] = []  # a heap of (segment id, high)
    following = 0
    for low, high in itertools.pairwise(borders):
        while following < len(starts) and starts[following][0] <= low:
            heapq.heappush(under_way, (starts[following][2], starts[following][1]))
            following += 1
        while under_way and under_way[0][1] <= low:
            heapq.heappop(under_way)
        if under_way:
            found.append(SegmentRange(under_way[0][0], low, high))
    return found


def ids_under(pieces: Sequence[SegmentRange], keys: Keys) -> Iterator[int]:
    """Of disjoint pieces in order, as `oldest_by_key` gives them, the ids of those that share keys with `keys`."""
    for piece in _overlapping(pieces, keys):
        yield piece.segment_id


def _overlapping(pieces: Sequence[SegmentRange], keys: Keys) -> Iterator[SegmentRange]:
    """Of disjoint pieces in order those that share keys with `keys`; the others are not looked at."""
    first = bisect.bisect_right(pieces, keys.low, key=lambda piece: piece.high)
    for at in range(first, len(pieces)):  # not islice, which goes through all that it leaves out
        piece = pieces[at]
        if piece.low >= keys.high:
            break
        yield piece


class SegmentsByKey:
    """Segments of any epochs, found by the keys they share; adding, taking out and finding cost little with thousands.

    keys: None, or the only places of the key space that count.
    """

    def __init__(self, segments: Iterable[SegmentRange] = (), keys: Sequence[float] | None = None) -> None:
        self._keys = keys
        self._epochs: dict[int, list[SegmentRange]] = {}  # of each epoch in order of keys
        for piece in segments:
            self.add(piece)

    def add(self, piece: SegmentRange) -> None:
        """InvalidStreamCutError if another of its epoch has some of its keys: no stream ever had both."""
        epoch = self._epochs.setdefault(segment_epoch(piece.segment_id), [])
        at = bisect.bisect_left(epoch, piece.low, key=lambda other: other.low)
        if any(share_keys(other, piece) for other in epoch[max(at - 1, 0) : at + 1]):
            raise InvalidStreamCutError("two segments of one epoch share keys: they are not of one stream")
        epoch.insert(at, piece)

    def remove(self, piece: SegmentRange) -> None:
        """Take out what was added."""
        epoch = self._epochs[segment_epoch(piece.segment_id)]
        del epoch[bisect.bisect_left(epoch, piece.low, key=lambda other: other.low)]
        if not epoch:
            del self._epochs[segment_epoch(piece.segment_id)]

    def older(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Those that hold keys of this segment and come before it."""
        own = segment_epoch(piece.segment_id)
        return self._sharing(piece, (segments for epoch, segments in self._epochs.items() if epoch < own))

    def newer(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Those that hold keys of this segment and come after it."""
        own = segment_epoch(piece.segment_id)
        return self._sharing(piece, (segments for epoch, segments in self._epochs.items() if epoch > own))

    def share(self, one: Keys, other: Keys) -> bool:
        """Whether there is a key that both take, and that counts."""
        low, high = max(one.low, other.low), min(one.high, other.high)
        return low < high and (self._keys is None or has_key(self._keys, low, high))

    def is_oldest(self, piece: SegmentRange) -> bool:
        """Whether nothing comes before this segment under any of its keys."""
        return next(self.older(piece), None) is None

    def _sharing(self, piece: SegmentRange, epochs: Iterable[list[SegmentRange]]) -> Iterator[SegmentRange]:
        for segments in epochs:
            for other in _overlapping(segments, piece):
                if self._keys is None or self.share(piece, other):
                    yield other


def has_key(keys: Sequence[float], low: float, high: float) -> bool:
    """Whether one of the places, which are in order, lies in [low, high)."""
    at = bisect.bisect_left(keys, low)
    return at < len(keys) and keys[at] < high
