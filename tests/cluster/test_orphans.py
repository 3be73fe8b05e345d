"""Containers of a dead server: all servers learn soon who has taken them over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from nadi.cluster.container_map import RecordWatch
from nadi.cluster.membership import Membership
from nadi.cluster.reconciler import Reconciler
from nadi.cluster.storage import ClusterStorage
from nadi.errors import UnavailableError
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.records import ContainerRecords, VersionedRecord
from tests.cluster.support import Cluster, Node
from tests.simulation.machine.loop import SimulatedLoop, simulated
from tests.support.waiting import until_async

CONTAINERS = 12


class Parts:
    """Storage that consists only of the container's record."""

    def __init__(self, number: int, seen: VersionedRecord, server: Server) -> None:
        self.number, self.claimed, self.epoch, self._server = number, seen, 0, server
        self._is_fetched = False

    async def fetch(self, seen: VersionedRecord) -> None:
        self._is_fetched = True
        if self._server.fetch_fails:
            raise UnavailableError("rate limit")

    async def prepare(self) -> None:
        if self._is_fetched:
            self._server.fetched.append(self.number)
        self.claimed = await self._server.records.claim(self.number, self._server.node.name, self.claimed)
        self.epoch = self.claimed.record.epoch
        await self._server.opens.wait()

    async def discard(self) -> None:
        pass


class Store:
    containers: tuple[()] = ()

    def __init__(self) -> None:
        self.on_snapshot: Callable[[int], None] = lambda number: None

    async def take(self, parts: Any) -> None:
        pass

    async def bring_up_to_date(self, number: int) -> None:
        self.on_snapshot(number)

    async def give_up(self, number: int) -> None:
        pass


async def nothing(number: int) -> None:
    pass


class Server:
    def __init__(self, node: Node) -> None:
        self.node, self.store, self.opens = node, Store(), asyncio.Event()
        self.opens.set()
        self.fetch_fails, self.fetched = False, list[int]()  # before they were opened
        self.records = ContainerRecords(node.registry, node.clock)
        self.watch = RecordWatch(node.registry, self.records, CONTAINERS, node.clock)
        self.reconciler = Reconciler(
            node.name,
            cast("SegmentStore", self.store),
            node.membership,
            self.records,
            self.watch,
            lambda number, seen: cast("ClusterStorage", Parts(number, seen, self)),
            CONTAINERS,
            node.clock,
            on_acquired=nothing,
            on_leaving=nothing,
            on_polled=lambda: None,
        )
        node.on_change = self.reconciler.wake
        node.process.start(self._start())

    async def _start(self) -> None:
        self.reconciler.start()

    def owners(self) -> dict[int, str]:
        return {number: self.watch.owner(number) for number in range(CONTAINERS)}


async def three(loop: SimulatedLoop, seed: int) -> dict[str, Server]:
    """Return three servers that poll at different moments, each with some containers."""
    cluster, servers = Cluster(loop, seed), {}
    for name in ("a", "b", "c"):
        servers[name] = Server(cluster.add(name, before_s=0.01, after_s=0.01)[0])
        await asyncio.sleep(0.3)
    await until_async(lambda: all(set(server.owners().values()) == servers.keys() for server in servers.values()))
    return servers


@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_takeover_is_soon_known_to_all_servers(loop: SimulatedLoop, seed: int) -> None:
    servers = await three(loop, seed)
    had = [number for number, owner in servers["a"].owners().items() if owner == "c"]
    servers.pop("c").node.kill()
    taken: dict[int, float] = {}
    known: dict[int, float] = {}

    def is_known() -> bool:
        for number in had:
            owners = {one.owners()[number] for one in servers.values()}
            if owners != {"c"}:
                taken.setdefault(number, loop.time())
                if "c" not in owners:
                    known.setdefault(number, loop.time())
        return len(known) == len(had)

    await until_async(is_known)
    assert max(known[number] - taken[number] for number in had) < 0.35


@simulated
async def test_failed_claim_is_retried_without_traceback(
    loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_dead, answers = Membership.is_dead, iter([False] * 3)

    async def is_dead_after_failures(self: Membership, server: str) -> bool:
        if not next(answers, True):
            raise UnavailableError("rate limit")
        return await is_dead(self, server)

    monkeypatch.setattr(Membership, "is_dead", is_dead_after_failures)
    servers = await three(loop, 1)
    servers.pop("c").node.kill()
    await until_async(lambda: all("c" not in one.owners().values() for one in servers.values()))
    assert "moving container" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@simulated
async def test_container_opened_during_lease_renewal_answers_reads(
    loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container was claimed before the server fell silent, and opened while the other records were renewed. Reads
    of it used to stay unanswered until the next restart."""
    servers = await three(loop, 1)
    servers.pop("c").node.kill()
    server = servers["a"]
    server.opens.clear()
    mine = {number for number, owner in server.owners().items() if owner == "a"}
    await until_async(
        lambda: any(seen.stored.record.owner == "a" for n, seen in server.watch.seen.items() if n not in mine)
    )
    renew, term = server.records.renew, server.node.membership.term

    async def renewed(number: int, epoch: int) -> None:
        await renew(number, epoch)
        server.opens.set()
        await asyncio.sleep(0.05)

    monkeypatch.setattr(server.records, "renew", renewed)
    await server.node.pause(2.5)
    await until_async(lambda: server.node.membership.term == term + 1 and server.opens.is_set())
    await until_async(lambda: "c" not in server.owners().values())
    assert {number for number, owner in server.owners().items() if owner == "a"} > mine
    await until_async(
        lambda: all(server.reconciler.may_answer(n) for n, owner in server.owners().items() if owner == "a"), 10.0
    )


@simulated
async def test_container_lost_during_handover_is_released(
    loop: SimulatedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    servers = await three(loop, 1)
    lost = list[int]()

    def on_snapshot(number: int) -> None:
        lost.append(number)
        servers["a"].reconciler.lost(number)

    servers["a"].store.on_snapshot = on_snapshot

    async def drained() -> None:
        servers["a"].node.membership.drain()

    servers["a"].node.process.start(drained())
    await until_async(lambda: len(lost) > 1)
    await asyncio.sleep(10.0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("fails", [False, True])
@simulated
async def test_snapshots_are_fetched_before_a_handover(loop: SimulatedLoop, fails: bool) -> None:
    servers = await three(loop, 1)
    given = sorted(number for number, owner in servers["a"].owners().items() if owner == "a")
    assert not any(server.fetched for server in servers.values())
    for server in servers.values():
        server.fetch_fails = fails

    async def drained() -> None:
        servers["a"].node.membership.drain()

    servers["a"].node.process.start(drained())
    await until_async(lambda: all(set(server.owners().values()) == {"b", "c"} for server in servers.values()))
    assert sorted(servers["b"].fetched + servers["c"].fetched) == given
