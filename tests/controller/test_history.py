"""Properties of a stream's history over random scales and rolling transactions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import epochs
from nadi.controller.state.history import Cut, EpochHistory, PreconditionError, first_epoch
from nadi.controller.state.records import EpochChange, EpochSegment
from nadi.errors import EpochExpiredError, InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import share_keys
from nadi.naming import segment_id, segment_number

from .plain_history import PlainHistory
from .support import STREAM, scaled, settle, with_stream


def random_history(seed: int, scales: int, first: int = 3) -> EpochHistory:
    """Make a history of random splits, merges of neighbours, and occasional rolling transactions."""
    rng = random.Random(seed)
    history = EpochHistory([first_epoch(first, 1_000)])
    while history.newest < scales:
        current = history.newest
        active = history.epoch(current)
        if rng.random() < 0.15 and current > 0:
            old = history.reference(rng.randrange(current))
            if old != history.reference(current):
                for change in history.plan_roll(current, old, 0):
                    history.add(change)
                continue
        start = rng.randrange(len(active))
        sealed = active[start : start + rng.randint(1, 3)]
        low, high = sealed[0].low, sealed[-1].high
        count = rng.randint(1, 3)
        if high - low < 1e-3 or len(active) > 10:
            count = 1
        change = history.plan_scale(
            current, [s.id for s in sealed], equal_ranges(count, low, high), min_segments=1, time_ms=0
        )
        history.add(change)
    return history


histories = st.builds(random_history, st.integers(0, 1 << 30), st.integers(0, 12), st.integers(1, 5))


def read_on(history: EpochHistory, rng: random.Random, cut: dict[int, int], read: set[int]) -> dict[int, int]:
    """Return the cut of a reader group after it has read one of its segments to the end."""
    present = [i for i, offset in cut.items() if offset >= 0 and i in history.sealed_in]
    if not present:
        return cut
    done = rng.choice(present)
    read.add(done)
    remaining = {i: offset for i, offset in cut.items() if i != done}
    for new, before in history.successors(done):
        remaining[new.id] = 0 if read.issuperset(before) else -1
    return remaining


@given(histories, st.integers(0, 1 << 30))
@settings(max_examples=120)
def test_every_reader_position_is_a_valid_cut_after_the_previous(history: EpochHistory, seed: int) -> None:
    rng = random.Random(seed)
    cut = head = history.first_cut()
    tail = {s.id: 5 for s in history.epoch(history.newest)}
    read: set[int] = set()
    assert history.is_valid_cut(cut)
    for _ in range(40):
        following = read_on(history, rng, cut, read)
        assert history.is_valid_cut(following), (cut, following)
        assert history.is_at_or_after(following, cut)
        assert following == cut or not history.is_at_or_after(cut, following)
        assert history.is_at_or_after(tail, following)
        # what was read is before the cut, everything else after it
        named = set(following)
        assert set(history.between(head, following)) - named == read - named
        assert set(history.between(following, {})) - named == set(history.segments) - read - named
        cut = following
    assert history.is_valid_cut(tail)
    assert history.is_at_or_after(tail, history.first_cut())
    assert history.between(history.first_cut(), tail) == sorted(history.segments)
    assert history.between({}, tail) == sorted(history.segments)


@given(histories)
def test_every_epoch_is_a_valid_cut_unless_it_has_a_hole(history: EpochHistory) -> None:
    for epoch in range(history.newest + 1):
        cut = {s.id: 0 for s in history.epoch(epoch)}
        assert history.is_valid_cut(cut)
        for missing in cut:
            assert not history.is_valid_cut({i: o for i, o in cut.items() if i != missing})
    assert not history.is_valid_cut({})
    assert not history.is_valid_cut({segment_id(0, 999): 0})


def test_cut_with_segments_before_and_after_a_merge_is_invalid() -> None:
    history = EpochHistory([first_epoch(2, 0)])
    for sealed, ranges in [([0, 1], [(0.0, 1.0)]), ([segment_id(2, 1)], [(0.0, 0.5), (0.5, 1.0)])]:
        history.add(history.plan_scale(history.newest, sealed, ranges, min_segments=1, time_ms=0))
    (merged,), (left, right) = [s.id for s in history.epoch(1)], [s.id for s in history.epoch(2)]
    for cut in ({0: 5, 1: 7}, {0: 5, merged: -1}, {merged: 3}, {merged: -1}, {left: 2, right: 4}, {left: -1, right: 4}):
        assert history.is_valid_cut(cut), cut
    for cut in ({0: 5, right: 4}, {left: 0, 1: 7}, {0: 5, merged: 3}, {0: 5, merged: -1, right: 4}, {0: 5, right: -1}):
        assert not history.is_valid_cut(cut), cut


@given(histories, st.integers(0, 1 << 30))
@settings(max_examples=120)
def test_a_valid_cut_can_be_reached_by_reading(history: EpochHistory, seed: int) -> None:
    """A mixture of two epochs is valid only if a reader group can reach it."""
    rng = random.Random(seed)
    first, second = sorted(rng.randrange(history.newest + 1) for _ in range(2))
    cut = {s.id: 0 for s in history.epoch(first)}
    for segment in history.epoch(second):
        if rng.random() < 0.5:
            cut = {i: at for i, at in cut.items() if not share_keys(history.segments[i], segment)} | {segment.id: 0}
    if not history.is_valid_cut(cut):
        return
    reached, read = history.first_cut(), set[int]()
    while behind := [
        i
        for i, offset in reached.items()
        if offset >= 0 and i not in cut and any(share_keys(history.segments[i], history.segments[j]) for j in cut)
    ]:
        done = behind[0]
        read.add(done)
        del reached[done]
        for new, before in history.successors(done):
            reached[new.id] = 0 if read.issuperset(before) else -1
    assert {i for i, offset in reached.items() if offset >= 0} == set(cut), (cut, reached)


def test_invalid_scales_are_rejected() -> None:
    history = EpochHistory([first_epoch(4, 0)])

    def plan(sealed: list[int], ranges: list[tuple[float, float]], least: int = 1) -> None:
        history.plan_scale(0, sealed, ranges, min_segments=least, time_ms=0)

    plan([0, 3], [(0.0, 0.1), (0.1, 0.25), (0.75, 1.0)])
    for sealed, ranges in [
        ([0], [(0.0, 0.2)]),
        ([0], [(0.0, 0.3)]),
        ([0], [(0.0, 0.15), (0.1, 0.25)]),
        ([0], [(0.0, 0.25), (0.2, 0.2)]),
        ([0], [(0.0, float("nan"))]),
        ([0, 0], [(0.0, 0.25)]),
        ([], []),
        ([0, 3], [(0.0, 1.0)]),
    ]:
        with pytest.raises(InvalidArgumentError):
            plan(sealed, ranges)
    with pytest.raises(PreconditionError):
        plan([9], [(0.0, 0.25)])
    with pytest.raises(PreconditionError):
        plan([0, 1], [(0.0, 0.5)], 4)


def test_unknown_segments_and_wrong_order_raise_errors() -> None:
    history = random_history(1, 4)
    with pytest.raises(NotFoundError):
        history.successors(segment_id(7, 99))
    with pytest.raises(NotFoundError):
        history.epoch(99)
    with pytest.raises(InvalidArgumentError):
        history.between({}, {})
    head, tail = history.first_cut(), {s.id: 1 for s in history.epoch(4)}
    with pytest.raises(InvalidStreamCutError):
        history.between(tail, head)
    with pytest.raises(InvalidStreamCutError):
        history.between({segment_id(7, 99): 0}, {})


# --- histories of very many epochs, parts of which are forgotten, answer like ones that forget nothing ---


class Twins:
    """The same history twice: `history` forgets at times, `plain` never. `head`: where it was truncated."""

    def __init__(self, seed: int, first: int) -> None:
        self.chance = random.Random(seed)
        self.plain = PlainHistory()
        self.history = EpochHistory([first_epoch(first, 1_000)])
        self.plain.add(self.history.change(0))
        self.head: dict[int, int] = self.history.first_cut()

    def live(self, most: int = 10) -> None:
        what = self.chance.random()
        if what < 0.12:
            self.roll()
        elif what < 0.17:
            self.rebuild()
        elif what < 0.22:
            self.truncate()
        elif what < 0.27:
            self.forget()
        else:
            self.scale(most)

    def scale(self, most: int) -> None:
        history, chance = self.history, self.chance
        active = history.epoch(history.newest)
        start = chance.randrange(len(active))
        sealed = active[start : start + chance.randint(1, 3)]
        low, high = sealed[0].low, sealed[-1].high
        count = 1 if high - low < 1e-3 or len(active) >= most else chance.randint(1, 3)
        ranges = equal_ranges(count, low, high)
        self._add(history.plan_scale(history.newest, [s.id for s in sealed], ranges, min_segments=1, time_ms=0))

    def roll(self) -> None:
        """Roll a transaction of an epoch that is still known."""
        history = self.history
        old = history.reference(self.chance.randrange(history.first, history.newest + 1))
        if history.first <= old != history.reference(history.newest):
            for change in history.plan_roll(history.newest, old, 0):
                self._add(change)

    def rebuild(self) -> None:
        """Add an epoch that replaces all segments."""
        live, epoch = self.history.epoch(self.history.newest), self.history.newest + 1
        number = max(segment_number(piece.id) for piece in live) + 1
        count = self.chance.randint(1, 4)
        ids = [segment_id(number + i, epoch) for i in range(count)]
        added = tuple(EpochSegment(i, *keys) for i, keys in zip(ids, equal_ranges(count), strict=True))
        began_ms = self.history.change(epoch - 1).created_ms + self.chance.randint(1, 9)
        self._add(EpochChange(epoch, epoch, began_ms, tuple(piece.id for piece in live), added))

    def _add(self, change: EpochChange) -> None:
        self.history.add(change)
        self.plain.add(change)
        for removed in change.removed:
            self.history.sizes[removed] = removed % 97

    def truncate(self) -> None:
        self.head = self.further(self.head, self.chance.randint(1, 30))

    def forget(self) -> None:
        """Forget as much as the head allows, or less."""
        most = min(self.plain.span(self.head).values())
        if most > self.history.first:
            self.history = self.history.forgetting(self.chance.randint(self.history.first, most))

    def further(self, cut: Cut, steps: int) -> dict[int, int]:
        """Return a cut reached by reading on from a cut: some of its segments to their ends."""
        at = dict(cut)
        for _ in range(steps):
            done = self.chance.choice([i for i, offset in at.items() if offset >= 0])
            following = self.plain.successors(done)
            if not following:
                at[done] += self.chance.randint(0, 3)
                continue
            del at[done]
            for new, before in following:
                waits = any(i in at for i in before) or self._is_under(new.id, at)
                at[new.id] = -1 if waits else 0
        return at

    def _is_under(self, segment: int, cut: Cut) -> bool:
        own = self.plain.segments[segment]
        others = (self.plain.segments[i] for i in cut if i < segment)
        return any(other.low < own.high and own.low < other.high for other in others)

    def anywhere(self) -> dict[int, int]:
        """Return known segments of a few epochs, which may not be a cut at all."""
        first, newest = self.history.first, self.history.newest
        cut: dict[int, int] = {}
        for _ in range(self.chance.randint(1, 3)):
            pieces = self.history.epoch(self.chance.randint(first, newest))
            low, high = sorted(self.chance.sample(range(len(pieces) + 1), 2))
            cut |= {piece.id: self.chance.choice([0, 5, -1]) for piece in pieces[low:high]}
        return cut

    def mixed(self) -> dict[int, int]:
        """Return a mixture: up to a border the segments of one epoch, after it those of another."""
        first, newest = self.history.first, self.history.newest
        one, other = (self.history.epoch(self.chance.randint(first, newest)) for _ in range(2))
        border = self.chance.choice(sorted({piece.low for piece in one} & {piece.low for piece in other}))
        return {p.id: 0 for p in one if p.low < border} | {p.id: 0 for p in other if p.low >= border}

    def check(self) -> None:
        history, plain = self.history, self.plain
        assert history.newest == len(plain.changes) - 1
        for epoch in range(history.newest + 1):
            if epoch < history.first:
                with pytest.raises(EpochExpiredError):
                    history.epoch(epoch)
            else:
                assert history.epoch(epoch) == plain.epoch(epoch), epoch
                assert history.epoch_at(plain.changes[epoch].created_ms) == epoch
        for segment in plain.segments:
            if history.is_forgotten(segment):
                assert self.plain.sealed_in[segment] <= history.first
                assert plain.has_passed(self.head, segment)
                with pytest.raises(EpochExpiredError):
                    history.successors(segment)
                continue
            assert history.successors(segment) == plain.successors(segment), segment
            assert history.began_ms(segment) == plain.changes[segment >> 32].created_ms
            assert history.passed(self.head)(segment) == plain.has_passed(self.head, segment)
        ids = sorted(history.segments)
        assert list(history.ids_after(-1)) == ids
        assert list(history.ids_after(ids[len(ids) // 2])) == ids[len(ids) // 2 + 1 :]
        never = segment_id(999, history.newest + 1)  # a segment of the first known epoch may be forgotten
        assert history.is_unknown(never)
        with pytest.raises(NotFoundError):
            history.successors(never)
        self._check_cuts()

    def _check_cuts(self) -> None:
        history, plain = self.history, self.plain
        for odd in (make() for _ in range(10) for make in (self.anywhere, self.mixed)):
            assert history.is_valid_cut(odd) == plain.is_valid_cut(odd), odd
        cuts = [self.head]
        for _ in range(6):
            cuts.append(self.further(self.chance.choice(cuts), self.chance.randint(0, 12)))
        for cut in cuts:
            assert history.is_valid_cut(cut), cut
            assert history.span(cut) == plain.span(cut)
            other = self.chance.choice(cuts)
            assert history.is_at_or_after(cut, other) == plain.is_at_or_after(cut, other)
            if plain.is_at_or_after(cut, other):
                assert history.between(other, cut) == plain.between(other, cut), (other, cut)


@given(st.integers(0, 1 << 30), st.integers(1, 5), st.integers(0, 60))
@settings(max_examples=60)
def test_forgetful_history_answers_like_a_complete_one(seed: int, first: int, steps: int) -> None:
    twins = Twins(seed, first)
    for _ in range(steps):
        twins.live()
    twins.check()


@given(st.integers(0, 1 << 30))
@settings(max_examples=25)
def test_view_is_immutable(seed: int) -> None:
    twins = Twins(seed, 3)
    for _ in range(20):
        twins.live()
    view, then = twins.history.view(), twins.history.forgetting(twins.history.first)
    for _ in range(20):
        twins.live()
    assert (view.first, view.newest) == (then.first, then.newest)
    for epoch in range(view.first, view.newest + 1):
        assert view.epoch(epoch) == then.epoch(epoch)
    for segment in then.segments:
        assert view.successors(segment) == then.successors(segment)
    assert all(view.is_unknown(i) or view.is_forgotten(i) for i in twins.history.segments.keys() - then.segments.keys())
    tail = {piece.id: 0 for piece in then.epoch(then.newest)}
    assert view.between(then.first_cut(), {}) == then.between(then.first_cut(), tail)


def long_history(count: int) -> EpochHistory:
    """Make a history in which random neighbours are split and merged, 4 to 16 segments at a time."""
    chance = random.Random(count)
    history = EpochHistory([first_epoch(4, 0)])
    for epoch in range(count):
        active = history.epoch(epoch)
        at = chance.randrange(len(active) - 1)
        is_wide = active[at].high - active[at].low > 1e-6
        splits = len(active) == 4 or (len(active) < 16 and is_wide and chance.random() < 0.5)
        sealed = active[at : at + (1 if splits else 2)]
        ranges = equal_ranges(2 if splits else 1, sealed[0].low, sealed[-1].high)
        history.add(history.plan_scale(epoch, [s.id for s in sealed], ranges, min_segments=1, time_ms=0))
    return history


class Looks:
    """Counts accesses to changes and segments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        change, find = EpochHistory.change, EpochHistory._find

        def counted_change(history: EpochHistory, epoch: int) -> EpochChange:
            self.count += 1
            return change(history, epoch)

        def counted_find(history: EpochHistory, segment: int) -> EpochSegment | None:
            self.count += 1
            return find(history, segment)

        monkeypatch.setattr(EpochHistory, "change", counted_change)
        monkeypatch.setattr(EpochHistory, "_find", counted_find)

    def of(self, ask: Callable[[], object]) -> int:
        before = self.count
        ask()
        return self.count - before


