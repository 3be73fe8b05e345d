"""Ordering of the stream cuts of one stream, and the earliest and latest of two.

A segment's id starts with its epoch, so the pair (segment id, offset) orders positions on one key. A cut has one
position for each key; for keys of a segment at offset -1, that position is before the segment.

Cuts must be normalized: a position at the end of a sealed segment with successors is the same boundary as the
successors' start. `nadi.client.stream_cuts.cuts` normalizes them.

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
_Position = tuple[int, int]  # (segment id, offset)
_PositionPair = tuple[KeyRange, _Position, _Position]  # of two cuts, for a piece of the key space


class CutOrder(Enum):
    """The position of a cut relative to another cut."""

    BEFORE = "before"
    EQUAL = "equal"
    AFTER = "after"
    OVERLAPPING = "overlapping"  # before it in one segment and after it in another

    @property
    def is_at_or_after(self) -> bool:
        """Whether no part of it is before the other cut."""
        return self in (CutOrder.EQUAL, CutOrder.AFTER)

    @property
    def is_at_or_before(self) -> bool:
        """Whether no part of it is after the other cut."""
        return self in (CutOrder.EQUAL, CutOrder.BEFORE)


def compare(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> CutOrder:
    """Compare `first` with `second`; `ranges` must contain the segments of both."""
    return _order(_covering_pairs(first, second, ranges))


def compare_shared(first: Mapping[int, int], second: Mapping[int, int], ranges: KeyRanges) -> CutOrder:
    """Compare offsets by segment over the keys that both cuts have; EQUAL if they share none."""
    return _order(_pairs(first, second, _oldest_pieces(first, ranges), _oldest_pieces(second, ranges)))


def _order(pieces: Iterable[_PositionPair]) -> CutOrder:
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
    """Return the cut whose preceding events are those before both cuts."""
    return _assembled(first, second, ranges, min)


def latest(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> StreamCut:
    """Return the cut whose preceding events are those before either cut."""
    return _assembled(first, second, ranges, max)


def _covering_pieces(cut: StreamCut, ranges: KeyRanges) -> list[SegmentRange]:
    pieces = _oldest_pieces(cut.positions, ranges)
    uncovered = gaps(pieces)
    if uncovered:
        raise InvalidStreamCutError(f"the cut is not a boundary: it doesn't cover the keys from {uncovered[0][0]} on")
    return pieces


def _oldest_pieces(positions: Mapping[int, int], ranges: KeyRanges) -> list[SegmentRange]:
    """Return the oldest segment for each covered key, as pieces."""
    return oldest_by_key(SegmentRange(segment, *ranges[segment]) for segment in positions)


def _pairs(
    first: Mapping[int, int], second: Mapping[int, int], ours: Sequence[SegmentRange], theirs: Sequence[SegmentRange]
) -> Iterator[_PositionPair]:
    for keys, a, b in pieces_of_both(ours, theirs):
        yield keys, (a.segment_id, first[a.segment_id]), (b.segment_id, second[b.segment_id])


def _covering_pairs(first: StreamCut, second: StreamCut, ranges: KeyRanges) -> Iterator[_PositionPair]:
    """Yield the positions of two cuts of one stream for each piece of the key space."""
    if (first.scope, first.stream) != (second.scope, second.stream):
        raise InvalidStreamCutError(
            f"can't compare cuts of different streams: {first.scope}/{first.stream} and {second.scope}/{second.stream}"
        )
    return _pairs(first.positions, second.positions, _covering_pieces(first, ranges), _covering_pieces(second, ranges))


def _assembled(
    first: StreamCut, second: StreamCut, ranges: KeyRanges, choose: Callable[[_Position, _Position], _Position]
) -> StreamCut:
    chosen: dict[_Position, list[KeyRange]] = {}
    for keys, a, b in _covering_pairs(first, second, ranges):
        chosen.setdefault(choose(a, b), []).append(keys)
    positions: dict[int, int] = {}
    for (segment, offset), pieces in chosen.items():
        is_whole = joined(pieces) == [ranges[segment]]
        if segment in positions or (offset >= 0 and not is_whole):
            raise InvalidStreamCutError(
                f"one of the cuts is not a boundary of the stream: it is past segment {segment} but not past all "
                "events before it"
            )
        positions[segment] = max(offset, 0) if is_whole else offset
    return StreamCut(first.scope, first.stream, positions)
