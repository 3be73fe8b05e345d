"""A stream's epochs and what follows from them, without I/O.

An epoch is a set of segments that tiles the key space [0, 1); scaling a stream replaces some of them
and makes the next epoch. `History` folds the recorded changes, and answers all questions about successors,
stream cuts and ranges of segments. A segment's id contains the epoch that created it, so of two segments
that share keys, the one with the smaller id is the earlier.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cachetools import LRUCache

from nadi.controller.state.records import EpochChange, EpochSegment
from nadi.errors import ConflictError, InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.model.frontier import check_legal
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import KeyRange, SegmentRange, ids_under, joined, oldest_by_key, share_keys, tiles
from nadi.naming import segment_epoch, segment_id, segment_number

_EPOCHS_KEPT = 64  # of a stream: which segments it has then
Cut = Mapping[int, int]


class PreconditionError(ConflictError):
    """The scale doesn't fit the stream as it is now: look at its current segments again."""


def first_epoch(count: int, created_ms: int, first_number: int = 0) -> EpochChange:
    """Epoch 0: `count` equal slices of the key space, numbered from `first_number`."""
    added = tuple(
        EpochSegment(segment_id(first_number + i), low, high) for i, (low, high) in enumerate(equal_ranges(count))
    )
    return EpochChange(0, 0, created_ms, (), added)


