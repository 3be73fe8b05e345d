"""A stream's epochs and what follows from them, without I/O.

An epoch is a set of segments that tiles the key space [0, 1); scaling a stream replaces some of them and starts the
next epoch. `EpochHistory` accumulates the recorded changes and answers all questions about successors, stream cuts and
ranges. A segment's id contains the epoch that created it, so of two segments that share keys, the one with the smaller
id is the earlier.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from operator import attrgetter
from typing import TypeVar

from cachetools import LRUCache

from nadi.controller.state.records import EpochBase, EpochChange, EpochSegment, SealedSizes, StreamRecord
from nadi.errors import ConflictError, EpochExpiredError, InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.limits import CUT_QUICK_SEGMENTS
from nadi.model.frontier import check_legal
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import KeyRange, SegmentRange, ids_under, joined, oldest_by_key, overlapping, tiles
from nadi.naming import segment_epoch, segment_id, segment_number
from nadi.runtime import Runtime

_RECENT_KEPT = 64  # recently requested epochs, per stream
_LEAST_CHANGES = 16  # between two epochs stored in full
_thread = ThreadPoolExecutor(1, "nadi stream cuts")
T = TypeVar("T")
Cut = Mapping[int, int]


class PreconditionError(ConflictError):
    """The scale doesn't match the stream's current segments: read them again."""


def first_epoch(count: int, created_ms: int, first_number: int = 0) -> EpochChange:
    """Return epoch 0: `count` equal slices of the key space, numbered from `first_number`."""
    added = tuple(
        EpochSegment(segment_id(first_number + i), low, high) for i, (low, high) in enumerate(equal_ranges(count))
    )
    return EpochChange(0, 0, created_ms, (), added)


class EpochHistory:
    """The epochs of one stream, from the oldest that isn't forgotten (0, or that of `records.EpochBase`) to the newest.
    Each epoch is stored as its difference from the previous one, and some in full: whenever the changes since the last
    one outweigh it, so the time to assemble an epoch depends on its size only. Epochs are only ever appended, so a view
    of the first ones stays valid in another thread. changes: in order. segments: every known one, by id. sealed_in: for
    replaced segments, the first epoch without them. sizes: lengths of sealed segments. began_ms: when the first epoch's
    segments were created, for those older than it."""

    def __init__(self, changes: Iterable[EpochChange], began_ms: Mapping[int, int] | None = None) -> None:
        self.changes: list[EpochChange] = []
        self.segments: dict[int, EpochSegment] = {}
        self.sealed_in: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.first, self.newest = 0, -1
        self._began_ms = dict(began_ms or {})
        self._stops: list[int] = []  # epochs that are stored in full
        self._full_epochs: list[tuple[EpochSegment, ...]] = []
        self._changed = 0  # segments changed since the last of them
        self._recent: LRUCache[int, tuple[EpochSegment, ...]] = LRUCache(_RECENT_KEPT)
        self._sides: LRUCache[int, tuple[list[EpochSegment], list[EpochSegment]]] = LRUCache(_RECENT_KEPT)
        for change in sorted(changes, key=lambda change: change.epoch):
            self.add(change)

    def add(self, change: EpochChange) -> None:
        if not self.changes:
            self.first, self.newest = change.epoch, change.epoch - 1
        assert len(self.changes) == len(self), "views are read-only"
        if change.epoch <= self.newest:
            assert change.epoch <= self.first or self.change(change.epoch) == change, "an epoch is written once"
            return
        assert change.epoch == self.newest + 1, f"epoch {change.epoch} follows {self.newest}"
        self.changes.append(change)
        self.segments.update((segment.id, segment) for segment in change.added)
        self.sealed_in.update(dict.fromkeys(change.removed, change.epoch))
        self._changed += len(change.removed) + len(change.added)
        self.newest = change.epoch
        if not self._full_epochs or self._changed > max(len(self._full_epochs[-1]), _LEAST_CHANGES):
            segments = self._assemble(change.epoch)
            self._full_epochs.append(segments)
            self._stops.append(change.epoch)
            self._changed = 0

    def view(self) -> EpochHistory:
        """Return a read-only view of the current history for use in another thread."""
        view = copy(self)
        view._recent, view._sides = LRUCache(_RECENT_KEPT), LRUCache(_RECENT_KEPT)
        return view

    def _assemble(self, epoch: int) -> tuple[EpochSegment, ...]:
        at = bisect.bisect_right(self._stops, epoch) - 1
        known, begin = (self._full_epochs[at], self._stops[at] + 1) if at >= 0 else ((), self.first)
        live = {segment.id: segment for segment in known}
        for number in range(begin, epoch + 1):
            change = self.change(number)
            for removed in change.removed:
                live.pop(removed, None)
            live.update((segment.id, segment) for segment in change.added)
        return tuple(sorted(live.values(), key=_low))

    def _find(self, segment: int) -> EpochSegment | None:
        candidate = self.segments.get(segment)
        return candidate if candidate is not None and segment_epoch(segment) <= self.newest else None

    def _sealed(self, segment: int) -> int | None:
        epoch = self.sealed_in.get(segment)
        return epoch if epoch is not None and epoch <= self.newest else None

    def epoch_at(self, time_ms: int) -> int:
        """Return the newest epoch that had started by that time, or the first."""
        at = bisect.bisect_right(self.changes, time_ms, hi=len(self), key=lambda change: change.created_ms)
        return self.first + max(0, at - 1)

    def __len__(self) -> int:
        return self.newest - self.first + 1

    def change(self, epoch: int) -> EpochChange:
        """Return an epoch's difference from the previous one; in the first known epoch, all segments are `added`."""
        self._check_epoch(epoch)
        return self.changes[epoch - self.first]

    def reference(self, epoch: int) -> int:
        return self.change(epoch).reference

    def epoch(self, epoch: int) -> tuple[EpochSegment, ...]:
        self._check_epoch(epoch)
        segments = self._recent.get(epoch)
        if segments is None:
            segments = self._recent[epoch] = self._assemble(epoch)
        return segments

    def known_segments(self, epoch: int) -> tuple[EpochSegment, ...]:
        """Return the segments of an epoch; if it is forgotten, those that outlived it and are still known."""
        if not 0 <= epoch < self.first:
            return self.epoch(epoch)
        remaining = tuple(piece for piece in self.epoch(self.first) if segment_epoch(piece.id) <= epoch)
        if not remaining:
            raise _gone(f"epoch {epoch}")
        return remaining

    def began_ms(self, segment: int) -> int:
        known = self._began_ms.get(self._known(segment).id)
        return self.change(segment_epoch(segment)).created_ms if known is None else known

    def _check_epoch(self, epoch: int) -> None:
        if 0 <= epoch < self.first:
            raise _gone(f"epoch {epoch}")
        if not 0 <= epoch <= self.newest:
            raise NotFoundError(f"epoch {epoch} does not exist: the newest is {self.newest}")

    def is_forgotten(self, segment: int) -> bool:
        """Return whether the segment, if it ever existed, is known only to precede the first known epoch."""
        return self.first > 0 and segment_epoch(segment) <= self.first and self._find(segment) is None

    def ids_after(self, segment: int) -> Iterator[int]:
        epoch = max(segment_epoch(segment), self.first)
        for change in map(self.change, range(epoch, self.newest + 1)):
            yield from sorted(piece.id for piece in change.added if piece.id > segment)

    def is_unknown(self, segment: int) -> bool:
        """Return whether the stream never had such a segment, as far as known."""
        return self._find(segment) is None and not self.is_forgotten(segment)

    def forgetting(self, first: int) -> EpochHistory:
        segments = self.epoch(first)
        change = self.change(first)
        base = EpochChange(first, change.reference, change.created_ms, (), segments)
        began_ms = {piece.id: self.began_ms(piece.id) for piece in segments if segment_epoch(piece.id) != first}
        history = EpochHistory([base, *self.changes[first + 1 - self.first :]], began_ms=began_ms)
        history.sizes = {segment: size for segment, size in self.sizes.items() if segment in history.segments}
        return history

    def successors(self, segment: int) -> list[tuple[EpochSegment, list[int]]]:
        """Return the segments that replaced a segment, each with all its predecessors."""
        own = self._known(segment)
        sealed = self._sealed(segment)
        if sealed is None:
            return []
        change = self.change(sealed)
        before, after = self._two_sides(change)
        return [(new, [old.id for old in overlapping(before, new)]) for new in overlapping(after, own)]

    def _two_sides(self, change: EpochChange) -> tuple[list[EpochSegment], list[EpochSegment]]:
        """Return the segments that an epoch replaced and added, by key; both cover the same keys."""
        sides = self._sides.get(change.epoch)
        if sides is None:
            sides = sorted(map(self._known, change.removed), key=_low), sorted(change.added, key=_low)
            self._sides[change.epoch] = sides
        return sides

    def _known(self, segment: int) -> EpochSegment:
        known = self._find(segment)
        if known is None and self.is_forgotten(segment):
            raise _gone(f"segment {segment}")
        if known is None:
            raise NotFoundError(f"segment {segment} is not in this stream's history")
        return known

    def first_cut(self) -> dict[int, int]:
        """Return the cut before the first known event: the first ever, unless older epochs are forgotten."""
        return {segment.id: 0 for segment in self.epoch(self.first)}

    def is_valid_cut(self, cut: Cut) -> bool:
        """Return whether the cut is a valid position of a reader of the whole stream (see `nadi.model.frontier`);
        EpochExpiredError if that is forgotten."""
        if not cut or any(self.is_unknown(segment) for segment in cut):
            return False
        pieces = [self._known(segment) for segment in cut]
        try:
            check_legal(cut, pieces, self._over_borders(oldest_by_key(pieces)))
        except InvalidStreamCutError:
            return False
        return True

    def _over_borders(self, standing: Sequence[SegmentRange]) -> Iterator[EpochSegment]:
        """Yield the segments that a reader at the cut may have finished under some keys but not under others: those
        that span a border between two of the cut's segments, are at least as old as the older one, and older than the
        newer one. While the older one took events, no segment spanned that border, since it is its own."""
        for piece, following in itertools.pairwise(standing):
            older, newer = sorted((piece.segment_id, following.segment_id))
            epoch = self._sealed(older)
            while epoch is not None and epoch <= segment_epoch(newer):
                change = self.change(epoch)
                over = _taking(self._two_sides(change)[1], following.low)
                if over is None:
                    over = _taking(self.epoch(epoch), following.low)
                assert over is not None, "every epoch tiles the key space"
                yield over
                epoch = self._sealed(over.id)

    def span(self, cut: Cut) -> dict[int, int]:
        """Map each of the cut's segments to the highest epoch that has it, up to the epoch of the cut's newest."""
        top = max(segment_epoch(i) for i in cut)
        sealed = self._sealed
        return {i: top if (end := sealed(i)) is None else min(top, end - 1) for i in cut}

    def _standing(self, cut: Iterable[int]) -> list[SegmentRange]:
        """Return the oldest of the cut's segments for each key."""
        return oldest_by_key(map(self._known, cut))

    def passed(self, cut: Cut) -> Callable[[int], bool]:
        """Return a predicate for segments that are wholly before the cut; nothing is before an empty cut."""
        standing = self._standing(cut)

        def is_passed(segment: int) -> bool:
            ids = list(ids_under(standing, self._known(segment)))
            return bool(ids) and min(ids) > segment

        return is_passed

    def is_at_or_after(self, later: Cut, earlier: Cut) -> bool:
        """Return whether no segment of `later` precedes `earlier`; forgotten segments precede all known ones."""
        if any(later[i] < offset for i, offset in earlier.items() if i in later):
            return False
        standing = self._standing(i for i in earlier if not self.is_forgotten(i))
        return all(
            segment.id >= before for segment in map(self._known, later) for before in ids_under(standing, segment)
        )

    def between(self, start: Cut, end: Cut) -> list[int]:
        """Return the ids of the segments between two cuts, including the cuts' own; an empty cut is the first known
        epoch or the newest."""
        if not start and not end:
            raise InvalidArgumentError("give at least one of the two stream cuts")
        for cut in (start, end):
            if any(self.is_unknown(i) for i in cut):
                raise InvalidStreamCutError("the stream cut names a segment that this stream never had")
        if start and end and not self.is_at_or_after(end, start):
            raise InvalidStreamCutError("the end of the range is before its start: swap the two stream cuts")
        low_cut = start or self.first_cut()
        high_cut = end or {s.id: 0 for s in self.epoch(self.newest)}
        starts, ends = self._standing(low_cut), self._standing(high_cut)
        from_epochs = list(self.span(low_cut).values()) if start else [self.first]
        to_epochs = list(self.span(high_cut).values()) if end else [self.newest]
        sure = range(max(from_epochs), min(to_epochs) + 1)
        chosen = []
        lowest, highest = min(from_epochs), max(to_epochs)
        changes = self.changes[lowest + 1 - self.first : highest + 1 - self.first]
        for segment in (*self.epoch(lowest), *(piece for change in changes for piece in change.added)):
            sealed = self._sealed(segment.id)
            is_named = segment.id in start or segment.id in end
            surely = sure and segment_epoch(segment.id) < sure.stop and (sealed is None or sealed > sure.start)
            if (
                is_named
                or surely
                or (
                    all(before <= segment.id for before in ids_under(starts, segment))
                    and all(segment.id <= after for after in ids_under(ends, segment))
                )
            ):
                chosen.append(segment.id)
        return sorted(chosen)

    def plan_scale(
        self, current: int, sealed: Sequence[int], ranges: Sequence[KeyRange], *, min_segments: int, time_ms: int
    ) -> EpochChange:
        """Return the epoch after `current` in which `ranges` replace `sealed`. PreconditionError if the stream has
        changed, InvalidArgumentError if the ranges can't replace them."""
        active = {s.id: s for s in self.epoch(current)}
        if any(i not in active for i in sealed):
            raise PreconditionError(
                "a segment to be sealed is not in the current epoch: read the current segments again"
            )
        if not sealed or len(set(sealed)) != len(sealed):
            raise InvalidArgumentError("the segments to be sealed are missing or repeated: name each once")
        new_ranges = sorted(ranges)
        if any(not low < high for low, high in new_ranges):
            raise InvalidArgumentError("a new key range is empty or reversed: its end must exceed its start")
        if any(a[1] > b[0] for a, b in itertools.pairwise(new_ranges)):
            raise InvalidArgumentError("two of the new key ranges overlap: give disjoint ranges")
        if joined((active[i].low, active[i].high) for i in sealed) != joined(new_ranges):
            raise InvalidArgumentError("the new key ranges must cover the keys of the sealed segments exactly")
        if len(active) - len(sealed) + len(new_ranges) < min_segments:
            raise PreconditionError(f"the stream would have fewer than its minimum of {min_segments} segments")
        following = 1 + max(segment_number(i) for i in active)
        added = tuple(
            EpochSegment(segment_id(following + i, current + 1), low, high) for i, (low, high) in enumerate(new_ranges)
        )
        created_ms = max(time_ms, self.change(current).created_ms + 1)
        change = EpochChange(current + 1, current + 1, created_ms, tuple(sorted(sealed)), added)
        unchanged = [s for i, s in active.items() if i not in set(sealed)]
        assert tiles(sorted([*unchanged, *added], key=lambda s: s.low)), "every epoch tiles the key space"
        return change

    def plan_roll(self, current: int, txn_epoch: int, time_ms: int) -> tuple[EpochChange, EpochChange]:
        """Return the two epochs for committing transactions of an older epoch: first copies of its segments, to merge
        into, then copies of the current ones."""
        active, old = self.epoch(current), self.epoch(txn_epoch)
        merged = tuple(EpochSegment(copy_id(s.id, current + 1), s.low, s.high) for s in old)
        restored = tuple(EpochSegment(copy_id(s.id, current + 2), s.low, s.high) for s in active)
        time_ms = max(time_ms, self.change(current).created_ms + 1)
        merge = EpochChange(current + 1, self.reference(txn_epoch), time_ms, tuple(s.id for s in active), merged)
        restore = EpochChange(current + 2, self.reference(current), time_ms + 1, tuple(s.id for s in merged), restored)
        return merge, restore


