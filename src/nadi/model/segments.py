"""Segments and the algebra of their key ranges: overlaps, gaps, and the oldest segment of each key.

A segment takes keys with low ≤ position < high of the key space [0, 1). Its id starts with its epoch, and the segments
of an epoch tile the key space. So segments created in one epoch never share a key, and of two segments that share a
key, the older has the smaller id.

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
from typing import Protocol, TypeVar

from nadi.display import Displayed
from nadi.errors import InvalidStreamCutError
from nadi.model.keyspace import key_position
from nadi.naming import segment_epoch

KeyRange = tuple[float, float]


class HasKeyRange(Protocol):
    """An object with a key range: low ≤ position < high."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


AnyKeys = TypeVar("AnyKeys", bound=HasKeyRange)


class HasSegmentKeys(HasKeyRange, Protocol):
    """An object with a key range and its segment's id."""

    @property
    def segment_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SegmentRange(Displayed):
    """A segment's id and key range: low ≤ position < high."""

    segment_id: int
    low: float
    high: float

    def takes_any(self, routing_keys: Iterable[str]) -> bool:
        """Return whether any of these keys falls in the segment."""
        return any(takes(self, key_position(key)) for key in routing_keys)


Piece = tuple[KeyRange, SegmentRange, SegmentRange]  # a key range and its segment in each of two coverings


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment and the ids of all its predecessors."""

    segment: SegmentRange
    predecessors: tuple[int, ...]


def takes(keys: HasKeyRange, position: float) -> bool:
    """Return whether these keys include `position`."""
    return keys.low <= position < keys.high


def share_keys(first: HasKeyRange, second: HasKeyRange) -> bool:
    """Return whether the two ranges overlap."""
    return first.low < second.high and second.low < first.high


def common_keys(first: HasKeyRange, second: HasKeyRange) -> KeyRange | None:
    """Return the overlap of two ranges, or None."""
    low, high = max(first.low, second.low), min(first.high, second.high)
    return (low, high) if low < high else None


def pieces_of_both(ours: Sequence[SegmentRange], theirs: Sequence[SegmentRange]) -> Iterator[Piece]:
    """Intersect two coverings of the key space; yield each common range with its segment in both.

    Each covering is disjoint and in order, as `oldest_by_key` returns it.

    >>> first, second = [SegmentRange(7, 0.0, 1.0)], [SegmentRange(8, 0.0, 0.5), SegmentRange(9, 0.75, 1.0)]
    >>> [(keys, a.segment_id, b.segment_id) for keys, a, b in pieces_of_both(first, second)]
    [((0.0, 0.5), 7, 8), ((0.75, 1.0), 7, 9)]
    """
    i = j = 0
    while i < len(ours) and j < len(theirs):
        a, b = ours[i], theirs[j]
        if keys := common_keys(a, b):
            yield keys, a, b
        i += a.high <= b.high
        j += b.high <= a.high


def gaps(taken: Iterable[HasKeyRange]) -> list[KeyRange]:
    """Return the ranges of the key space that aren't taken."""
    open_ranges, reached = [], 0.0
    for piece in sorted(taken, key=lambda piece: piece.low):
        if piece.low > reached:
            open_ranges.append((reached, piece.low))
        reached = max(reached, piece.high)
    if reached < 1.0:
        open_ranges.append((reached, 1.0))
    return open_ranges


def tiles(segments: Sequence[HasKeyRange]) -> bool:
    """Return whether these ordered segments take each key exactly once; borders are compared bit for bit."""
    if not segments or segments[0].low != 0.0 or segments[-1].high != 1.0:
        return False
    borders = all(a.high == b.low for a, b in itertools.pairwise(segments))
    return borders and all(piece.low < piece.high for piece in segments)


def joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the ranges with touching neighbours merged; borders are compared bit for bit."""
    blocks: list[KeyRange] = []
    for low, high in sorted(ranges):
        if blocks and blocks[-1][1] == low:
            blocks[-1] = (blocks[-1][0], high)
        else:
            blocks.append((low, high))
    return blocks


def oldest_by_key(segments: Iterable[HasSegmentKeys]) -> list[SegmentRange]:
    """Return the oldest segment of each key, as disjoint pieces in key order."""
    starts = sorted((piece.low, piece.high, piece.segment_id) for piece in segments)
    borders = sorted({low for low, _, _ in starts} | {high for _, high, _ in starts})
    pieces: list[SegmentRange] = []
    under_way: list[tuple[int, float]] = []  # a heap of (segment id, high)
    following = 0
    for low, high in itertools.pairwise(borders):
        while following < len(starts) and starts[following][0] <= low:
            heapq.heappush(under_way, (starts[following][2], starts[following][1]))
            following += 1
        while under_way and under_way[0][1] <= low:
            heapq.heappop(under_way)
        if under_way:
            pieces.append(SegmentRange(under_way[0][0], low, high))
    return pieces


def ids_under(pieces: Sequence[SegmentRange], keys: HasKeyRange) -> Iterator[int]:
    """Yield the ids of the disjoint, ordered pieces (see `oldest_by_key`) that overlap `keys`."""
    for piece in overlapping(pieces, keys):
        yield piece.segment_id


def overlapping(pieces: Sequence[AnyKeys], keys: HasKeyRange) -> Iterator[AnyKeys]:
    """Yield the disjoint, ordered pieces that overlap `keys`, without visiting the others."""
    first = bisect.bisect_right(pieces, keys.low, key=lambda piece: piece.high)
    for at in range(first, len(pieces)):  # islice would step through all skipped pieces
        piece = pieces[at]
        if piece.low >= keys.high:
            break
        yield piece


class SegmentsByKey:
    """An index of segments of any epochs by shared keys, efficient with thousands of segments.

    keys: the only positions of the key space that count; None means all.
    """

    def __init__(self, segments: Iterable[SegmentRange] = (), keys: Sequence[float] | None = None) -> None:
        self._keys = keys
        self._epochs: dict[int, list[SegmentRange]] = {}  # by epoch, each in key order
        for piece in segments:
            self.add(piece)

    def add(self, piece: SegmentRange) -> None:
        """Add a segment; InvalidStreamCutError if another segment of its epoch shares keys with it."""
        epoch = self._epochs.setdefault(segment_epoch(piece.segment_id), [])
        at = bisect.bisect_left(epoch, piece.low, key=lambda other: other.low)
        if any(share_keys(other, piece) for other in epoch[max(at - 1, 0) : at + 1]):
            raise InvalidStreamCutError("two segments of one epoch share keys: they don't belong to the same stream")
        epoch.insert(at, piece)

    def remove(self, piece: SegmentRange) -> None:
        """Remove a segment."""
        epoch = self._epochs[segment_epoch(piece.segment_id)]
        del epoch[bisect.bisect_left(epoch, piece.low, key=lambda other: other.low)]
        if not epoch:
            del self._epochs[segment_epoch(piece.segment_id)]

    def older(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Return older segments that share keys with this one."""
        own = segment_epoch(piece.segment_id)
        return self._sharing(piece, (segments for epoch, segments in self._epochs.items() if epoch < own))

    def newer(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Return newer segments that share keys with this one."""
        own = segment_epoch(piece.segment_id)
        return self._sharing(piece, (segments for epoch, segments in self._epochs.items() if epoch > own))

    def sharing(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Return segments of any epoch that share keys with this one."""
        return self._sharing(piece, self._epochs.values())

    def share(self, first: HasKeyRange, second: HasKeyRange) -> bool:
        """Return whether the ranges share a key that counts."""
        common = common_keys(first, second)
        return common is not None and (self._keys is None or has_key(self._keys, *common))

    def is_oldest(self, piece: SegmentRange) -> bool:
        """Return whether no older segment shares any of its keys."""
        return next(self.older(piece), None) is None

    def _sharing(self, piece: SegmentRange, epochs: Iterable[list[SegmentRange]]) -> Iterator[SegmentRange]:
        for segments in epochs:
            for other in overlapping(segments, piece):
                if self._keys is None or self.share(piece, other):
                    yield other


def has_key(keys: Sequence[float], low: float, high: float) -> bool:
    """Return whether any of the sorted keys is in [low, high)."""
    at = bisect.bisect_left(keys, low)
    return at < len(keys) and keys[at] < high
