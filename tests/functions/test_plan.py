"""Number of workers: more soon after falling behind, fewer after a while, and no change without a reason. Simulated
second by second; each worker handles its segments round robin.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from nadi.functions.plan import Ends, WorkDone, WorkerChange, WorkerPlan, workers_at_ease, workers_behind

IDLE_S = 60.0


@dataclass
class Made:
    """A function in simulated time: the workers at each second, and counts of starts and stops."""

    segments: int
    per_worker: float
    plans: Sequence[WorkerPlan] = field(default_factory=lambda: [WorkerPlan(0, 16, IDLE_S)])
    batch_s: float = 0.0  # minimum busy time of a batch
    recorded_late: float = 1.2  # delay in seconds until the group has the position
    counts: list[int] = field(default_factory=list)
    starts: int = 0
    ends: int = 0

    def __post_init__(self) -> None:
        self.written = [0.0] * self.segments
        self.handled = [0.0] * self.segments
        self.known = [0.0] * self.segments
        self.workers: list[list[str]] = [[] for _ in self.plans]
        self.work = [WorkDone() for _ in self.plans]
        self.at = 0

    def run(self, seconds: int, rate: Callable[[int], Sequence[float] | float]) -> list[int]:
        """Return the number of workers at each second, if each segment gets `rate` bytes per second."""
        begins = len(self.counts)
        for second in range(seconds):
            came = rate(second)
            each = list(came) if isinstance(came, Sequence) else [came / self.segments] * self.segments
            self.written = [had + more for had, more in zip(self.written, each, strict=True)]
            self._handle()
            seen = [list(own) for own in self.workers]
            for number, plan in enumerate(self.plans):
                others = [name for other, own in enumerate(seen) if other != number for name in own]
                ends = {str(i): Ends(int(self.known[i]), int(self.written[i])) for i in range(self.segments)}
                self._follow(number, plan.change(self.at, ends, self.work[number], seen[number], others))
            self.counts.append(sum(map(len, self.workers)))
            self.at += 1
        return self.counts[begins:]

    def _follow(self, number: int, change: WorkerChange) -> None:
        self.workers[number] = [name for name in self.workers[number] if name not in change.stop]
        self.workers[number] += [f"{number}-{self.at:05}-{i}" for i in range(change.start)]
        self.starts += change.start
        self.ends += len(change.stop)

    def _handle(self) -> None:
        names = sorted((number, name) for number, own in enumerate(self.workers) for name in own)
        before = list(self.handled)
        for rank, (number, _) in enumerate(names):
            can = self.per_worker
            for segment in range(rank, self.segments, len(names)):
                took = min(can, self.written[segment] - self.handled[segment])
                self.handled[segment] += took
                can -= took
            did = self.per_worker - can
            busy_s = max(did / self.per_worker, self.batch_s if did else 0.0)
            now = self.work[number]
            self.work[number] = WorkDone(now.busy_s + busy_s, now.size_bytes + int(did))
        lags = (self.recorded_late * (now - had) for had, now in zip(before, self.handled, strict=True))
        self.known = [max(known, now - late) for known, now, late in zip(self.known, self.handled, lags, strict=True)]


def test_plan_steady_rate_starts_enough_and_ends_nothing() -> None:
    function = Made(3, per_worker=30_000)
    function.run(600, lambda second: 50_000)
    assert function.counts[30:] == [3] * 570, "one of two would get two of the three segments, and not keep up"
    assert (function.starts, function.ends) == (3, 0)


@pytest.mark.parametrize("batch_s", [0.0, 1.0], ids=["spare", "always-busy"])
@pytest.mark.parametrize("segments", [1, 3, 16])
def test_plan_light_steady_rate_keeps_one_worker(segments: int, batch_s: float) -> None:
    function = Made(segments, per_worker=500_000, batch_s=batch_s)
    function.run(600, lambda second: 50_000)
    assert (function.starts, function.ends) == (1, 0)


@pytest.mark.parametrize("seed", range(5))
def test_plan_noisy_rate_starts_enough_and_ends_nothing(seed: int) -> None:
    chance = random.Random(seed)
    function = Made(3, per_worker=40_000, batch_s=0.3)
    function.run(60, lambda second: chance.expovariate(1 / 50_000))
    function.run(600, lambda second: [chance.expovariate(3 / 50_000) for _ in range(3)])
    assert function.starts <= 3
    assert function.ends == 0


def test_plan_mostly_empty_segments_start_and_end_nothing() -> None:
    """A burst of ten events every 100 ms leaves one, two or no segments unread at a poll."""
    chance = random.Random(7)
    function = Made(3, per_worker=200_000, recorded_late=0.1)
    function.run(600, lambda second: [chance.choice([0, 0, 25_000, 50_000]) for _ in range(3)])
    assert (function.starts, function.ends) == (1, 0)


@pytest.mark.parametrize("every_s", [5, 20, 50])
def test_plan_trickle_keeps_its_only_worker(every_s: int) -> None:
    function = Made(4, per_worker=10_000)
    function.run(1200, lambda second: [0, 300, 0, 0] if second % every_s == 0 else 0)
    assert (function.starts, function.ends) == (1, 0)


def test_plan_ramp_up_and_down_follows_within_seconds_up_and_a_minute_down() -> None:
    function = Made(8, per_worker=100_000)
    assert function.run(120, lambda second: 50_000)[-1] == 1
    up = function.run(120, lambda second: 500_000)
    assert up.index(6) < 45
    assert up[-1] in (6, 7, 8)
    assert function.written == pytest.approx(function.handled), "caught up"
    down = function.run(180, lambda second: 20_000)
    assert min(down[:55]) == up[-1]
    assert down[-1] == 1
    assert function.ends == function.starts - 1


def test_plan_backlog_starts_as_many_as_are_of_use_within_ten_seconds() -> None:
    function = Made(8, per_worker=1_000)
    function.written = [100_000.0] * 8
    assert function.run(10, lambda second: 0)[-1] == 8


def test_plan_lag_that_one_worker_cannot_keep_up_with_is_caught_up() -> None:
    function = Made(4, per_worker=10_000)
    function.run(300, lambda second: 12_000)
    assert function.counts[-1] == 2
    assert function.ends == 0
    assert sum(function.written) - sum(function.handled) < 12_000 * 5


def test_plan_hot_segment_starts_no_useless_workers() -> None:
    function = Made(8, per_worker=10_000)
    function.run(300, lambda second: [20_000, 0, 0, 0, 0, 0, 0, 0])
    assert function.starts == 1


@pytest.mark.parametrize("least", [0, 1, 2])
def test_plan_idle_function_keeps_its_least_number_only(least: int) -> None:
    function = Made(4, per_worker=1_000, plans=[WorkerPlan(least, 16, IDLE_S)])
    function.run(60, lambda second: 3_000)
    assert function.counts[-1] == 4
    after = function.run(90, lambda second: 0)
    assert min(after[:55]) == 4
    assert after[-1] == least


def test_plan_never_goes_below_the_measured_need() -> None:
    """Each smaller number of workers still keeps up."""
    for rate in range(10_000, 100_000, 7_000):
        function = Made(12, per_worker=10_000)
        function.run(90, lambda second: 110_000)
        function.run(300, lambda second, rate=rate: rate)  # type: ignore[misc]
        starts = function.starts
        function.run(300, lambda second, rate=rate: rate)  # type: ignore[misc]
        assert function.starts == starts, rate
        assert function.counts[-1] * 10_000 * 0.75 >= min(rate, 75_000), rate


def test_plan_waits_for_slowly_starting_workers() -> None:
    plan = WorkerPlan(0, 8, IDLE_S)
    waiting = {str(i): Ends(0, 1_000_000) for i in range(8)}
    for second in range(30):
        assert plan.change(second, waiting, WorkDone(), ["a"], [], is_starting=True) == WorkerChange()
    assert [plan.change(30 + s, waiting, WorkDone(), ["a"], []).start for s in range(5)][-1] == 7


def test_plan_handler_that_returns_nothing_for_long_counts_as_behind() -> None:
    plan = WorkerPlan(0, 4, IDLE_S)
    waiting = {str(i): Ends(0, 1_000) for i in range(8)}
    assert [plan.change(s, waiting, WorkDone(float(s)), ["a"], []).start for s in range(6)][-1] == 3


def test_plan_too_many_workers_end_at_once() -> None:
    plan = WorkerPlan(0, 2, IDLE_S)
    assert plan.change(0, {"0": Ends(0, 9)}, WorkDone(), ["c", "d"], ["a", "b"]) == WorkerChange(stop=("c", "d"))


def test_plans_of_two_instances_end_the_same_spare_workers() -> None:
    function = Made(8, per_worker=10_000, plans=[WorkerPlan(0, 16, IDLE_S), WorkerPlan(0, 16, IDLE_S)])
    function.run(120, lambda second: 60_000)
    assert function.counts[-1] >= 6
    assert sum(function.written) - sum(function.handled) < 60_000 * 3
    function.run(90, lambda second: 5_000)
    ends = function.ends
    function.run(600, lambda second: 5_000)
    assert (function.counts[-1], function.ends - ends) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_workers_at_ease_suffice_however_segments_are_shared(seed: int) -> None:
    chance = random.Random(seed)
    demand = [chance.expovariate(1) for _ in range(chance.randrange(1, 12))]
    per_worker = chance.uniform(max(demand) / 0.75, sum(demand) * 1.5 + 1)
    count = workers_at_ease(demand, per_worker)
    chance.shuffle(demand)
    assert max(sum(demand[rank::count]) for rank in range(count)) <= 0.75 * per_worker + 1e-9
    assert workers_behind(demand, per_worker) <= count
