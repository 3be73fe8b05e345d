"""A stream's epochs and what follows from them, without I/O.

An epoch is a set of segments that tiles the key space [0, 1); scaling a stream replaces some of them and makes the next
epoch. `EpochHistory` folds the recorded changes, and answers all questions about successors, stream cuts and ranges. A
segment's id contains the epoch that created it, so of two that share keys, the one with the smaller id is the earlier.
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
from nadi.errors import ConflictError, EpochGoneError, InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.limits import CUT_QUICK_SEGMENTS
from nadi.model.frontier import check_legal
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import KeyRange, SegmentRange, ids_under, joined, oldest_by_key, overlapping, tiles
from nadi.naming import segment_epoch, segment_id, segment_number
from nadi.runtime import Runtime

_RECENT_KEPT = 64  # epochs of one stream that were asked for lately
_LEAST_CHANGES = 16  # between two whole epochs
_thread = ThreadPoolExecutor(1, "nadi stream cuts")
T = TypeVar("T")
Cut = Mapping[int, int]


class PreconditionError(ConflictError):
    """The scale doesn't fit the stream as it is now: look at its current segments again."""


def first_epoch(count: int, created_ms: int, first_number: int = 0) -> EpochChange:
    """Epoch 0: `count` equal slices of the key space, numbered from `first_number`."""
    added = tuple(
        EpochSegment(segment_id(first_number + i), low, high) for i, (low, high) in enumerate(equal_ranges(count))
    )
    return EpochChange(0, 0, created_ms, (), added)