@dataclass(slots=True)
class History:
    """The epochs of one stream, from 0 to the newest published one.

    segments: every segment ever, by id. sealed_in: for replaced segments, the first epoch without them; a barrier,
    which belongs to no epoch, is replaced in its own. sizes: lengths of sealed segments.
    """

    changes: list[EpochChange]
    sizes: dict[int, int] = field(default_factory=dict)
    segments: dict[int, EpochSegment] = field(default_factory=dict)
    sealed_in: dict[int, int] = field(default_factory=dict)
    _active: LRUCache[int, tuple[EpochSegment, ...]] = field(default_factory=lambda: LRUCache(_EPOCHS_KEPT))

    def __post_init__(self) -> None:
        changes, self.changes = self.changes, []
        for change in sorted(changes, key=lambda c: c.epoch):
            self.add(change)

    def add(self, change: EpochChange) -> None:
        """Append the next epoch; do nothing if it is already known."""
        if change.epoch < len(self.changes):
            assert self.changes[change.epoch] == change, "an epoch is written once"
            return
        assert change.epoch == len(self.changes), f"epoch {change.epoch} follows {len(self.changes) - 1}"
        self.changes.append(change)
        for removed in change.removed:
            self.sealed_in[removed] = change.epoch
        for segment in change.added:
            self.segments[segment.id] = segment
        if change.barrier >= 0:
            self.segments[change.barrier] = EpochSegment(change.barrier, 0.0, 1.0)
            self.sealed_in[change.barrier] = change.epoch

    def copied(self) -> History:
        """A copy that knows the same."""
        made = History([], dict(self.sizes), dict(self.segments), dict(self.sealed_in))
        made.changes = list(self.changes)
        made._active.update(self._active)
        return made

    @property
    def newest(self) -> int:
        return len(self.changes) - 1

    def epoch_at(self, time_ms: int) -> int:
        """The newest epoch that had started by that time, or the first."""
        return max(0, bisect.bisect_right(self.changes, time_ms, key=lambda change: change.created_ms) - 1)

    def reference(self, epoch: int) -> int:
        return self.changes[epoch].reference

    def epoch(self, epoch: int) -> tuple[EpochSegment, ...]:
        """The segments of an epoch, by key."""
        if not 0 <= epoch < len(self.changes):
            raise NotFoundError(f"there is no epoch {epoch}: the newest is {self.newest}")
        found = self._active.get(epoch)
        if found is None:
            segments = [s for s in self.segments.values() if self._lives_in(s.id, epoch)]
            segments.sort(key=lambda s: s.low)
            found = self._active[epoch] = tuple(segments)
        return found

    def _lives_in(self, segment: int, epoch: int) -> bool:
        return segment_epoch(segment) <= epoch < self.sealed_in.get(segment, 1 << 62)

    # --- successors ------------------------------------------------------------------------------

    def successors(self, segment: int) -> list[tuple[EpochSegment, list[int]]]:
        """The segments that took over a replaced segment's keys, each with all its predecessors."""
        own = self._known(segment)
        sealed = self.sealed_in.get(segment)
        if sealed is None:
            return []
        before = self.epoch(sealed - 1)
        barrier = self.changes[sealed].barrier
        if segment == barrier:
            return [(new, [barrier]) for new in self.changes[sealed].added]
        if barrier >= 0:
            return [(self.segments[barrier], [old.id for old in before])]
        return [
            (new, [old.id for old in before if share_keys(old, new)])
            for new in self.epoch(sealed)
            if share_keys(new, own)
        ]

    def _known(self, segment: int) -> EpochSegment:
        found = self.segments.get(segment)
        if found is None:
            raise NotFoundError(f"there is no segment {segment} in this stream's history")
        return found

    # --- stream cuts -----------------------------------------------------------------------------

    def head_of_time(self) -> dict[int, int]:
        """The cut before the first event ever."""
        return {segment.id: 0 for segment in self.epoch(0)}

    def is_valid_cut(self, cut: Cut) -> bool:
        """Whether a reader of the whole stream could stand at this cut (see `nadi.model.frontier`)."""
        if not 0 < len(cut) <= len(self.segments) or any(segment not in self.segments for segment in cut):
            return False
        epochs = {segment_epoch(segment) for segment in cut}
        first, last = min(epochs), max(epochs)
        between = (piece for i, piece in self.segments.items() if first <= segment_epoch(i) <= last)
        try:
            check_legal(cut, [self.segments[i] for i in cut], between)
        except InvalidStreamCutError:
            return False
        return True

    def span(self, cut: Cut) -> dict[int, int]:
        """Each segment of the cut with the highest epoch, up to that of the cut's newest one, that holds it."""
        top = max(segment_epoch(i) for i in cut)
        return {i: min(top, self.sealed_in.get(i, top + 1) - 1) for i in cut}

    def _standing(self, cut: Cut) -> list[SegmentRange]:
        """Where the cut stands: over each key in the oldest of its segments."""
        return oldest_by_key(self.segments[i] for i in cut)

    def passed(self, cut: Cut) -> Callable[[int], bool]:
        """A function that says whether a segment lies wholly before the cut; nothing lies before an empty cut."""
        place = self._standing(cut)

        def is_passed(segment: int) -> bool:
            found = list(ids_under(place, self._known(segment)))
            return bool(found) and min(found) > segment

        return is_passed

    def is_at_or_after(self, later: Cut, earlier: Cut) -> bool:
        """Whether no segment of `later` lies before `earlier`."""
        if any(later[i] < offset for i, offset in earlier.items() if i in later):
            return False
        place = self._standing(earlier)
        return all(
            segment.id >= before
            for segment in (self.segments[i] for i in later)
            for before in ids_under(place, segment)
        )

    def between(self, start: Cut, end: Cut) -> list[int]:
        """Ids of the segments from one cut to the other, the cuts' own included; an empty cut is the
        stream's first epoch or its newest."""
        if not start and not end:
            raise InvalidArgumentError("give at least one of the two stream cuts")
        for cut in (start, end):
            if any(i not in self.segments for i in cut):
                raise InvalidStreamCutError("the stream cut names a segment that this stream never had")
        if start and end and not self.is_at_or_after(end, start):
            raise InvalidStreamCutError("the end of the range lies before its start: swap the two stream cuts")
        low_cut = start or self.head_of_time()
        high_cut = end or {s.id: 0 for s in self.epoch(self.newest)}
        from_epochs = list(self.span(low_cut).values()) if start else [0]
        to_epochs = list(self.span(high_cut).values()) if end else [self.newest]
        first, last = min(from_epochs), max(to_epochs)
        sure = range(max(from_epochs), min(to_epochs) + 1)
        chosen = []
        starts = self._standing(low_cut)
        ends = [self.segments[i] for i in high_cut]
        for segment in self.segments.values():
            born, sealed = segment_epoch(segment.id), self.sealed_in.get(segment.id, 1 << 62)
            if born > last or sealed <= first:
                continue
            named = segment.id in start or segment.id in end
            surely = sure and born < sure.stop and sealed > sure.start
            if (
                named
                or surely
                or (
                    all(before <= segment.id for before in ids_under(starts, segment))
                    and all(segment.id <= y.id for y in ends if share_keys(y, segment))
                )
            ):
                chosen.append(segment.id)
        return sorted(chosen)

    def size_between(self, start: Cut, end: Cut) -> int:
        """Bytes from one cut to the other; a sealed segment of unknown size counts nothing."""
        total = 0
        for segment in self.between(start, end):
            upto = max(end[segment], 0) if segment in end else self.sizes.get(segment, 0)
            total += upto - (max(start[segment], 0) if segment in start else 0)
        return max(total, 0)

    # --- scaling ---------------------------------------------------------------------------------

    def plan_scale(
        self,
        current: int,
        sealed: Sequence[int],
        ranges: Sequence[KeyRange],
        *,
        min_segments: int,
        time_ms: int,
    ) -> EpochChange:
        """The epoch after `current` in which `ranges` replace `sealed`.

        PreconditionError if the stream has moved on, InvalidArgumentError if the ranges can't replace them.
        """
        active = {s.id: s for s in self.epoch(current)}
        if any(i not in active for i in sealed):
            raise PreconditionError("a segment to be sealed isn't in the current epoch")
        if not sealed or len(set(sealed)) != len(sealed):
            raise InvalidArgumentError("name the segments to be sealed, each once")
        wanted = sorted(ranges)
        if any(not low < high for low, high in wanted):
            raise InvalidArgumentError("a key range ends where it begins, or before")
        if any(a[1] > b[0] for a, b in itertools.pairwise(wanted)):
            raise InvalidArgumentError("two of the new key ranges overlap")
        if joined((active[i].low, active[i].high) for i in sealed) != joined(wanted):
            raise InvalidArgumentError("the new key ranges don't cover the keys of the sealed segments exactly")
        if len(active) - len(sealed) + len(wanted) < min_segments:
            raise PreconditionError(f"the stream would fall below its {min_segments} segments")
        following = 1 + max(segment_number(i) for i in active)
        added = tuple(
            EpochSegment(segment_id(following + i, current + 1), low, high) for i, (low, high) in enumerate(wanted)
        )
        created_ms = max(time_ms, self.changes[current].created_ms + 1)
        change = EpochChange(current + 1, current + 1, created_ms, tuple(sorted(sealed)), added)
        kept = [s for i, s in active.items() if i not in set(sealed)]
        assert tiles(sorted([*kept, *added], key=lambda s: s.low)), "every epoch tiles the key space"
        return change

    def plan_roll(self, current: int, txn_epoch: int, time_ms: int) -> tuple[EpochChange, EpochChange]:
        """The two epochs in which transactions of an older epoch are committed: first copies of its segments, to
        merge into, then copies of the current ones."""
        active, old = self.epoch(current), self.epoch(txn_epoch)
        merged = tuple(EpochSegment(copy_id(s.id, current + 1), s.low, s.high) for s in old)
        restored = tuple(EpochSegment(copy_id(s.id, current + 2), s.low, s.high) for s in active)
        time_ms = max(time_ms, self.changes[current].created_ms + 1)
        merge = EpochChange(current + 1, self.reference(txn_epoch), time_ms, tuple(s.id for s in active), merged)
        restore = EpochChange(current + 2, self.reference(current), time_ms + 1, tuple(s.id for s in merged), restored)
        return merge, restore


def copy_id(segment: int, epoch: int) -> int:
    """The id of a segment's duplicate in another epoch: the number stays."""
    return segment_id(segment_number(segment), epoch)
