"""The order of the stream cuts of one stream: which comes first, and the earliest and latest of two.

A segment's id starts with its epoch, so of two segments that share a key the one with the smaller id is
older, and the pair (segment id, offset) orders places on one key. For each key, a cut stands at one such
place; over keys of a segment that it has not reached (offset -1) it waits before that segment.

The cuts must be settled: none may stand at the end of a sealed segment that has successors, as that is the
same boundary as the successors' start. `nadi.client.stream_cuts.cuts` settles them.

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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from nadi.errors import InvalidStreamCutError
from nadi.model.segments import KeyRange, SegmentRange, gaps, joined, oldest_by_key, pieces_of_both
from nadi.model.streamcut import StreamCut

KeyRanges = Mapping[int, KeyRange]  # by segment id
_Place = tuple[int, int]  # (segment id, offset)
_Standing = tuple[KeyRange, _Place, _Place]  # of two cuts, over a piece of the key space


class CutOrder(Enum):
    """How the first of two cuts lies relative to the second."""

    BEFORE = "before"
    EQUAL = "equal"
    AFTER = "after"
    OVERLAPPING = "overlapping"  # before it in one segment and after it in another

    @property
    def is_at_or_after(self) -> bool:
        """Whether no part of it lies before."""
        return self in (CutOrder.EQUAL, CutOrder.AFTER)

    @property
    def is_at_or_before(self) -> bool:
        """Whether no part of it lies after."""
        return self in (CutOrder.EQUAL, CutOrder.BEFORE)


def compare(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> CutOrder:
    """Return how `first` lies relative to `second`; `ranges` has the segments of both."""
    return _order(_whole_both(first, second, ranges))


def compare_shared(first: Mapping[int, int], second: Mapping[int, int], ranges: KeyRanges) -> CutOrder:
    """Compare offsets by segment over the keys that both cuts have; EQUAL if they share none."""
    return _order(_both(first, second, _standing(first, ranges), _standing(second, ranges)))


def _order(pieces: Iterable[_Standing]) -> CutOrder:
    before = after = False
    for _, a, b in pieces:
        before |= a < b
        after |= a > b
    if before and after:
        return CutOrder.OVERLAPPING
    if before:
        return CutOrder.BEFORE
    return CutOrder.AFTER if after else CutOrder.EQUAL


def earliest(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> StreamCut:
    """Return the cut before which lies exactly what lies before both."""
    return _assembled(first, second, ranges, min)


def latest(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> StreamCut:
    """Return the cut before which lies everything that lies before either."""
    return _assembled(first, second, ranges, max)


def _whole(cut: StreamCut, ranges: KeyRanges) -> list[SegmentRange]:
    found = _standing(cut.positions, ranges)
    left_out = gaps(found)
    if left_out:
        raise InvalidStreamCutError(f"the cut doesn't cover the keys from {left_out[0][0]} on: it is not a boundary")
    return found


def _standing(positions: Mapping[int, int], ranges: KeyRanges) -> list[SegmentRange]:
    """Where the positions stand over the keys they cover: in the oldest segment of each key."""
    return oldest_by_key(SegmentRange(segment, *ranges[segment]) for segment in positions)


def _both(
    first: Mapping[int, int], second: Mapping[int, int], ours: Sequence[SegmentRange], theirs: Sequence[SegmentRange]
) -> Iterator[_Standing]:
    for keys, a, b in pieces_of_both(ours, theirs):
        yield keys, (a.segment_id, first[a.segment_id]), (b.segment_id, second[b.segment_id])


def _whole_both(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> Iterator[_Standing]:
    """Where the two cuts of one stream stand, over the pieces of the whole key space."""
    if (first.scope, first.stream) != (second.scope, second.stream):
        raise InvalidStreamCutError(
            f"cuts of two streams have no order: {first.scope}/{first.stream} and {second.scope}/{second.stream}"
        )
    return _both(first.positions, second.positions, _whole(first, ranges), _whole(second, ranges))


def _assembled(
    first: StreamCut, second: StreamCut, ranges: KeyRanges, choose: Callable[[_Place, _Place], _Place]
) -> StreamCut:
    chosen: dict[_Place, list[KeyRange]] = {}
    for keys, a, b in _whole_both(first, second, ranges):
        chosen.setdefault(choose(a, b), []).append(keys)
    positions: dict[int, int] = {}
    for (segment, offset), pieces in chosen.items():
        is_whole = joined(pieces) == [ranges[segment]]
        if segment in positions or (offset >= 0 and not is_whole):
            raise InvalidStreamCutError(
                f"one of the cuts has read segment {segment} without everything before it: "
                "it is not a boundary of the stream"
            )
        positions[segment] = max(offset, 0) if is_whole else offset
    return StreamCut(first.scope, first.stream, positions)
