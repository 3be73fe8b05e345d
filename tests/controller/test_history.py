"""Properties of a stream's history over random scales and rolling transactions."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.controller.state.history import History, PreconditionError, first_epoch
from nadi.errors import InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import share_keys, tiles
from nadi.naming import segment_epoch, segment_id


def random_history(seed: int, scales: int, first: int = 3) -> History:
    """Splits, merges of neighbours, and now and then a rolling transaction."""
    rng = random.Random(seed)
    history = History([first_epoch(first, 1_000)])
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


@given(histories)
def test_every_epoch_tiles_the_key_space_with_equal_borders(history: History) -> None:
    for epoch in range(history.newest + 1):
        assert tiles(history.epoch(epoch))
    times = [change.created_ms for change in history.changes]
    assert times == sorted(set(times))


@given(histories)
def test_successors_and_predecessors_mirror_each_other(history: History) -> None:
    active = {s.id for s in history.epoch(history.newest)}
    for segment in history.segments.values():
        found = history.successors(segment.id)
        assert bool(found) == (segment.id not in active)
        for new, before in found:
            assert segment.id in before
            assert share_keys(new, segment)
            assert all(segment_epoch(old) < segment_epoch(new.id) or old == new.id for old in before)
            for old in before:
                if old in history.sealed_in and history.sealed_in[old] == history.sealed_in[segment.id]:
                    assert new.id in [s.id for s, _ in history.successors(old)]
        if found:  # together they hold all its keys, contiguous
            new_ones = sorted((s for s, _ in found), key=lambda s: s.low)
            assert new_ones[0].low <= segment.low
            assert new_ones[-1].high >= segment.high
            assert all(a.high == b.low for a, b in itertools.pairwise(new_ones))


def read_on(history: History, rng: random.Random, cut: dict[int, int], read: set[int]) -> dict[int, int]:
    """The cut of a group of readers after they have read one present segment to its end."""
    present = [i for i, offset in cut.items() if offset >= 0 and i in history.sealed_in]
    if not present:
        return cut
    done = rng.choice(present)
    read.add(done)
    left = {i: offset for i, offset in cut.items() if i != done}
    for new, before in history.successors(done):
        left[new.id] = 0 if read.issuperset(before) else -1
    return left


@given(histories, st.integers(0, 1 << 30))
@settings(max_examples=120)
def test_every_place_a_reader_can_be_at_is_a_valid_cut_after_the_last(history: History, seed: int) -> None:
    rng = random.Random(seed)
    cut = head = history.head_of_time()
    tail = {s.id: 5 for s in history.epoch(history.newest)}
    read: set[int] = set()
    assert history.is_valid_cut(cut)
    for _ in range(40):
        following = read_on(history, rng, cut, read)
        assert history.is_valid_cut(following), (cut, following)
        assert history.is_at_or_after(following, cut)
        assert following == cut or not history.is_at_or_after(cut, following)
        assert history.is_at_or_after(tail, following)
        # what was read lies before the cut, what wasn't lies after it
        named = set(following)
        assert set(history.between(head, following)) - named == read - named
        assert set(history.between(following, {})) - named == set(history.segments) - read - named
        cut = following
    assert history.is_valid_cut(tail)
    assert history.is_at_or_after(tail, history.head_of_time())
    assert history.between(history.head_of_time(), tail) == sorted(history.segments)
    assert history.between({}, tail) == sorted(history.segments)


@given(histories)
def test_every_epoch_is_a_cut_and_a_hole_in_it_is_none(history: History) -> None:
    for epoch in range(history.newest + 1):
        cut = {s.id: 0 for s in history.epoch(epoch)}
        assert history.is_valid_cut(cut)
        for missing in cut:
            assert not history.is_valid_cut({i: o for i, o in cut.items() if i != missing})
    assert not history.is_valid_cut({})
    assert not history.is_valid_cut({segment_id(0, 999): 0})


def test_a_cut_of_what_comes_before_and_after_a_merge_is_none() -> None:
    history = History([first_epoch(2, 0)])
    for sealed, ranges in [([0, 1], [(0.0, 1.0)]), ([segment_id(2, 1)], [(0.0, 0.5), (0.5, 1.0)])]:
        history.add(history.plan_scale(history.newest, sealed, ranges, min_segments=1, time_ms=0))
    (merged,), (left, right) = [s.id for s in history.epoch(1)], [s.id for s in history.epoch(2)]
    for cut in ({0: 5, 1: 7}, {0: 5, merged: -1}, {merged: 3}, {merged: -1}, {left: 2, right: 4}, {left: -1, right: 4}):
        assert history.is_valid_cut(cut), cut
    for cut in ({0: 5, right: 4}, {left: 0, 1: 7}, {0: 5, merged: 3}, {0: 5, merged: -1, right: 4}, {0: 5, right: -1}):
        assert not history.is_valid_cut(cut), cut


@given(histories, st.integers(0, 1 << 30))
@settings(max_examples=120)
def test_a_valid_cut_can_be_reached_by_reading(history: History, seed: int) -> None:
    """Any mixture of two epochs is valid only if a group of readers can come to stand there."""
    rng = random.Random(seed)
    first, second = sorted(rng.randrange(history.newest + 1) for _ in range(2))
    cut = {s.id: 0 for s in history.epoch(first)}
    for segment in history.epoch(second):
        if rng.random() < 0.5:
            cut = {i: at for i, at in cut.items() if not share_keys(history.segments[i], segment)} | {segment.id: 0}
    if not history.is_valid_cut(cut):
        return
    reached, read = history.head_of_time(), set[int]()
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


def test_bad_scales_are_refused() -> None:
    history = History([first_epoch(4, 0)])

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


def test_unknown_segments_and_wrong_order_are_told() -> None:
    history = random_history(1, 4)
    with pytest.raises(NotFoundError):
        history.successors(segment_id(7, 99))
    with pytest.raises(NotFoundError):
        history.epoch(99)
    with pytest.raises(InvalidArgumentError):
        history.between({}, {})
    head, tail = history.head_of_time(), {s.id: 1 for s in history.epoch(4)}
    with pytest.raises(InvalidStreamCutError):
        history.between(tail, head)
    with pytest.raises(InvalidStreamCutError):
        history.between({segment_id(7, 99): 0}, {})
