"""Rates of segments: exact for constant loads at any age, decaying after bursts, limited in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi import limits
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.segmentstore.counts import LoadMeter

S = "home/meters/0.#epoch.0"
TRANSACTION = f"{S}#transaction.{1:032x}"
TRANSIENT = f"{S}#transient.{1:032x}.{2:032x}"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[LoadMeter, Clock]:
    clock = Clock()
    return LoadMeter(clock), clock


def run(meter: LoadMeter, clock: Clock, seconds: float, per_s: float, *, step_s: float = 0.1, segment: str = S) -> None:
    """A steady load: frames of as many events as belong to the time before them."""
    for _ in range(round(seconds / step_s)):
        clock.now += step_s
        meter.count([(segment, round(per_s * step_s), round(100 * per_s * step_s))], clock.now)


def only(meter: LoadMeter) -> SegmentLoad:
    (load,) = meter.loads()
    return load


@settings(max_examples=40, deadline=None)
@given(
    per_step=st.integers(1, 10_000),
    step_s=st.sampled_from([0.01, 0.1, 0.3, 0.7, 1.5]),
    seconds=st.sampled_from([3, 15, 100, 1500]),
)
def test_a_constant_rate_is_the_rate_of_each_window_at_any_age(per_step: int, step_s: float, seconds: float) -> None:
    meter, clock = made()
    meter.count([(S, 0, 0)], clock.now)  # the first frame begins the age, so it isn't one too many
    steps = min(round(seconds / step_s), 2_000)
    for _ in range(steps):
        clock.now += step_s
        meter.count([(S, per_step, 7 * per_step)], clock.now)
    load = only(meter)
    rate = per_step / step_s
    # a fold lies before or after a frame: a young segment's mean is that of one frame more or less
    assert load.events_per_s == pytest.approx([rate] * len(WINDOWS_S), rel=1.1 * step_s)
    assert load.bytes_per_s == pytest.approx([7 * mean for mean in load.events_per_s])


def test_a_segment_of_a_second_has_its_mean_in_all_windows() -> None:
    meter, clock = made()
    run(meter, clock, 100, 10, segment="home/other/0.#epoch.0")
    clock.now += 0.97  # not at a fold
    run(meter, clock, 1.2, 500)
    load = next(load for load in meter.loads() if load.segment == S)
    assert 0.5 <= load.age_s <= 1.2
    assert load.events_per_s == pytest.approx([500] * 6, rel=0.15)
    assert len(set(load.events_per_s)) == 1


def test_a_segment_of_a_moment_is_absent() -> None:
    meter, clock = made()
    meter.count([(S, 1_000_000, 1_000_000)], clock.now)
    clock.now += 0.2
    assert meter.loads() == []
    clock.now += 0.4
    assert only(meter).events_per_s == pytest.approx([1_000_000 / 0.6] * 6)


def test_a_burst_decays_by_the_window() -> None:
    meter, clock = made()
    run(meter, clock, 6000, 10, step_s=0.5)
    run(meter, clock, 60, 1000)
    before = only(meter).events_per_s
    assert before[0] == pytest.approx(1000, rel=0.06)  # 0.1 s more or less in the last fold
    assert before[-1] == pytest.approx(10 + 990 * -math.expm1(-60 / 1200), rel=0.06)
    clock.now += 20
    after = only(meter).events_per_s
    for window_s, was, now in zip(WINDOWS_S, before, after, strict=True):
        assert now == pytest.approx(was * math.exp(-20 / window_s), rel=0.05, abs=0.1)


@pytest.mark.parametrize("ask_every_s", [0.3, 1.0, 55.0])
def test_a_pause_after_a_burst_is_not_part_of_it(ask_every_s: float) -> None:
    """Nothing comes that would fold what was counted, until somebody asks."""
    meter, clock = made()
    run(meter, clock, 30, 100)
    end = clock.now + 55
    while clock.now < end - 0.001:
        clock.now += ask_every_s
        load = only(meter)
    assert load.events_per_s[0] < 0.01
    assert load.events_per_s[1] == pytest.approx(100 * math.exp(-5.5) / -math.expm1(-8.5), rel=0.2)


def test_what_is_counted_before_a_long_stop_stays_a_rate() -> None:
    """The process is stopped for an hour: the clock jumps ahead between two frames."""
    meter, clock = made()
    run(meter, clock, 30, 100)
    clock.now += 3600
    meter.count([(S, 100, 100)], clock.now)
    clock.now += 1
    load = only(meter)
    assert load.events_per_s[0] == pytest.approx(100, rel=0.01)
    assert load.age_s == pytest.approx(1.0)  # it was idle longer than the longest window: measured anew


def test_a_clock_that_goes_back_changes_nothing() -> None:
    meter, clock = made()
    run(meter, clock, 30, 100)
    load = only(meter)
    clock.now -= 3600
    meter.count([(S, 0, 0)], clock.now)
    assert only(meter) == load
    clock.now += 3600
    run(meter, clock, 10, 100)
    assert only(meter).events_per_s == pytest.approx([100] * 6, rel=0.05)


def test_a_transaction_and_a_large_event_count_for_their_parent_and_others_for_nothing() -> None:
    meter, clock = made()
    for _ in range(20):
        clock.now += 0.1
        others = ["home/_MARKmeters/0.#epoch.0", "_system/x/0.#epoch.0", "home/t_kvtable/0.#epoch.0", "odd", ""]
        meter.count([(name, 1, 10) for name in (S, TRANSACTION, TRANSIENT, *others)], clock.now)
    assert only(meter).segment == S
    assert only(meter).events_per_s == pytest.approx([30] * 6, rel=0.1)
    assert only(meter).bytes_per_s == pytest.approx([300] * 6, rel=0.1)


def test_an_idle_segment_is_forgotten_after_the_longest_window() -> None:
    meter, clock = made()
    run(meter, clock, 5, 100)
    clock.now += WINDOWS_S[-1] - 1
    assert 0 < only(meter).events_per_s[-1] < 100
    clock.now += 2
    assert meter.loads() == []
    assert not meter._rows
    run(meter, clock, 2, 10)
    assert only(meter).events_per_s == pytest.approx([10] * 6, rel=0.2)


def test_a_deleted_segment_is_forgotten_and_one_made_anew_begins_without_its_load() -> None:
    meter, clock = made()
    run(meter, clock, 700, 900)
    run(meter, clock, 0.3, 900)  # counted and not folded
    meter.count([(TRANSACTION, 7, 700)], clock.now)
    meter.report(S, np.array([0.5]), 100)
    meter.forget(TRANSACTION)
    assert only(meter).keys is not None, "a transaction's end is not its parent's"
    meter.forget(S)
    meter.forget(S)
    assert not meter.loads()
    clock.now += 5
    run(meter, clock, 3, 10)
    load = only(meter)
    assert load.age_s <= 3
    assert load.keys is None
    assert load.events_per_s == pytest.approx([10] * 6, rel=0.15)
    clock.now += 2_000
    assert not meter.loads()


def test_past_the_limit_the_longest_idle_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOAD_SEGMENTS", 10)
    names = [f"home/meters/{number}.#epoch.0" for number in range(12)]
    meter, clock = made()

    def seconds(count: int, taking: list[str]) -> set[str]:
        for _ in range(10 * count):
            clock.now += 0.1
            meter.count([(name, 10, 10) for name in taking], clock.now)
        return {load.segment for load in meter.loads()}

    assert seconds(3, names[:10]) == set(names[:10])
    assert seconds(3, names) == set(names[:10])  # all of them are busy
    assert seconds(9, [*names[2:11]]) == set(names[:10])
    assert seconds(4, [*names[2:11]]) - {names[0], names[1]} == set(names[2:11])
    assert len(meter._names) <= 11
    assert all(
        load.events_per_s[0] == pytest.approx(100, rel=0.1) for load in meter.loads() if load.segment in names[2:11]
    )


def test_segments_of_transactions_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOAD_SEGMENTS", 10)
    meter, clock = made()
    for number in range(1000):
        clock.now += 0.01
        meter.count([(f"{S}#transaction.{number:032x}", 1, 10)], clock.now)
    assert len(meter._rows) <= 40
    assert only(meter).events_per_s == pytest.approx([100] * 6, rel=0.02)


def test_pages_are_in_order_and_whole() -> None:
    meter, clock = made()
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(25))
    for _ in range(3):
        clock.now += 0.5
        meter.count([(name, number, 0) for number, name in enumerate(reversed(names))], clock.now)
    found, sizes = [""], []
    while page := meter.loads(found[-1], 10):
        found += [load.segment for load in page]
        sizes.append(len(page))
    assert sizes == [10, 10, 5]
    assert found[1:] == names


def test_samples_of_keys() -> None:
    meter, clock = made()
    run(meter, clock, 2, 100)
    meter.report(S, np.array([0.25, 0.25, 0.5]), 300)
    meter.report(TRANSACTION, np.array([0.75]), 50)
    meter.report("home/other/0.#epoch.0", np.array([0.1]), 50)  # isn't measured
    keys = only(meter).keys
    assert keys is not None
    assert keys.positions == (0.25, 0.25, 0.5, 0.75)
    assert list(keys.weights) == [100, 100, 100, 50]
    clock.now += 10.5
    assert only(meter).keys is None
    assert not meter._samples._reports


def test_many_reports_become_few_positions_of_the_same_distribution() -> None:
    meter, clock = made()
    run(meter, clock, 2, 100)
    chance = np.random.default_rng(7)
    for _ in range(200):
        clock.now += 0.05
        hot = np.full(32, 0.3)  # half of the load is one key
        meter.report(S, np.concatenate([hot, chance.uniform(0.5, 1.0, 32)]), 640)
    keys = only(meter).keys
    assert keys is not None
    assert len(keys.positions) == limits.LOAD_KEY_POSITIONS
    assert sum(keys.weights) == pytest.approx(200 * 640, rel=0.05)
    weights, positions = np.array(keys.weights), np.array(keys.positions)
    assert weights[positions == 0.3].sum() / weights.sum() == pytest.approx(0.5, abs=0.02)
    assert weights[positions > 0.75].sum() / weights.sum() == pytest.approx(0.25, abs=0.03)
    assert all(len(each.positions) <= limits.LOAD_KEY_POSITIONS for each in meter._samples._reports[S])


def test_samples_are_kept_of_a_limited_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.counts.LOAD_KEYS_SEGMENTS", 2)
    meter, clock = made()
    names = [f"home/meters/{number}.#epoch.0" for number in range(3)]
    for _ in range(2):
        clock.now += 0.6
        meter.count([(name, 1, 1) for name in names], clock.now)
    for name in names:
        meter.report(name, np.array([0.5]), 1)
    assert [load.keys is not None for load in meter.loads()] == [True, True, False]