class EpochHistory:
    """The epochs of one stream, from the oldest that isn't forgotten (0, or that of `records.EpochBase`) to the newest.
    Each epoch is kept as its difference from the one before it, and some are whole: each as soon as what has changed
    since the last outweighs it, so an epoch is put together in a time that depends on its own size. Epochs are only
    ever added, so a view of the first ones stays right in another thread. changes: in order. segments: every known one,
    by id. sealed_in: for replaced segments, the first epoch without them. sizes: lengths of sealed segments. began_ms:
    of the first epoch's segments, when their own epoch began, if that is an older one."""

    def __init__(self, changes: Iterable[EpochChange], began_ms: Mapping[int, int] | None = None) -> None:
        self.changes: list[EpochChange] = []
        self.segments: dict[int, EpochSegment] = {}
        self.sealed_in: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.first, self.newest = 0, -1
        self._began_ms = dict(began_ms or {})
        self._stops: list[int] = []  # epochs that are kept whole
        self._wholes: list[tuple[EpochSegment, ...]] = []
        self._changed = 0  # segments, since the last of them
        self._recent: LRUCache[int, tuple[EpochSegment, ...]] = LRUCache(_RECENT_KEPT)  # put together lately
        self._sides: LRUCache[int, tuple[list[EpochSegment], list[EpochSegment]]] = LRUCache(_RECENT_KEPT)
        for change in sorted(changes, key=lambda change: change.epoch):
            self.add(change)

    def add(self, change: EpochChange) -> None:
        if not self.changes:
            self.first, self.newest = change.epoch, change.epoch - 1
        assert len(self.changes) == len(self), "a view is only read"
        if change.epoch <= self.newest:
            assert change.epoch <= self.first or self.change(change.epoch) == change, "an epoch is written once"
            return
        assert change.epoch == self.newest + 1, f"epoch {change.epoch} follows {self.newest}"
        self.changes.append(change)
        self.segments.update((segment.id, segment) for segment in change.added)
        self.sealed_in.update(dict.fromkeys(change.removed, change.epoch))
        self._changed += len(change.removed) + len(change.added)
        self.newest = change.epoch
        if not self._wholes or self._changed > max(len(self._wholes[-1]), _LEAST_CHANGES):
            whole = self._put_together(change.epoch)
            self._wholes.append(whole)
            self._stops.append(change.epoch)
            self._changed = 0

    def view(self) -> EpochHistory:
        """What is known now, to be asked in another thread; it can't be added to."""
        made = copy(self)
        made._recent, made._sides = LRUCache(_RECENT_KEPT), LRUCache(_RECENT_KEPT)
        return made

    def _put_together(self, epoch: int) -> tuple[EpochSegment, ...]:
        at = bisect.bisect_right(self._stops, epoch) - 1
        known, begin = (self._wholes[at], self._stops[at] + 1) if at >= 0 else ((), self.first)
        live = {segment.id: segment for segment in known}
        for number in range(begin, epoch + 1):
            change = self.change(number)
            for removed in change.removed:
                live.pop(removed, None)
            live.update((segment.id, segment) for segment in change.added)
        return tuple(sorted(live.values(), key=_low))

    def _find(self, segment: int) -> EpochSegment | None:
        found = self.segments.get(segment)
        return found if found is not None and segment_epoch(segment) <= self.newest else None

    def _sealed(self, segment: int) -> int | None:
        found = self.sealed_in.get(segment)
        return found if found is not None and found <= self.newest else None

    def epoch_at(self, time_ms: int) -> int:
        """The newest epoch that had started by that time, or the first."""
        at = bisect.bisect_right(self.changes, time_ms, hi=len(self), key=lambda change: change.created_ms)
        return self.first + max(0, at - 1)

    def __len__(self) -> int:
        return self.newest - self.first + 1

    def change(self, epoch: int) -> EpochChange:
        """How an epoch differs from the one before it; of the first known one, all its segments are `added`."""
        self._check_epoch(epoch)
        return self.changes[epoch - self.first]

    def reference(self, epoch: int) -> int:
        return self.change(epoch).reference

    def epoch(self, epoch: int) -> tuple[EpochSegment, ...]:
        self._check_epoch(epoch)
        found = self._recent.get(epoch)
        if found is None:
            found = self._recent[epoch] = self._put_together(epoch)
        return found

    def left_of(self, epoch: int) -> tuple[EpochSegment, ...]:
        """The segments of an epoch; of one that is forgotten, those that outlived it and are still known."""
        if not 0 <= epoch < self.first:
            return self.epoch(epoch)
        left = tuple(piece for piece in self.epoch(self.first) if segment_epoch(piece.id) <= epoch)
        if not left:
            raise _gone(f"epoch {epoch}")
        return left

    def began_ms(self, segment: int) -> int:
        known = self._began_ms.get(self._known(segment).id)
        return self.change(segment_epoch(segment)).created_ms if known is None else known

    def _check_epoch(self, epoch: int) -> None:
        if 0 <= epoch < self.first:
            raise _gone(f"epoch {epoch}")
        if not 0 <= epoch <= self.newest:
            raise NotFoundError(f"there is no epoch {epoch}: the newest is {self.newest}")

    def is_forgotten(self, segment: int) -> bool:
        """Whether the segment, if the stream ever had it, is only known to lie before the first known epoch."""
        return self.first > 0 and segment_epoch(segment) <= self.first and self._find(segment) is None

    def ids_after(self, segment: int) -> Iterator[int]:
        epoch = max(segment_epoch(segment), self.first)
        for change in map(self.change, range(epoch, self.newest + 1)):
            yield from sorted(piece.id for piece in change.added if piece.id > segment)

    def is_unknown(self, segment: int) -> bool:
        """Whether the stream never had such a segment, as far as is known."""
        return self._find(segment) is None and not self.is_forgotten(segment)

    def forgetting(self, first: int) -> EpochHistory:
        whole = self.epoch(first)
        change = self.change(first)
        base = EpochChange(first, change.reference, change.created_ms, (), whole)
        began_ms = {piece.id: self.began_ms(piece.id) for piece in whole if segment_epoch(piece.id) != first}
        made = EpochHistory([base, *self.changes[first + 1 - self.first :]], began_ms=began_ms)
        made.sizes = {segment: size for segment, size in self.sizes.items() if segment in made.segments}
        return made

    def successors(self, segment: int) -> list[tuple[EpochSegment, list[int]]]:
        """The segments that took over a replaced segment's keys, each with all its predecessors."""
        own = self._known(segment)
        sealed = self._sealed(segment)
        if sealed is None:
            return []
        change = self.change(sealed)
        before, after = self._two_sides(change)
        return [(new, [old.id for old in overlapping(before, new)]) for new in overlapping(after, own)]

    def _two_sides(self, change: EpochChange) -> tuple[list[EpochSegment], list[EpochSegment]]:
        """What an epoch replaced and what it added, by key: both take the same keys."""
        found = self._sides.get(change.epoch)
        if found is None:
            found = sorted(map(self._known, change.removed), key=_low), sorted(change.added, key=_low)
            self._sides[change.epoch] = found
        return found

    def _known(self, segment: int) -> EpochSegment:
        found = self._find(segment)
        if found is None and self.is_forgotten(segment):
            raise _gone(f"segment {segment}")
        if found is None:
            raise NotFoundError(f"there is no segment {segment} in this stream's history")
        return found

    def head_of_time(self) -> dict[int, int]:
        """The cut before the first known event: the first ever, unless older epochs are forgotten."""
        return {segment.id: 0 for segment in self.epoch(self.first)}

    def is_valid_cut(self, cut: Cut) -> bool:
        """Whether a reader of the whole stream could stand at this cut (see `nadi.model.frontier`); EpochGoneError if
        that is forgotten."""
        if not cut or any(self.is_unknown(segment) for segment in cut):
            return False
        pieces = [self._known(segment) for segment in cut]
        try:
            check_legal(cut, pieces, self._over_borders(oldest_by_key(pieces)))
        except InvalidStreamCutError:
            return False
        return True

    def _over_borders(self, standing: Sequence[SegmentRange]) -> Iterator[EpochSegment]:
        """All that a cut which stands so may have read to the end under some keys and not under others: segments over
        a border between two of the cut's, as old as the older one or newer, and older than the newer one. While the
        older one took events, nothing was over that border, for it is its own."""
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
        """Each segment of the cut with the highest epoch, up to that of the cut's newest one, that holds it."""
        top = max(segment_epoch(i) for i in cut)
        sealed = self._sealed
        return {i: top if (end := sealed(i)) is None else min(top, end - 1) for i in cut}

    def _standing(self, cut: Iterable[int]) -> list[SegmentRange]:
        """Where the cut stands: over each key in the oldest of its segments."""
        return oldest_by_key(map(self._known, cut))

    def passed(self, cut: Cut) -> Callable[[int], bool]:
        """A function that says whether a segment lies wholly before the cut; nothing lies before an empty cut."""
        place = self._standing(cut)

        def is_passed(segment: int) -> bool:
            found = list(ids_under(place, self._known(segment)))
            return bool(found) and min(found) > segment

        return is_passed

    def is_at_or_after(self, later: Cut, earlier: Cut) -> bool:
        """Whether no segment of `later` lies before `earlier`; what is forgotten lies before all that is known."""
        if any(later[i] < offset for i, offset in earlier.items() if i in later):
            return False
        place = self._standing(i for i in earlier if not self.is_forgotten(i))
        return all(segment.id >= before for segment in map(self._known, later) for before in ids_under(place, segment))

    def between(self, start: Cut, end: Cut) -> list[int]:
        """Ids of the segments from one cut to the other, the cuts' own included; an empty cut is the
        stream's first known epoch or its newest."""
        if not start and not end:
            raise InvalidArgumentError("give at least one of the two stream cuts")
        for cut in (start, end):
            if any(self.is_unknown(i) for i in cut):
                raise InvalidStreamCutError("the stream cut names a segment that this stream never had")
        if start and end and not self.is_at_or_after(end, start):
            raise InvalidStreamCutError("the end of the range lies before its start: swap the two stream cuts")
        low_cut = start or self.head_of_time()
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
        """The epoch after `current` in which `ranges` replace `sealed`. PreconditionError if the stream has moved on,
        InvalidArgumentError if the ranges can't replace them."""
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
        created_ms = max(time_ms, self.change(current).created_ms + 1)
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
        time_ms = max(time_ms, self.change(current).created_ms + 1)
        merge = EpochChange(current + 1, self.reference(txn_epoch), time_ms, tuple(s.id for s in active), merged)
        restore = EpochChange(current + 2, self.reference(current), time_ms + 1, tuple(s.id for s in merged), restored)
        return merge, restore


