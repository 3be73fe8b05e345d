"""What of a stream may be read next: the one home of the rule that keeps each key's events in order.

A *stream cut* says of some segments how far they were read. It is **legal** if a reader that started at the stream's
first event could have reached it. Given a stream's history of segments, that means:

1. Every key has a segment in the cut. Over each key the cut *stands in* the oldest of them: older segments were read
   to their ends, newer ones weren't started.
2. A segment with an offset (0 or more) was started: the cut stands in it over all of its keys. One at -1 waits: over
   some of its keys an older segment is not done. (If nothing older is left, -1 means 0.)
3. A segment was read to its end over all of its keys or over none: if the cut stands after a segment over
   one key, it stands after it over all of them.
4. An offset is that of an event, or the segment's end, and no greater.

From a legal cut there are two steps, and both lead to a legal cut. *Read on* in a segment that may be read: the cut
stands in it over all of its keys. *Complete* one that is sealed and read to its end: it leaves the cut, and its
successors that aren't yet in the cut enter it, at 0 if nothing older in the cut has any of their keys, else at -1. So a
segment that was read to its end stays in the cut, at its end, until all of its keys are with its successors; those are
in the cut from then on, though they may wait. Both forms name the same place. Nothing else is ever remembered: which
segments may be read follows from the cut alone, however many scalings lie between its segments.

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
    """The segments of a legal cut: `active` may be read now, `waiting` once what is older is done.

    segments: those of a cut; future: those of them at -1. keys: None, or the only places of the key space that
    matter: segments without one of them are left out. InvalidStreamCutError if the cut isn't legal, as far as
    its own segments show.
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
        """Return the cut, given the offsets of all segments that were started."""
        begun = {segment_id: offsets[segment_id] for segment_id in (*self._active, *self._stopped)}
        return begun | dict.fromkeys(self._waiting, WAITING)

    def complete(self, segment_id: int, successors: Iterable[SegmentRange]) -> list[SegmentRange]:
        """Note that a segment was read to its end; return those that may be read now because of it.

        successors: all that follow it; in a sealed stream there is nothing to complete, see `stop`.
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
        begun = [piece for piece in freed if self._cut.is_oldest(piece)]
        for piece in begun:
            self._active[piece.segment_id] = self._waiting.pop(piece.segment_id)
        return begun

    def stop(self, segment_id: int) -> None:
        """Note that a segment was read as far as wanted: it stays in the cut, and nothing follows it."""
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
        left_out = [low for low, _ in open_ranges]
        if self._keys is not None:
            left_out = [key for key in self._keys if any(low <= key < high for low, high in open_ranges)]
        if left_out:
            raise InvalidStreamCutError(
                f"the cut doesn't cover the keys from {left_out[0]} on: it is not a boundary of the stream, or it is "
                "the position of a reader of some routing keys, which must continue with the same keys"
            )


class Bound:
    """An end cut: how much of each segment lies before it. positions: its offsets; segments: its segments."""

    def __init__(self, positions: Mapping[int, int], segments: Iterable[HasSegmentKeys]) -> None:
        self._positions = positions
        self._standing = oldest_by_key(segments)

    def limit(self, piece: HasSegmentKeys) -> int | None:
        """Return the offset in this segment at which the bound lies; None if it lies after all of the segment."""
        offset = self._positions.get(piece.segment_id)
        if offset is not None and offset >= 0:
            return offset
        found = list(ids_under(self._standing, piece))
        return None if found and min(found) > piece.segment_id else 0


def may_begin(segments: Iterable[SegmentRange], waiting: Collection[int]) -> list[int]:
    """Return which waiting segments of a cut no longer have anything older before them: the rule of `Frontier`, for a
    cut that is kept elsewhere and changed by many."""
    known = list(segments)
    index = SegmentsByKey(known)
    return [piece.segment_id for piece in known if piece.segment_id in waiting and index.is_oldest(piece)]


def check_legal(
    positions: Mapping[int, int], segments: Iterable[HasSegmentKeys], between: Iterable[HasSegmentKeys]
) -> None:
    """Raise InvalidStreamCutError unless the cut is legal, apart from offsets, which only the segment store knows.

    segments: those of the cut; between: at least all that were created from the cut's oldest epoch to its newest.
    """
    own = [SegmentRange(piece.segment_id, piece.low, piece.high) for piece in segments]
    Frontier(own, [segment_id for segment_id, offset in positions.items() if offset < 0])
    standing = oldest_by_key(own)
    for piece in between:
        behind = [segment_id > piece.segment_id for segment_id in ids_under(standing, piece)]
        if any(behind) and not all(behind):
            raise InvalidStreamCutError(
                f"the cut has read segment {piece.segment_id} to its end for some of its keys and not for others: "
                "it is not a boundary of the stream"
            )


def _overtaken(segment_id: int) -> InvalidStreamCutError:
    return InvalidStreamCutError(
        f"the cut has begun segment {segment_id}, and not read what comes before it under the same keys: it is no "
        "boundary of the stream"
    )