def copy_id(segment: int, epoch: int) -> int:
    """Return the id of a segment's copy in another epoch: the number stays the same."""
    return segment_id(segment_number(segment), epoch)


def _gone(subject: str) -> EpochExpiredError:
    return EpochExpiredError(
        f"{subject} of this stream was truncated so long ago that its successors are forgotten: start at the stream's "
        "head; reset a reader group to it"
    )


_low = attrgetter("low")


def _taking(pieces: Sequence[EpochSegment], key: float) -> EpochSegment | None:
    """Return the segment that takes a key, of disjoint segments in order."""
    at = bisect.bisect_right(pieces, key, key=lambda piece: piece.high)
    return pieces[at] if at < len(pieces) and pieces[at].low <= key else None


def first_change(stream: StreamRecord) -> EpochChange:
    return EpochChange(0, 0, stream.epoch_created_ms, (), stream.segments)


def history_of(
    base: EpochBase | None, changes: Iterable[EpochChange], sizes: Iterable[SealedSizes]
) -> EpochHistory | None:
    """Assemble a history from its records, up to the first gap; None if its first epoch is missing."""
    first = -1 if base is None else base.epoch
    known = sorted((change for change in changes if change.epoch > first), key=lambda change: change.epoch)
    consecutive = itertools.takewhile(lambda item: item[1].epoch == first + 1 + item[0], enumerate(known))
    chain = [change for _, change in consecutive]
    began_ms: dict[int, int] = {}
    if base is not None:
        chain.insert(0, EpochChange(base.epoch, base.reference, base.created_ms, (), base.segments))
        began_ms = {piece.id: began for piece, began in zip(base.segments, base.began_ms, strict=True)}
    if not chain:
        return None
    history = EpochHistory(chain, began_ms=began_ms)
    for some in sizes:
        history.sizes |= {segment: size for segment, size in some.sizes.items() if not history.is_forgotten(segment)}
    return history


def base_of(history: EpochHistory, cleared: int) -> EpochBase:
    first = history.change(history.first)
    began_ms = tuple(history.began_ms(piece.id) for piece in first.added)
    return EpochBase(first.epoch, first.reference, first.created_ms, first.added, began_ms, cleared)


async def ask(runtime: Runtime, history: EpochHistory, question: Callable[[EpochHistory], T], *, cuts: int = 1) -> T:
    """Answer a `question` about the history and a number of cuts; it changes nothing and may raise any error. Comparing
    cuts of ten thousand segments takes 0.2 s, too long for the loop. So a single thread does it for all streams, on a
    view of the history, since the loop may add epochs meanwhile."""
    if len(history.segments) * cuts <= CUT_QUICK_SEGMENTS:
        return question(history)
    return await runtime.in_thread(question, history.view(), pool=_thread)