def test_query_cost_is_independent_of_the_number_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = [long_history(count) for count in (200, 2_000)]
    looks = Looks(monkeypatch)
    for _ in range(2):
        for name, most in _costs(histories[-1], looks):
            assert most <= 200, f"{name} looked {most} times"
    few, many = (looks.of(partial(all_successors, history)) for history in histories)
    assert many < 15 * few, f"successors from head to tail: {few} for 200 epochs, {many} for 2,000"
    assert looks.of(partial(long_history, 2_000)) < 30 * looks.of(partial(long_history, 100))


def all_successors(history: EpochHistory) -> list[object]:
    return [history.successors(segment) for segment in list(history.segments)]


def _costs(history: EpochHistory, looks: Looks) -> Iterator[tuple[str, int]]:
    chance, newest = random.Random(5), history.newest
    for epoch in chance.sample(range(newest - 3), 50):
        cut, near, tail = ({piece.id: 0 for piece in history.epoch(at)} for at in (epoch, epoch + 3, newest))
        yield "an epoch", looks.of(partial(history.epoch, epoch + 1))
        yield "successors", looks.of(partial(history.successors, chance.choice(list(cut))))
        yield "a cut", looks.of(partial(history.is_valid_cut, cut))
        yield "a range", looks.of(partial(history.between, cut, near))
        yield "the order of two cuts", looks.of(partial(history.is_at_or_after, tail, cut))
        yield "a time", looks.of(partial(history.epoch_at, history.change(epoch).created_ms))


