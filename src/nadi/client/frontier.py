"""Which segments of a stream may be read: successors only after all their predecessors.

Pure bookkeeping over the key space. Each segment under way covers its range of it; one that was read
to its end gives its range to its successors, and a successor begins once its whole range was given
to it, that is, once everything older under any of its keys has been read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from nadi.client.segment_ranges import SegmentRange
from nadi.errors import InvalidStreamCutError


class Frontier:
    """ranges: the segments of the start cut; future: those of them that the cut has not reached yet."""

    def __init__(self, ranges: Iterable[SegmentRange], future: Collection[int]) -> None:
        self._active: dict[int, SegmentRange] = {}
        self._waiting: dict[int, tuple[SegmentRange, list[tuple[float, float]]]] = {}
        self._keys: Sequence[float] | None = None  # None: all
        waiting = []
        known = list(ranges)
        for piece in known:
            if piece.segment_id in future:
                waiting.append(piece)
            else:
                self._active[piece.segment_id] = piece
        taken = sorted((piece.low, piece.high) for piece in self._active.values())
        for (_, high), (low, _) in pairwise(taken):
            if high > low:
                raise InvalidStreamCutError("the cut holds two segments of the same keys: it is no boundary")
        for piece in waiting:
            if any(older.segment_id < piece.segment_id and _share_keys(older, piece) for older in known):
                self._waiting[piece.segment_id] = (piece, _gaps(piece, taken))
            else:  # all before it was read
                self._active[piece.segment_id] = piece

    @property
    def active(self) -> Mapping[int, SegmentRange]:
        return self._active

    @property
    def waiting(self) -> list[int]:
        return list(self._waiting)

    def narrow(self, keys: Sequence[float]) -> None:
        """Care for these places of the key space only; to be called before anything is completed."""
        self._keys = keys
        self._active = {s: piece for s, piece in self._active.items() if self._matters(piece)}
        waiting, self._waiting = self._waiting, {}
        for segment_id, (piece, given) in waiting.items():
            if self._matters(piece):
                if self._is_given(given, piece):
                    self._active[segment_id] = piece
                else:
                    self._waiting[segment_id] = (piece, given)

    def complete(self, segment_id: int, successors: Iterable[SegmentRange]) -> list[SegmentRange]:
        """A segment was read to its end: the successors that may begin now."""
        done = self._active.pop(segment_id)
        begun = []
        for piece in successors:
            if piece.low >= done.high or piece.high <= done.low or not self._matters(piece):
                continue
            _, given = self._waiting.setdefault(piece.segment_id, (piece, []))
            given.append((max(piece.low, done.low), min(piece.high, done.high)))
            if self._is_given(given, piece):
                del self._waiting[piece.segment_id]
                self._active[piece.segment_id] = piece
                begun.append(piece)
        return begun

    def stop(self, segment_id: int) -> None:
        """A segment was read as far as wanted; nothing follows it."""
        del self._active[segment_id]

    def _matters(self, piece: SegmentRange) -> bool:
        return self._keys is None or any(piece.low <= key < piece.high for key in self._keys)

    def _is_given(self, given: list[tuple[float, float]], piece: SegmentRange) -> bool:
        """Whether all that matters of the piece's range was given to it."""
        if self._keys is None:
            return _covers(given, piece)
        mine = (key for key in self._keys if piece.low <= key < piece.high)
        return all(any(low <= key < high for low, high in given) for key in mine)


def _share_keys(one: SegmentRange, other: SegmentRange) -> bool:
    return one.low < other.high and other.low < one.high


def _gaps(piece: SegmentRange, taken: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of a range that nobody has."""
    gaps, low = [], piece.low
    for start, end in taken:
        if end <= low or start >= piece.high:
            continue
        if start > low:
            gaps.append((low, start))
        low = max(low, end)
    if low < piece.high:
        gaps.append((low, piece.high))
    return gaps


def _covers(given: list[tuple[float, float]], piece: SegmentRange) -> bool:
    reached = piece.low
    for low, high in sorted(given):
        if low > reached:
            return False
        reached = max(reached, high)
    return reached >= piece.high
