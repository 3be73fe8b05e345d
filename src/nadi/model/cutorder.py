"""The order of the stream cuts of one stream: which comes first, and the earliest and latest of two.

A segment's id begins with its epoch, so of two segments that share a key the one with the smaller id is
the older, and the pair (segment id, offset) orders places on one key. A cut stands, over each key, at one
such place; over keys of a segment that it has not reached (offset -1) it waits before that segment.

The cuts must be settled: none may stand at the end of a sealed segment that has successors, for that is the
same boundary as the successors' begin. `nadi.client.places.cuts` settles them.

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

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

from nadi.errors import InvalidStreamCutError
from nadi.model.segments import KeyRange, SegmentRange, gaps, oldest_by_key, share_keys
from nadi.model.streamcut import StreamCut

KeyRanges = Mapping[int, KeyRange]  # by segment id
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


def _whole(cut: StreamCut, ranges: KeyRanges) -> list[SegmentRange]:
    """Where the cut stands, over all keys."""
    found = _standing(cut.positions, ranges)
    left_out = gaps(found)
    if left_out:
        raise InvalidStreamCutError(f"the cut says nothing of keys from {left_out[0][0]} on: it is no boundary")
    return found


def _standing(positions: Mapping[int, int], ranges: KeyRanges) -> list[SegmentRange]:
    """Where positions stand over the keys that they have: in the oldest segment of each."""
    return oldest_by_key(SegmentRange(segment, *ranges[segment]) for segment in positions)


def _shared(first: Mapping[int, int], second: Mapping[int, int], ranges: KeyRanges) -> Iterator[tuple[_Place, _Place]]:
    """Where both stand, over each piece of the key space that both have."""
    ours, theirs = _standing(first, ranges), _standing(second, ranges)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        a, b = ours[i], theirs[j]
        if share_keys(a, b):
            yield (a.segment_id, first[a.segment_id]), (b.segment_id, second[b.segment_id])
        i += a.high <= b.high
        j += b.high <= a.high


def _together(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> Iterator[tuple[float, float, _Place, _Place]]:
    """Over each piece of the key space where the two cuts stand."""
    if (first.scope, first.stream) != (second.scope, second.stream):
        raise InvalidStreamCutError(
            f"cuts of two streams have no order: {first.scope}/{first.stream} and {second.scope}/{second.stream}"
        )
    ours, theirs = iter(_whole(first, ranges)), iter(_whole(second, ranges))
    a, b = next(ours), next(theirs)
    low = 0.0
    while True:
        high = min(a.high, b.high)
        yield low, high, (a.segment_id, first.positions[a.segment_id]), (b.segment_id, second.positions[b.segment_id])
        if high == 1.0:
            return
        low = high
        if a.high == high:
            a = next(ours)
        if b.high == high:
            b = next(theirs)


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
