"""Reports for operators: states of servers and containers, and metrics of the log engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nadi.cluster.admin.cluster_view import ClusterView, cluster_report
from nadi.cluster.admin.metrics import BUCKETS_S, CountedEngine, Moves, samples
from nadi.cluster.membership_view import ServerMember
from nadi.errors import UnavailableError
from nadi.observe.metrics import families
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import ChainPosition, name_of
from nadi.segmentstore.tier2.records import ContainerRecord, SnapshotManifest, SnapshotPart


def member(name: str, started_ms: int, *, is_draining: bool = False) -> ServerMember:
    return ServerMember(
        id=name,
        store=f"{name}:1",
        controller=f"{name}:2",
        rest="",
        version="1",
        started_ms=started_ms,
        is_draining=is_draining,
        bytes_per_s=5.0,
    )


def test_states_of_servers_and_containers() -> None:
    snapshot = SnapshotManifest(
        1, 40, (SnapshotPart("a", 100, 0),), (SnapshotPart("b", 10, 0), SnapshotPart("c", 5, 0))
    )
    view = ClusterView(
        {"b": (member("b", 2), True), "a": (member("a", 1, is_draining=True), True), "c": (member("c", 3), False)},
        {
            0: ContainerRecord(epoch=3, owner="a"),
            1: ContainerRecord(epoch=1, owner="a", target="b", snapshot=snapshot),
            2: ContainerRecord(epoch=1, owner="a", target="b", released=True),
            3: ContainerRecord(epoch=9, owner="c"),
            4: ContainerRecord(epoch=9, owner="gone"),
            5: ContainerRecord(),
        },
        {1: 77},
        {1: 2.5},
    )
    report = cluster_report("x", "b", view)
    assert [(one.id, one.state, one.containers) for one in report.servers] == [
        ("a", "draining", [0, 1]),
        ("b", "alive", []),
        ("c", "dead", [3]),
    ]
    assert report.servers[2].bytes_per_s == 0
    assert [one.state for one in report.containers] == ["open", "moving", "released", "orphaned", "orphaned", "new"]
    assert report.controller == "a"
    moving = report.containers[1]
    assert moving.snapshot is not None
    assert (moving.log_bytes, moving.snapshot.deltas) == (77, 2)
    assert moving.snapshot.size_bytes == 2 * 115  # each object is stored twice
    assert (moving.snapshot.age_s, report.containers[0].log_bytes) == (2.5, None)


@pytest.mark.parametrize(
    "record",
    [ContainerRecord(epoch=1, owner="c"), ContainerRecord(epoch=1, owner="a", released=True), ContainerRecord()],
)
def test_report_without_live_controller(record: ContainerRecord) -> None:
    members = {"a": (member("a", 1), True), "c": (member("c", 3), False)}
    assert cluster_report("x", "", ClusterView(members, {0: record})).controller == ""


class Clock(Runtime):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Engine:
    """Engine with configurable answers and delays."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.takes_s, self.answer = clock, 0.0, True
        self.fails = False

    def _work(self) -> None:
        self.clock.now += self.takes_s
        if self.fails:
            raise UnavailableError("no")

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        self._work()
        return self.answer

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        self._work()
        return None

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        yield {}

    async def delete(self, names: Sequence[str]) -> None:
        self._work()

    async def close(self) -> None:
        pass


async def test_engine_counts_puts_and_errors() -> None:
    clock = Clock()
    engine = Engine(clock)
    counted = CountedEngine(engine, clock)  # type: ignore[arg-type]
    frame = name_of(0, ChainPosition(1, 1))
    for takes_s in (0.0005, 0.02, 0.02, 60.0):
        engine.takes_s = takes_s
        assert await counted.create(frame, [b"12", memoryview(b"345")])
    assert await counted.create("cluster.json", [b"not of the log"])
    engine.answer = False
    assert not await counted.create(frame, [b"1"])
    engine.fails = True
    for call in (counted.create(frame, []), counted.get(frame), counted.delete([frame]), counted.get("cluster.json")):
        with pytest.raises(UnavailableError):
            await call
    assert (counted.put_bytes, counted.retries, counted.errors) == (20, 2, 3)
    members = {name: SimpleNamespace(is_alive=is_alive) for name, is_alive in (("a", True), ("b", True), ("c", False))}
    membership: Any = SimpleNamespace(members=members, lease_is_valid=lambda: True, term=2)
    metrics = families(samples(3, 8, membership, Moves(taken_over=4), counted, controls=False))
    values = {(sample.name, *sample.labels.values()): sample.value for family in metrics for sample in family.samples}
    assert values["nadi_cluster_servers", "dead"] == 1
    assert values["nadi_cluster_takeovers_total",] == 4
    within = {bound: values["nadi_cluster_log_put_seconds_bucket", bound] for bound in (*map(str, BUCKETS_S), "+Inf")}
    assert (within["0.001"], within["0.01"], within["0.025"], within["10.0"], within["+Inf"]) == (1, 1, 3, 3, 4)
    assert values["nadi_cluster_log_put_seconds_sum",] == pytest.approx(60.0405)
