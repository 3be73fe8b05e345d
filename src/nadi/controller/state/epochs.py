"""The epochs of one stream, in order, and which segments each has: what `history` answers its questions from.

Each epoch is kept as its difference from the one before it. Whole epochs stand in between, each as soon as what has
changed since the last outweighs it: so an epoch is put together in a time that depends on its own size, and a stream's
memory on what its scalings changed, whichever of its epochs is asked for and however many there are.

The first epoch is 0, or the oldest one of which the past isn't forgotten (`records.EpochBase`): that one is whole.
Epochs are only ever added. So a view of the first ones stays right in another thread, while this one adds more.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping

from nadi.controller.state.records import EpochChange, EpochSegment
from nadi.naming import segment_epoch

_RECENT_KEPT = 64  # epochs of one stream
_LEAST_CHANGES = 16  # between two whole epochs


class Epochs:
    """`changes`: those of the known epochs; `segments`: every known segment, by id; `sealed_in`: for replaced
    segments, the first epoch without them. A barrier, which belongs to no epoch, is replaced in its own."""

    def __init__(self, changes: Iterable[EpochChange], began_ms: Mapping[int, int] | None = None) -> None:
        self.changes: list[EpochChange] = []
        self.segments: dict[int, EpochSegment] = {}
        self.sealed_in: dict[int, int] = {}
        self.began_ms = dict(began_ms or {})  # of the first epoch's segments that are older
        self.first, self.newest = 0, -1
        self._stops: list[int] = []  # epochs that are kept whole
        self._wholes: list[tuple[EpochSegment, ...]] = []
        self._changed = 0  # segments, since the last of them
        self._recent: dict[int, tuple[EpochSegment, ...]] = {}  # put together lately
        for change in sorted(changes, key=lambda change: change.epoch):
            self.add(change)

    def view(self) -> Epochs:
        """What is known now, for another thread; it can't be added to."""
        made = Epochs(())
        made.changes, made.segments, made.sealed_in, made.began_ms = (
            self.changes,
            self.segments,
            self.sealed_in,
            self.began_ms,
        )
        made.first, made.newest = self.first, self.newest
        made._stops, made._wholes = self._stops, self._wholes
        return made

    def add(self, change: EpochChange) -> None:
        """Append the next epoch; do nothing if it is already known."""
        if not self.changes:
            self.first, self.newest = change.epoch, change.epoch - 1
        assert len(self.changes) == self.newest - self.first + 1, "a view is only read"
        if change.epoch <= self.newest:
            assert change.epoch <= self.first or self.change(change.epoch) == change, "an epoch is written once"
            return
        assert change.epoch == self.newest + 1, f"epoch {change.epoch} follows {self.newest}"
        self.changes.append(change)
        for segment in change.added:
            self.segments[segment.id] = segment
        if change.barrier >= 0:
            self.segments[change.barrier] = EpochSegment(change.barrier, 0.0, 1.0)
            self.sealed_in[change.barrier] = change.epoch
        for removed in change.removed:
            self.sealed_in[removed] = change.epoch
        self._changed += len(change.removed) + len(change.added)
        if not self._wholes or self._changed > max(len(self._wholes[-1]), _LEAST_CHANGES):
            whole = self._put_together(change.epoch)
            self._wholes.append(whole)
            self._stops.append(change.epoch)
            self._changed = 0
        self.newest = change.epoch

    def change(self, epoch: int) -> EpochChange:
        """How a known epoch differs from the one before it."""
        return self.changes[epoch - self.first]

    def whole(self, epoch: int) -> tuple[EpochSegment, ...]:
        """The segments of a known epoch, by key."""
        found = self._recent.get(epoch)
        if found is None:
            found = self._put_together(epoch)
            if len(self._recent) >= _RECENT_KEPT:
                del self._recent[next(iter(self._recent))]
            self._recent[epoch] = found
        return found

    def _put_together(self, epoch: int) -> tuple[EpochSegment, ...]:
        at = bisect.bisect_right(self._stops, epoch) - 1
        known, begin = (self._wholes[at], self._stops[at] + 1) if at >= 0 else ((), self.first)
        live = {segment.id: segment for segment in known}
        for number in range(begin, epoch + 1):
            change = self.change(number)
            for removed in change.removed:
                live.pop(removed, None)
            live.update((segment.id, segment) for segment in change.added)
        return tuple(sorted(live.values(), key=lambda segment: segment.low))

    def find(self, segment: int) -> EpochSegment | None:
        """The segment, if it is known."""
        found = self.segments.get(segment)
        return found if found is not None and segment_epoch(segment) <= self.newest else None

    def sealed(self, segment: int) -> int | None:
        """The epoch in which it was replaced; None if it wasn't."""
        found = self.sealed_in.get(segment)
        return found if found is not None and found <= self.newest else None
