"""The order of the stream cuts of one stream: which comes first, and the earliest and latest of two.

A segment's id begins with its epoch, so of two segments that share a key the one with the smaller id is
the older, and the pair (segment id, offset) orders places on one key. A cut stands, over each key, at one
such place; over keys of a segment that it has not reached (offset -1) it waits before that segment.

The cuts must be settled: none may stand at the end of a sealed segment that has successors, for that is the
same boundary as the successors' begin. `nadi.client.cuts` settles them.

>>> halves = {0: (0.0, 0.5), 1: (0.5, 1.0)}
>>> a, b = StreamCut("sc", "st", {0: 10, 1: 20}), StreamCut("sc", "st", {0: 30, 1: 5})
>>> compare(a, b, halves)
<CutOrder.OVERLAPPING: 'overlapping'>
>>> print(earliest(a, b, halves))
sc/st: 0=10, 1=5
>>> print(latest(a, b, halves))
sc/st: 0=30, 1=20
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise

from nadi.errors import InvalidStreamCutError
from nadi.model.streamcut import StreamCut

KeyRanges = Mapping[int, tuple[float, float]]  # by segment id
_Place = tuple[int, int]  # (segment id, offset)


class CutOrder(Enum):
    """How the first of two cuts lies to the second."""

    BEFORE = "before"
    EQUAL = "equal"
    AFTER = "after"
    OVERLAPPING = "overlapping"  # before it in one segment and after it in another

    @property
    def is_at_or_after(self) -> bool:
        """No part of it lies before."""
        return self in (CutOrder.EQUAL, CutOrder.AFTER)

    @property
    def is_at_or_before(self) -> bool:
        """No part of it lies after."""
        return self in (CutOrder.EQUAL, CutOrder.BEFORE)


def compare(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> CutOrder:
    """How `first` lies to `second`; `ranges` has the segments of both."""
    return _order((a, b) for _, _, a, b in _together(first, second, ranges))


def compare_shared(first: Mapping[int, int], second: Mapping[int, int], ranges: KeyRanges) -> CutOrder:
    """How `first` lies to `second` over the keys that both have; EQUAL if there are none. Offsets by segment."""
    return _order(_shared(first, second, ranges))


def _order(pairs: Iterable[tuple[_Place, _Place]]) -> CutOrder:
    before = after = False
    for a, b in pairs:
        before |= a < b
        after |= a > b
    if before and after:
        return CutOrder.OVERLAPPING
    if before:
        return CutOrder.BEFORE
    return CutOrder.AFTER if after else CutOrder.EQUAL


def earliest(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> StreamCut:
    """The cut before which lies just what lies before both."""
    return _assembled(first, second, ranges, min)


def latest(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> StreamCut:
    """The cut before which lies all that lies before either."""
    return _assembled(first, second, ranges, max)


def places(cut: StreamCut, ranges: KeyRanges) -> list[tuple[float, float, int]]:
    """Where the cut stands, as (low, high, segment id) that tile the key space: over each key the oldest of its
    segments, for a later one waits until that is read. InvalidStreamCutError if a key has none."""
    found = _pieces(cut.positions, ranges)
    reached = 0.0
    for low, high, _ in found:
        if low != reached:
            break
        reached = high
    if reached != 1.0:
        raise InvalidStreamCutError(f"the cut says nothing of keys from {reached} on: it is no boundary of the stream")
    return found


def _pieces(positions: Mapping[int, int], ranges: KeyRanges) -> list[tuple[float, float, int]]:
    """Where positions stand over the keys that they have, as disjoint (low, high, segment id) by key."""
    starts = sorted((*ranges[segment], segment) for segment in positions)
    borders = sorted({low for low, _, _ in starts} | {high for _, high, _ in starts})
    found: list[tuple[float, float, int]] = []
    under_way: list[tuple[int, float]] = []  # a heap of (segment id, high)
    following = 0
    for low, high in pairwise(borders):
        while following < len(starts) and starts[following][0] <= low:
            heapq.heappush(under_way, (starts[following][2], starts[following][1]))
            following += 1
        while under_way and under_way[0][1] <= low:
            heapq.heappop(under_way)
        if under_way:
            found.append((low, high, under_way[0][0]))
    return found


def _shared(first: Mapping[int, int], second: Mapping[int, int], ranges: KeyRanges) -> Iterator[tuple[_Place, _Place]]:
    """Where both stand, over each piece of the key space that both have."""
    ours, theirs = _pieces(first, ranges), _pieces(second, ranges)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        (low_a, high_a, a), (low_b, high_b, b) = ours[i], theirs[j]
        if max(low_a, low_b) < min(high_a, high_b):
            yield (a, first[a]), (b, second[b])
        if high_a <= high_b:
            i += 1
        if high_b <= high_a:
            j += 1


def _together(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> Iterator[tuple[float, float, _Place, _Place]]:
    """Over each piece of the key space where the two cuts stand."""
    if (first.scope, first.stream) != (second.scope, second.stream):
        raise InvalidStreamCutError(
            f"cuts of two streams have no order: {first.scope}/{first.stream} and {second.scope}/{second.stream}"
        )
    ours, theirs = iter(places(first, ranges)), iter(places(second, ranges))
    _, high_a, a = next(ours)
    _, high_b, b = next(theirs)
    low = 0.0
    while True:
        high = min(high_a, high_b)
        yield low, high, (a, first.positions[a]), (b, second.positions[b])
        if high == 1.0:
            return
        low = high
        if high_a == high:
            _, high_a, a = next(ours)
        if high_b == high:
            _, high_b, b = next(theirs)


def _assembled(
    first: StreamCut, second: StreamCut, ranges: KeyRanges, choose: Callable[[_Place, _Place], _Place]
) -> StreamCut:
    chosen: dict[_Place, list[tuple[float, float]]] = {}
    for low, high, a, b in _together(first, second, ranges):
        pieces = chosen.setdefault(choose(a, b), [])
        if pieces and pieces[-1][1] == low:
            pieces[-1] = (pieces[-1][0], high)
        else:
            pieces.append((low, high))
    positions: dict[int, int] = {}
    for (segment, offset), pieces in chosen.items():
        is_whole = pieces == [ranges[segment]]
        if segment in positions or (offset >= 0 and not is_whole):
            raise InvalidStreamCutError(
                f"one of the cuts has read segment {segment} without all before it: it is no boundary of the stream"
            )
        positions[segment] = max(offset, 0) if is_whole else offset
    return StreamCut(first.scope, first.stream, positions)
