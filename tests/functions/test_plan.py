"""How many workers: up at once, down after a while, and no quarrel between instances."""

from __future__ import annotations

from nadi.functions.plan import Change, WorkerPlan


def test_workers_follow_the_unread_segments_between_the_limits() -> None:
    plan = WorkerPlan(1, 4, idle_s=5)
    assert plan.change(0, 0, [], []) == Change(start=1)
    assert plan.change(1, 3, ["a"], []) == Change(start=2)
    assert plan.change(2, 9, ["a", "b", "c"], []) == Change(start=1)
    assert plan.change(3, 1, ["a", "b", "c", "d"], []) == Change()
    assert plan.change(6.9, 1, ["a", "b", "c", "d"], []) == Change()
    assert plan.change(7.1, 1, ["a", "b", "c", "d"], []) == Change(stop=("b", "c", "d"))
    assert plan.change(20, 0, ["a"], []) == Change()


def test_a_short_pause_stops_no_worker() -> None:
    plan = WorkerPlan(0, 8, idle_s=5)
    workers: list[str] = []
    for second in range(60):
        change = plan.change(second, 4 if second % 3 == 0 else 0, workers, [])
        assert not change.stop
        workers += [f"w{len(workers) + i}" for i in range(change.start)]
    assert len(workers) == 4


def test_two_instances_settle_on_as_many_as_are_needed() -> None:
    plans = {"a": WorkerPlan(0, 8, idle_s=5), "b": WorkerPlan(0, 8, idle_s=5)}
    workers: dict[str, list[str]] = {"a": [], "b": []}
    for second in range(30):
        seen = {name: list(own) for name, own in workers.items()}  # both look at the same moment
        for name, plan in plans.items():
            others = [w for other, own in seen.items() if other != name for w in own]
            change = plan.change(second, 4, seen[name], others)
            workers[name] = [w for w in seen[name] if w not in change.stop]
            workers[name] += [f"{name}{second}.{i}" for i in range(change.start)]
        if second > 6:
            assert sum(map(len, workers.values())) == 4
