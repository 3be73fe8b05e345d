"""Which segments may be read next from a stream cut, so that each key's events stay in order.

A *stream cut* holds an offset for some segments. It is **legal** if a reader that started at the stream's first event
could have reached it. Given a stream's history of segments:

1. Every key has a segment in the cut. For each key the current segment is the oldest of them: older segments were
   read to their ends, newer ones weren't started.
2. A segment with an offset of 0 or more was started: it is current for all of its keys. A segment at -1 waits: for
   some of its keys an older segment isn't complete. (If no older segment remains, -1 means 0.)
3. A segment was read to its end for all of its keys or for none: if the cut is past a segment for one key, it is past
   it for all of them.
4. An offset is an event boundary, at most the segment's end.

Two steps lead from a legal cut to another. *Read* in a segment that is current for all of its keys. *Complete* a
sealed segment that was read to its end: it leaves the cut, and its successors that aren't in the cut enter it, at 0 if
no older segment in the cut shares their keys, else at -1. A completed segment may also stay in the cut, at its end,
until its successors enter; both forms mean the same position. No other state is kept: the readable segments follow
from the cut alone, however many scalings are between its segments.

>>> a, b, both = SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0), SegmentRange((1 << 32) | 2, 0.0, 1.0)
>>> frontier = Frontier([a, b], ())
>>> frontier.complete(0, [both])
[]
>>> frontier.positions({1: 70})
{1: 70, 4294967298: -1}
>>> [piece.segment_id for piece in frontier.complete(1, [both])]
[4294967298]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from nadi.errors import InvalidStreamCutError
from nadi.model.segments import HasSegmentKeys, SegmentRange, SegmentsByKey, gaps, has_key, ids_under, oldest_by_key

WAITING = -1


class Frontier:
    """The segments of a legal cut: `active` may be read now, `waiting` after older segments complete.

    segments: the cut's segments; future: ids of those at -1. keys: restricts the cut to segments with these positions
    of the key space; None means all. InvalidStreamCutError if the cut's segments show that it isn't legal.
    """

    def __init__(
        self, segments: Iterable[SegmentRange], future: Collection[int], keys: Sequence[float] | None = None
    ) -> None:
        self._keys = None if keys is None else sorted(keys)
        mine = [piece for piece in segments if self._keys is None or has_key(self._keys, piece.low, piece.high)]
        self._cut = SegmentsByKey(mine, self._keys)
        self._active: dict[int, SegmentRange] = {}
        self._waiting: dict[int, SegmentRange] = {}
        self._stopped: dict[int, SegmentRange] = {}
        self._check_keys(mine)
        for piece in sorted(mine, key=lambda piece: piece.segment_id in future):
            if self._cut.is_oldest(piece):
                self._active[piece.segment_id] = piece
            elif piece.segment_id in future:
                self._waiting[piece.segment_id] = piece
            else:
                raise _overtaken(piece.segment_id)

    @property
    def active(self) -> Mapping[int, SegmentRange]:
        return self._active

    @property
    def segments(self) -> list[SegmentRange]:
        """All segments of the cut."""
        return [*self._active.values(), *self._stopped.values(), *self._waiting.values()]

    @property
    def waiting(self) -> Collection[int]:
        return self._waiting.keys()

    def positions(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return the cut, given the offsets of all started segments."""
        started = {segment_id: offsets[segment_id] for segment_id in (*self._active, *self._stopped)}
        return started | dict.fromkeys(self._waiting, WAITING)

    def complete(self, segment_id: int, successors: Iterable[SegmentRange]) -> list[SegmentRange]:
        """Record that a segment was read to its end; return the segments that may be read as a result.

        successors: all of its successors. The last segments of a sealed stream aren't completed: see `stop`.
        """
        done = self._active.pop(segment_id)
        self._cut.remove(done)
        for piece in successors:
            if piece.segment_id not in self._waiting and self._cut.share(piece, done):
                self._enter(piece)
        freed = sorted(
            (piece for piece in self._cut.sharing(done) if piece.segment_id in self._waiting),
            key=lambda piece: piece.segment_id,
        )
        started = [piece for piece in freed if self._cut.is_oldest(piece)]
        for piece in started:
            self._active[piece.segment_id] = self._waiting.pop(piece.segment_id)
        return started

    def stop(self, segment_id: int) -> None:
        """Record that a segment was read to its limit: it stays in the cut without successors."""
        self._stopped[segment_id] = self._active.pop(segment_id)

    def _enter(self, piece: SegmentRange) -> None:
        if piece.segment_id in self._active or piece.segment_id in self._stopped:
            raise _overtaken(piece.segment_id)
        for later in self._cut.newer(piece):
            if later.segment_id not in self._waiting:
                raise _overtaken(later.segment_id)
        self._cut.add(piece)
        self._waiting[piece.segment_id] = piece

    def _check_keys(self, mine: list[SegmentRange]) -> None:
        open_ranges = gaps(mine)
        uncovered = [low for low, _ in open_ranges]
        if self._keys is not None:
            uncovered = [key for key in self._keys if any(low <= key < high for low, high in open_ranges)]
        if uncovered:
            raise InvalidStreamCutError(
                f"the cut doesn't cover the keys from {uncovered[0]} on: it is not a boundary of the stream, or it is "
                "a position of a reader of some routing keys, which must continue with the same keys"
            )


class Bound:
    """An end cut, which limits each segment. positions: its offsets; segments: its segments."""

    def __init__(self, positions: Mapping[int, int], segments: Iterable[HasSegmentKeys]) -> None:
        self._positions = positions
        self._oldest = oldest_by_key(segments)

    def limit(self, piece: HasSegmentKeys) -> int | None:
        """Return the offset of the bound in this segment; None if the bound is after the entire segment."""
        offset = self._positions.get(piece.segment_id)
        if offset is not None and offset >= 0:
            return offset
        current = list(ids_under(self._oldest, piece))
        return None if current and min(current) > piece.segment_id else 0


def may_begin(segments: Iterable[SegmentRange], waiting: Collection[int]) -> list[int]:
    """Return the waiting segments of a cut that may start, without older segments: the rule of `Frontier`, for a cut
    that several clients change."""
    pieces = list(segments)
    index = SegmentsByKey(pieces)
    return [piece.segment_id for piece in pieces if piece.segment_id in waiting and index.is_oldest(piece)]


def check_legal(
    positions: Mapping[int, int], segments: Iterable[HasSegmentKeys], between: Iterable[HasSegmentKeys]
) -> None:
    """Raise InvalidStreamCutError unless the cut is legal, except for offsets, which only the segment store can check.

    segments: the cut's segments; between: at least all segments created from the cut's oldest epoch to its newest.
    """
    own = [SegmentRange(piece.segment_id, piece.low, piece.high) for piece in segments]
    Frontier(own, [segment_id for segment_id, offset in positions.items() if offset < 0])
    current = oldest_by_key(own)
    for piece in between:
        is_past = [segment_id > piece.segment_id for segment_id in ids_under(current, piece)]
        if any(is_past) and not all(is_past):
            raise InvalidStreamCutError(
                f"the cut is not a boundary of the stream: it is past segment {piece.segment_id} for only some of its "
                "keys"
            )


def _overtaken(segment_id: int) -> InvalidStreamCutError:
    return InvalidStreamCutError(
        f"the cut is not a boundary of the stream: it starts segment {segment_id} without completing an older segment "
        "with the same keys"
    )
