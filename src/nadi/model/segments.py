"""Segments by the keys they take, and the algebra of key ranges: what they share, leave open, and which is oldest.

A segment takes low ≤ position < high of the key space [0, 1). Its id starts with the epoch that created it, and the
segments of an epoch tile the key space: two that one epoch created never share a key, and of two segments that
share a key, the one with the smaller id is older.

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
    """Whatever takes keys: low ≤ position < high."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


AnyKeys = TypeVar("AnyKeys", bound=HasKeyRange)


class HasSegmentKeys(HasKeyRange, Protocol):
    """HasKeyRange with the id of the segment that takes them."""

    @property
    def segment_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SegmentRange(Displayed):
    """A segment and the keys it takes: low ≤ position < high of the key space."""

    segment_id: int
    low: float
    high: float

    def takes_any(self, routing_keys: Iterable[str]) -> bool:
        """Return whether any of these keys falls in the segment."""
        return any(takes(self, key_position(key)) for key in routing_keys)


Piece = tuple[KeyRange, SegmentRange, SegmentRange]  # of the key space, and the segment that takes it on either side


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows others, with the ids of all of those."""

    segment: SegmentRange
    predecessors: tuple[int, ...]


def takes(one: HasKeyRange, position: float) -> bool:
    """Return whether these keys include `position`."""
    return one.low <= position < one.high


def share_keys(one: HasKeyRange, other: HasKeyRange) -> bool:
    """Return whether any key is taken by both."""
    return one.low < other.high and other.low < one.high


def common_keys(one: HasKeyRange, other: HasKeyRange) -> KeyRange | None:
    """Return the keys that both take, or None."""
    low, high = max(one.low, other.low), min(one.high, other.high)
    return (low, high) if low < high else None


def pieces_of_both(ours: Sequence[SegmentRange], theirs: Sequence[SegmentRange]) -> Iterator[Piece]:
    """The key space cut at all borders of two coverings, where both take it, with the segments that take each piece.

    Each covering is disjoint and in order, as `oldest_by_key` returns it.

    >>> one, two = [SegmentRange(7, 0.0, 1.0)], [SegmentRange(8, 0.0, 0.5), SegmentRange(9, 0.75, 1.0)]
    >>> [(keys, a.segment_id, b.segment_id) for keys, a, b in pieces_of_both(one, two)]
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
    """Return the parts of the key space that nothing takes."""
    found, reached = [], 0.0
    for piece in sorted(taken, key=lambda piece: piece.low):
        if piece.low > reached:
            found.append((reached, piece.low))
        reached = max(reached, piece.high)
    if reached < 1.0:
        found.append((reached, 1.0))
    return found


def tiles(segments: Sequence[HasKeyRange]) -> bool:
    """Return whether these, in order, take each key exactly once; borders are compared bit for bit."""
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
    """Return for each key the oldest of the segments that take it, as disjoint pieces in key order."""
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


def ids_under(pieces: Sequence[SegmentRange], keys: HasKeyRange) -> Iterator[int]:
    """Of disjoint pieces in order, as from `oldest_by_key`, the ids of those that share keys with `keys`."""
    for piece in overlapping(pieces, keys):
        yield piece.segment_id


def overlapping(pieces: Sequence[AnyKeys], keys: HasKeyRange) -> Iterator[AnyKeys]:
    """Of disjoint pieces in order, those that share keys with `keys`; the others aren't visited."""
    first = bisect.bisect_right(pieces, keys.low, key=lambda piece: piece.high)
    for at in range(first, len(pieces)):  # not islice, which steps through all that it skips
        piece = pieces[at]
        if piece.low >= keys.high:
            break
        yield piece


class SegmentsByKey:
    """Segments of any epochs, found by the keys they share; adding, removing and finding stay cheap with thousands.

    keys: None, or the only places of the key space that count.
    """

    def __init__(self, segments: Iterable[SegmentRange] = (), keys: Sequence[float] | None = None) -> None:
        self._keys = keys
        self._epochs: dict[int, list[SegmentRange]] = {}  # of each epoch in order of keys
        for piece in segments:
            self.add(piece)

    def add(self, piece: SegmentRange) -> None:
        """Add a segment; InvalidStreamCutError if another of its epoch shares keys with it: no stream ever had both."""
        epoch = self._epochs.setdefault(segment_epoch(piece.segment_id), [])
        at = bisect.bisect_left(epoch, piece.low, key=lambda other: other.low)
        if any(share_keys(other, piece) for other in epoch[max(at - 1, 0) : at + 1]):
            raise InvalidStreamCutError("two segments of one epoch share keys: they are not of one stream")
        epoch.insert(at, piece)

    def remove(self, piece: SegmentRange) -> None:
        """Remove a segment that was added."""
        epoch = self._epochs[segment_epoch(piece.segment_id)]
        del epoch[bisect.bisect_left(epoch, piece.low, key=lambda other: other.low)]
        if not epoch:
            del self._epochs[segment_epoch(piece.segment_id)]

    def older(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Segments that share keys with this one and come before it."""
        own = segment_epoch(piece.segment_id)
        return self._sharing(piece, (segments for epoch, segments in self._epochs.items() if epoch < own))

    def newer(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Segments that share keys with this one and come after it."""
        own = segment_epoch(piece.segment_id)
        return self._sharing(piece, (segments for epoch, segments in self._epochs.items() if epoch > own))

    def sharing(self, piece: SegmentRange) -> Iterator[SegmentRange]:
        """Segments that share keys with this one, of any epoch."""
        return self._sharing(piece, self._epochs.values())

    def share(self, one: HasKeyRange, other: HasKeyRange) -> bool:
        """Return whether both take some key that counts."""
        common = common_keys(one, other)
        return common is not None and (self._keys is None or has_key(self._keys, *common))

    def is_oldest(self, piece: SegmentRange) -> bool:
        """Return whether nothing comes before this segment under any of its keys."""
        return next(self.older(piece), None) is None

    def _sharing(self, piece: SegmentRange, epochs: Iterable[list[SegmentRange]]) -> Iterator[SegmentRange]:
        for segments in epochs:
            for other in overlapping(segments, piece):
                if self._keys is None or self.share(piece, other):
                    yield other


def has_key(keys: Sequence[float], low: float, high: float) -> bool:
    """Return whether any of the places, given in order, lies in [low, high)."""
    at = bisect.bisect_left(keys, low)
    return at < len(keys) and keys[at] < high
