"""The simulated object store keeps its promises whatever its faults, and each fault occurs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from nadi.errors import UnavailableError

from .loop import SimulatedLoop, simulated
from .process import Process
from .store import SimulatedStore, StoreFaults, Trap
from .storeclients import SimulatedEngine, SimulatedRegistry


class Cluster:
    """Several processes, each with an engine and a registry over the same store."""

    def __init__(self, loop: SimulatedLoop, processes: int, seed: int) -> None:
        self.loop = loop
        self.store = SimulatedStore(random.Random(seed), lambda: loop.now, loop.at)
        self.processes = [Process(loop, f"server-{n}", random.Random(n)) for n in range(processes)]
        self.engines = [SimulatedEngine(self.store, process) for process in self.processes]
        self.registries = [SimulatedRegistry(self.store, process) for process in self.processes]


FAULTS = StoreFaults(
    request_lost=0.1, answer_lost=0.1, late=0.1, busy=0.1, repeated=0.1, unlisted_s=5.0, latest_s=3.0, timeout_s=1.0
)


@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_concurrent_creates_succeed_at_most_once(loop: SimulatedLoop, seed: int) -> None:
    cluster = Cluster(loop, 5, seed)
    cluster.store.faults = FAULTS

    async def create(n: int, name: str) -> bool | None:
        try:
            return await cluster.engines[n].create(name, [b"of ", f"{n}".encode()])
        except UnavailableError:
            return None

    for number in range(20):
        name = f"log/0/1/{number}"
        results = await asyncio.gather(*(create(n, name) for n in range(5)))
        await asyncio.sleep(10.0)  # for late requests
        winners = [n for n, result in enumerate(results) if result]
        assert len(winners) <= 1
        if winners:
            assert cluster.store.objects[name].value == f"of {winners[0]}".encode()


@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_concurrent_updates_succeed_at_most_once(loop: SimulatedLoop, seed: int) -> None:
    cluster = Cluster(loop, 5, seed)
    cluster.store.faults = FAULTS
    cluster.store.put("containers/0", b"first")

    async def change(n: int, version: str, value: bytes) -> str | None:
        try:
            return await cluster.registries[n].compare_and_set("containers/0", value, version)
        except UnavailableError:
            return None

    for number in range(20):
        entry = cluster.store.objects["containers/0"]
        values = [f"{number} of {n}".encode() for n in range(5)]
        results = await asyncio.gather(*(change(n, entry.version, values[n]) for n in range(5)))
        await asyncio.sleep(10.0)
        winners = [n for n, result in enumerate(results) if result]
        assert len(winners) <= 1
        if winners:
            assert cluster.store.objects["containers/0"].value == values[winners[0]]


@simulated
async def test_every_fault_happens(loop: SimulatedLoop) -> None:
    cluster = Cluster(loop, 1, 1)
    (engine,), store = cluster.engines, cluster.store
    store.faults = FAULTS
    met: Counter[tuple[bool | None, bool, bool]] = Counter()
    for number in range(400):
        name, result = f"log/{number}", None
        try:
            result = await engine.create(name, [b"x"])
        except UnavailableError:
            pass
        at_once = name in store.objects
        await asyncio.sleep(FAULTS.latest_s)
        met[result, at_once, name in store.objects] += 1
    assert met.pop((True, True, True)) > 100
    assert set(met) == {
        (None, False, False),  # the request was lost
        (None, True, True),  # the reply was lost
        (None, False, True),  # it was executed late
        (False, False, False),  # another client was said to be storing it
        (False, True, True),  # the client's own first attempt had succeeded
    }


@simulated
async def test_listings_of_recent_changes_may_be_wrong_and_unordered(loop: SimulatedLoop) -> None:
    cluster = Cluster(loop, 1, 1)
    (engine,), (registry,), store = cluster.engines, cluster.registries, cluster.store

    async def listed() -> list[str]:
        pages = [page async for page in engine.listed("log/")]
        assert max(map(len, pages)) <= 100
        return [name for page in pages for name in page]

    for number in range(250):
        store.put(f"log/{number:03}", b"x")
    store.put("other/1", b"x")
    store.faults.unlisted_s = 5.0
    early = await listed()
    assert set(early) < {f"log/{n:03}" for n in range(250)}
    await asyncio.sleep(6.0)
    full = await listed()
    assert sorted(full) == [f"log/{n:03}" for n in range(250)] != full
    await engine.delete(full[:200])
    assert set(full[200:]) < set(await listed())
    await asyncio.sleep(6.0)
    assert set(await listed()) == set(await registry.list("log")) == set(full[200:])


@simulated
async def test_cut_off_process_gets_no_reply_while_others_do(loop: SimulatedLoop) -> None:
    cluster = Cluster(loop, 2, 1)
    one, other = cluster.registries
    cluster.store.cut_off("server-0", 60.0)
    version = await other.put("servers/b", b"there")
    with pytest.raises(UnavailableError):
        await one.get("servers/b")
    cluster.store.is_back("server-0")
    assert await one.get("servers/b") == await other.get("servers/b") == (b"there", version)
    cluster.store.put("log/1", b"x")
    cluster.store.hide("server-0", "log", 20.0)
    with pytest.raises(UnavailableError):
        await cluster.engines[0].get("log/1")
    assert bytes(await cluster.engines[1].get("log/1") or b"") == b"x"
    assert await one.get("servers/b") == (b"there", version)
    await asyncio.sleep(20.0)
    assert bytes(await cluster.engines[0].get("log/1") or b"") == b"x"


@pytest.mark.parametrize(("is_before", "found"), [(True, []), (False, ["log/2"])])
@simulated
async def test_trap_triggers_once(loop: SimulatedLoop, is_before: bool, found: list[str]) -> None:
    cluster = Cluster(loop, 2, 1)
    one, other = cluster.engines
    met: list[tuple[str, str, list[str]]] = []

    def meets(process: Process, what: str) -> None:
        met.append((process.name, what, [name for name in cluster.store.objects if name == "log/2"]))

    def takes(process: Process, what: str) -> bool:
        return process.name == "server-1" and what.startswith("create log/")

    cluster.store.trap = Trap(takes, meets, is_before)
    assert await one.create("log/1", [b"x"])
    assert not met
    assert await other.create("log/2", [b"x"])
    assert await other.create("log/3", [b"x"])
    assert met == [("server-1", f"{'before' if is_before else 'after'} create log/2", found)]


@simulated
async def test_equal_values_have_equal_versions(loop: SimulatedLoop) -> None:
    (registry,) = Cluster(loop, 1, 1).registries
    first = await registry.compare_and_set("containers/0", b"same", None)
    assert first is not None
    other = await registry.compare_and_set("containers/0", b"other", first)
    assert await registry.compare_and_set("containers/0", b"same", other) == first
    assert await registry.compare_and_set("containers/0", b"new", None) is None