async def commands_of_scalings(count: int) -> list[list[str]]:
    """Return the commands that a controller sends to its store for each of `count` scalings."""
    chance, commands = random.Random(3), []
    async with with_stream(4) as (controller, store, _):
        for _ in range(count):
            active = await controller.current_segments(STREAM)
            at = chance.randrange(len(active) - 1)
            splits = len(active) == 4 or (len(active) < 8 and active[at].high - active[at].low > 1e-6)
            sealed = active[at : at + (1 if splits else 2)]
            ranges = equal_ranges(2 if splits else 1, sealed[0].low, sealed[-1].high)
            del store.log[:]
            await scaled(controller, [piece.id for piece in sealed], ranges)
            await settle(20)
            commands.append([type(command).__name__ for command in store.log])
    return commands


async def test_commands_per_scaling_are_constant() -> None:
    scalings = await commands_of_scalings(120)
    asked = [len(commands) for commands in scalings]
    assert max(asked[1:]) <= max(asked[1:10])
    assert not any("ReadTableEntries" in commands for commands in scalings[1:]), "the history is not read again"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_stream_that_scaled_ten_thousand_times(tmp_path: Path) -> None:
    figures = {figure.name: figure.value for figure in epochs.epochs(tmp_path, 10_000)}
    for name, value in figures.items():
        print(f"{name:60} {value:12,.3f}")
    first, last = (figures[f"one scaling, the {which} of 10,000, p50"] for which in ("first", "last"))
    assert last < 3 * first
    assert figures["memory that reading it added then"] < figures["memory that reading it after a restart added"]