def copy_id(segment: int, epoch: int) -> int:
    """The id of a segment's duplicate in another epoch: the number stays."""
    return segment_id(segment_number(segment), epoch)


def _gone(what: str) -> EpochGoneError:
    return EpochGoneError(
        f"{what} of this stream was truncated away so long ago that what followed it is forgotten: start at the "
        "stream's head; reset a reader group to it"
    )


_low = attrgetter("low")


def _taking(pieces: Sequence[EpochSegment], key: float) -> EpochSegment | None:
    """Of disjoint segments in order, the one that takes a key."""
    at = bisect.bisect_right(pieces, key, key=lambda piece: piece.high)
    return pieces[at] if at < len(pieces) and pieces[at].low <= key else None


def first_change(stream: StreamRecord) -> EpochChange:
    return EpochChange(0, 0, stream.epoch_created_ms, (), stream.segments)


def history_of(
    base: EpochBase | None, changes: Iterable[EpochChange], sizes: Iterable[SealedSizes]
) -> EpochHistory | None:
    """The history that these records tell, up to the first gap in it; None if its first epoch is missing."""
    first = -1 if base is None else base.epoch
    told = sorted((change for change in changes if change.epoch > first), key=lambda change: change.epoch)
    whole = itertools.takewhile(lambda one: one[1].epoch == first + 1 + one[0], enumerate(told))
    chain = [change for _, change in whole]
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
    """The answer to `question` about the history and so many cuts; it changes nothing and may raise any error. Cuts of
    ten thousand segments are compared in a fifth of a second, during which the loop would serve nobody else. So one
    thread does it for all streams, on a view of the history, since the loop may add epochs meanwhile."""
    if len(history.segments) * cuts <= CUT_QUICK_SEGMENTS:
        return question(history)
    return await runtime.in_thread(question, history.view(), pool=_thread)
