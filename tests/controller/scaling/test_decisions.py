"""Hours of load in milliseconds: when segments are split and merged, and when they aren't."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.controller.scaling.decisions import CLASSIC, FAST, Profile, around, cut, sampled
from nadi.controller.state.records import StreamConfigRecord
from nadi.limits import SCALING_SEGMENTS_A_CHANGE
from nadi.model.load import KeySample, ScaleType
from nadi.model.segments import KeyRange

from .world import Keys, Wandering, World, even, policy


def test_a_fresh_hot_segment_is_split_within_10_s_and_is_in_16_pieces_within_a_minute() -> None:
    world = World([even(500, lambda _: 16_000)], FAST, policy(1_000, 32), noise=0.2)
    world.run(10)
    assert world.times("split")[0] <= 10
    world.run(50)
    assert len(world.segments) >= 16
    assert all(world.rate(segment) < 1_200 for segment in world.segments)
    count = len(world.segments)
    world.run(600)
    assert all(world.rate(segment) < 1_050 for segment in world.segments), "pieces that are too large are cut again"
    assert len(world.segments) <= count + 3, "a steady load causes hardly any further changes"
    count = len(world.segments)
    world.run(1_800)
    assert len(world.segments) == count


@pytest.mark.parametrize("factor", [0, 2, 3])
def test_a_split_makes_no_more_pieces_than_the_factor(factor: int) -> None:
    world = World([even(500, lambda _: 16_000)], FAST, policy(1_000, factor))
    world.run(120)
    splits = [step for _, decision in world.history for step in decision.steps]
    assert {len(step.into) for step in splits} <= set(range(2, max(2, factor) + 1))
    assert all(world.rate(segment) <= 1_200 for segment in world.segments)


def test_temporary_tenfold_load_splits_and_merges() -> None:
    world = World([even(400, lambda at: 8_000 if 600 <= at < 1_500 else 800)], FAST, policy(1_000), noise=0.1)
    world.run(599)
    assert len(world.segments) == 1
    world.run(61)
    assert len(world.segments) >= 8
    world.run(800)
    peak = len(world.segments)
    assert not world.kinds(since_s=700)
    world.run(600)
    assert len(world.segments) <= 2 < peak
    assert min(world.times("merge")) >= 1_500 + 60, "segments must be quiet for a minute"


def test_neighbours_that_go_quiet_one_after_the_other_are_merged_at_once() -> None:
    def until(end: float) -> Keys:
        return even(50, lambda at: 1_000 if at < end else 1, seed=int(end))

    world = World([until(end) for end in (200, 201, 203, 206, 208, 212)], FAST, policy(1_000), noise=0.1)
    world.run(200)
    assert len(world.segments) >= 6
    world.run(200)
    assert len(world.segments) == 1
    assert len(world.times("merge")) == 1


@pytest.mark.parametrize("profile", [FAST, CLASSIC])
@pytest.mark.parametrize(
    "times", [0.9, 1.0, 1.2, *(pytest.param(times, marks=pytest.mark.slow) for times in (0.5, 1.1, 1.3, 2.0))]
)
def test_a_load_at_a_threshold_does_not_flap(profile: Profile, times: float) -> None:
    world = World([even(300, lambda _: times * 1_000)], profile, policy(1_000), noise=0.15)
    world.run(1_800 if profile is FAST else 14_400)
    assert len(world.kinds()) <= 4, world.history
    for one, other in pairwise(at for at, _ in world.history):
        assert other - one >= 60


def test_a_curve_is_followed_up_and_down() -> None:
    def curve(at: float) -> float:
        return 5_000 * (1 - math.cos(2 * math.pi * at / 5_400)) / 2

    world = World([even(200, curve)], FAST, policy(500), noise=0.1)
    world.run(2_700)
    noon = len(world.segments)
    assert noon >= 10
    world.run(2_700)
    assert len(world.segments) <= 2
    assert len(world.history) <= 40, "few changes suffice"


def test_pieces_have_similar_load_for_any_key_distribution() -> None:
    keys = Keys([0.5 + 0.001 * i / 400 for i in range(400)], lambda _: 4_000)  # in 0.1 % of the key space
    world = World([keys], FAST, policy(1_000))
    world.run(30)
    rates = [world.rate(segment) for segment in world.segments]
    assert len(rates) >= 4
    assert max(rates) < 1_200


def test_hot_key_is_reported_once_and_not_split_in_vain() -> None:
    keys = [even(40, lambda _: 80), Keys([0.3], lambda _: 9_200.0)]
    world = World(keys, FAST, policy(1_000))
    world.run(900)
    assert world.kinds() == ["hot-key"]
    (hot,) = world.decider.hot_keys.values()
    assert hot is not None
    assert hot.position == 0.3
    assert hot.share > 0.95


def test_neighbours_of_a_hot_key_get_their_own_segments() -> None:
    world = World([even(400, lambda _: 6_000), Keys([0.3], lambda _: 4_000.0)], FAST, policy(1_000))
    world.run(300)
    (hot,) = (segment for segment in world.segments if segment.low <= 0.3 < segment.high)
    assert world.rate(hot) < 4_300
    assert all(world.rate(segment) < 1_200 for segment in world.segments if segment is not hot)
    assert list(world.decider.hot_keys) == [hot.id]
    changes = len(world.history)
    world.run(600)
    assert len(world.history) == changes


@pytest.mark.parametrize("every_s", [10, 30])
def test_wandering_hot_key_leaves_no_trail_of_segments(every_s: int) -> None:
    world = World([even(300, lambda _: 3_000), Wandering(4_000, every_s)], FAST, policy(1_000, 8), noise=0.1)
    world.run(60)
    begun = len([at for at, decision in world.history if decision.sealed])
    assert begun <= 4
    world.run(1_000)
    assert len([at for at, decision in world.history if decision.sealed]) <= begun + 10
    assert len(world.segments) <= 10


def test_unreported_hot_key_is_suspected_after_a_few_cuts() -> None:
    world = World([Keys([0.3], lambda _: 9_200.0)], FAST, policy(1_000, 2), sampled=False)
    world.run(1_200)
    assert world.kinds().count("split") == 3
    assert world.kinds().count("hot-key") == 1
    assert list(world.decider.hot_keys.values()) == [None]


def test_without_samples_ranges_are_cut_evenly() -> None:
    world = World([even(2_000, lambda _: 8_000)], FAST, policy(1_000, 4), sampled=False)
    world.run(120)
    assert all(world.rate(segment) <= 1_200 for segment in world.segments)
    first = world.history[0][1].steps[0]
    assert first.into == ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


def test_one_decision_changes_at_most_a_thousand_segments() -> None:
    """A policy that calls for 2,000 segments at once gets them gradually."""
    world = World([even(3_000, lambda _: 1_500)], FAST, policy(1, 1 << 30), sampled=False)
    world.run(15)
    assert len(world.segments) > 1_200
    world.keys = ()
    world.run(80)
    assert len(world.segments) < 200
    added = [len(decision.ranges) - len(decision.sealed) for _, decision in world.history]
    assert max(added) == SCALING_SEGMENTS_A_CHANGE
    assert min(added) >= -SCALING_SEGMENTS_A_CHANGE


def test_few_samples_divide_a_load_too() -> None:
    """Many keys in 0.1 % of the key space, with 40 samples: even cuts would be in vain."""
    keys = Keys([0.5 + 0.001 * i / 400 for i in range(400)], lambda _: 80)
    world = World([keys], FAST, policy(10), samples=40)
    world.run(30)
    first = world.history[0][1].steps[0]
    assert len(first.into) > 1
    assert len(first.into) == 5
    assert all(0.5 < low < 0.501 for low, _ in first.into[1:])
    assert len(world.segments) >= 8
    assert max(world.rate(segment) for segment in world.segments) < 20


def test_never_fewer_segments_than_the_minimum() -> None:
    world = World([even(100, lambda at: 9_000 if at < 100 else 0)], FAST, policy(1_000, least=3))
    world.run(2_000)
    assert len(world.segments) == 3


def test_classic_profile_reacts_slowly() -> None:
    world = World([even(300, lambda at: 6_000 if at < 7_200 else 0)], CLASSIC, policy(1_000))
    world.run(590)
    assert not world.history
    world.run(7_200)
    assert len(world.segments) == 6
    world.run(6 * 3600)
    assert len(world.segments) == 1
    assert min(world.times("merge")) > 7_200
    assert all(len(step.segments) <= 3 for _, d in world.history for step in d.steps if step.kind == "merge")


def test_a_fixed_stream_and_one_without_a_target_are_left_alone() -> None:
    for config in (
        StreamConfigRecord(ScaleType.FIXED, 0, 0, 1),
        StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, 0, 2, 1),
    ):
        world = World([even(100, lambda _: 90_000)], FAST, config)
        world.run(300)
        assert not world.history


def test_rates_in_bytes_are_weighed_in_kib() -> None:
    world = World(
        [even(200, lambda _: 40_960)], FAST, StreamConfigRecord(ScaleType.KIB_PER_SECOND, 1_000, 16, 1)
    )  # 100 B each
    world.run(60)
    assert 4 <= len(world.segments) <= 6


def test_a_policy_changed_meanwhile_counts_from_then_on() -> None:
    world = World([even(300, lambda _: 4_000)], FAST, policy(10_000))
    world.run(300)
    assert not world.history
    world.config = policy(500)
    world.run(60)
    assert len(world.segments) >= 8
    world.config = policy(10_000)
    world.run(300)
    assert len(world.segments) == 1


def test_time_without_a_store_is_not_quiet_time() -> None:
    """The store is unreachable for two minutes soon after a load fell, and measures afresh when the load is back."""
    world = World([even(300, lambda at: 0 if 100 <= at < 243 else 4_000)], FAST, policy(1_000))
    world.run(120)
    assert len(world.segments) >= 4
    world.now_s += 120
    world.rates.clear()
    world.run(30)
    assert "merge" not in world.kinds()


def test_restarted_judge_changes_nothing_at_a_steady_load() -> None:
    world = World([even(300, lambda _: 7_000)], FAST, policy(1_000), noise=0.1)
    world.run(200)
    segments = list(world.segments)
    world.decider = type(world.decider)(FAST)
    world.run(600)
    assert world.segments == segments


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    keys=st.integers(1, 300),
    loads=st.lists(st.integers(0, 20_000), min_size=1, max_size=6),
    factor=st.integers(0, 20),
    least=st.integers(1, 5),
    sampled=st.booleans(),
)
def test_whatever_the_load_the_key_space_stays_tiled_and_the_limits_hold(
    seed: int, keys: int, loads: list[int], factor: int, least: int, sampled: bool
) -> None:
    """World checks the tiling at every change."""
    world = World(
        [even(keys, lambda at: loads[int(at / 150) % len(loads)], seed)], FAST, policy(1_000, factor, least), sampled
    )
    for _ in loads:
        world.run(150)
        assert len(world.segments) >= least
    for _, decision in world.history:
        assert all(len(step.into) <= max(2, factor) for step in decision.steps)


# --- cuts of ranges: whatever positions writers report, the pieces tile the range -------------------


def near(base: float, steps: int) -> float:
    """Return the number `steps` representable numbers above the base."""
    for _ in range(steps):
        base = math.nextafter(base, 2.0)
    return base


POSITIONS = st.builds(near, st.sampled_from([0.0, 0.25, 0.5, 0.3]), st.integers(0, 5)) | st.floats(
    0, 1, exclude_max=True
)


def check(made: list[KeyRange], low: float, high: float, pieces: int) -> None:
    assert made[0][0] == low
    assert made[-1][1] == high
    assert all(one < other for one, other in made)
    assert all(one[1] == other[0] for one, other in pairwise(made))
    assert len(made) <= pieces


@settings(max_examples=200, deadline=None)
@given(
    keys=st.lists(st.tuples(POSITIONS, st.integers(1, 30)), min_size=1, max_size=20),
    weight=st.sampled_from([1.0, 1e-300, 1e300]),
    ends=st.sampled_from([(0.0, 1.0), (0.25, 0.5), (0.25, near(0.25, 4))]),
    pieces=st.integers(2, 20),
)
def test_pieces_tile_the_range(keys: list[tuple[float, int]], weight: float, ends: KeyRange, pieces: int) -> None:
    positions = tuple(position for position, times in keys for _ in range(times))
    sample = sampled(KeySample(positions, (weight,) + (1.0,) * (len(positions) - 1)), *ends)
    check(cut(sample, pieces), *ends, pieces)
    hot = sample.heaviest()
    if hot is not None:
        made = around(sample, hot, pieces)
        check(made, *ends, pieces)
        assert len(made) > 1 or len(sample.positions) == 1


@pytest.mark.parametrize("others", [(0.1, 0.2), (0.8, 0.9)])
def test_two_pieces_divide_a_hot_key_from_where_most_others_are(others: tuple[float, float]) -> None:
    positions = (0.5,) * 60 + (0.3,) * 5 + others * 15
    sample = sampled(KeySample(positions, (1.0,) * len(positions)), 0.0, 1.0)
    hot = sample.heaviest()
    assert hot is not None
    ((_, border), _) = around(sample, hot, 2)
    assert border == pytest.approx(0.4 if others[0] < 0.5 else 0.65)
