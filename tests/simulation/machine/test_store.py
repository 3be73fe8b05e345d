"""The simulated object store: what it promises holds whatever its faults, and each of these happens."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from nadi.errors import UnavailableError

from .loop import SimulatedLoop, run
from .process import Process
from .store import SimulatedStore, StoreFaults, Trap
from .storeclients import SimulatedEngine, SimulatedRegistry


class Cluster:
    """Some processes, each with its engine and its registry over one store."""

    def __init__(self, loop: SimulatedLoop, processes: int, seed: int) -> None:
        self.loop = loop
        self.store = SimulatedStore(random.Random(seed), lambda: loop.now, loop.at)
        self.processes = [Process(loop, f"server-{n}", random.Random(n)) for n in range(processes)]
        self.engines = [SimulatedEngine(self.store, process) for process in self.processes]
        self.registries = [SimulatedRegistry(self.store, process) for process in self.processes]


def at(test: Callable[[Cluster], Awaitable[None]], processes: int = 1, seed: int = 1) -> None:
    async def main(loop: SimulatedLoop) -> None:
        await test(Cluster(loop, processes, seed))

    run(main)


FAULTS = StoreFaults(
    request_lost=0.1, answer_lost=0.1, late=0.1, busy=0.1, repeated=0.1, unlisted_s=5.0, latest_s=3.0, timeout_s=1.0
)


@pytest.mark.parametrize("seed", range(10))
def test_of_those_who_race_one_at_most_creates(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.store.faults = FAULTS

        async def create(n: int, name: str) -> bool | None:
            try:
                return await cluster.engines[n].create(name, [b"of ", f"{n}".encode()])
            except UnavailableError:
                return None

        for number in range(20):
            name = f"log/0/1/{number}"
            results = await asyncio.gather(*(create(n, name) for n in range(5)))
            await asyncio.sleep(10.0)  # for those that come late
            stored = cluster.store.objects.get(name)
            winners = [n for n, result in enumerate(results) if result]
            assert len(winners) <= 1
            if winners:
                assert stored is not None
                assert stored.value == f"of {winners[0]}".encode()

    at(test, processes=5, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_of_those_who_set_one_version_one_at_most_does(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
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

    at(test, processes=5, seed=seed)


def test_every_fault_happens() -> None:
    async def test(cluster: Cluster) -> None:
        (engine,), store = cluster.engines, cluster.store
        store.faults = FAULTS
        met: Counter[tuple[bool | None, bool, bool]] = Counter()
        for number in range(400):
            name, told = f"log/{number}", None
            try:
                told = await engine.create(name, [b"x"])
            except UnavailableError:
                pass
            at_once = name in store.objects
            await asyncio.sleep(FAULTS.latest_s)
            met[told, at_once, name in store.objects] += 1
        assert met.pop((True, True, True)) > 100
        assert set(met) == {
            (None, False, False),  # the request was lost
            (None, True, True),  # the answer was
            (None, False, True),  # it came late
            (False, False, False),  # somebody else was said to be at it
            (False, True, True),  # its own first try was taken for another's
        }

    at(test)


def test_what_was_stored_or_deleted_lately_may_be_listed_wrong_and_in_no_order() -> None:
    async def test(cluster: Cluster) -> None:
        (engine,), (registry,), store = cluster.engines, cluster.registries, cluster.store

        async def listed() -> list[str]:
            return [name async for page in _pages(engine) for name in page]

        for number in range(250):
            store.put(f"log/{number:03}", b"x")
        store.put("other/1", b"x")
        assert len([name async for page in engine.listed("") for name in page]) == 251
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

    async def _pages(engine: SimulatedEngine):  # type: ignore[no-untyped-def]
        async for page in engine.listed("log/"):
            assert len(page) <= 100
            yield page

    at(test)


def test_who_is_cut_off_gets_no_answer_and_others_do() -> None:
    async def test(cluster: Cluster) -> None:
        one, other = cluster.registries
        cluster.store.cut_off("server-0", 60.0)
        version = await other.put("servers/b", b"there")
        with pytest.raises(UnavailableError):
            await one.get("servers/b")
        cluster.store.fail(30.0)
        with pytest.raises(UnavailableError):
            await other.get("servers/b")
        await asyncio.sleep(60.0)
        assert await one.get("servers/b") == await other.get("servers/b") == (b"there", version)
        await one.delete("servers/b")
        assert await other.get("servers/b") is None

    at(test, processes=2)


def test_who_is_cut_off_may_be_back_earlier() -> None:
    async def test(cluster: Cluster) -> None:
        (one,) = cluster.registries
        cluster.store.cut_off("server-0", 60.0)
        cluster.store.is_back("server-0")
        assert await one.get("servers/b") is None

    at(test)


def test_a_hidden_folder_is_hidden_from_one_process_for_a_while() -> None:
    async def test(cluster: Cluster) -> None:
        one, other = cluster.engines
        cluster.store.put("log/1", b"x")
        cluster.store.put("chunks/1", b"x")
        cluster.store.hide("server-0", "log", 20.0)
        with pytest.raises(UnavailableError):
            await one.get("log/1")
        assert bytes(await one.get("chunks/1") or b"") == bytes(await other.get("log/1") or b"") == b"x"
        await asyncio.sleep(20.0)
        assert bytes(await one.get("log/1") or b"") == b"x"

    at(test, processes=2)


@pytest.mark.parametrize(("is_before", "found"), [(True, []), (False, ["log/2"])])
def test_a_trap_is_for_the_first_that_it_takes(is_before: bool, found: list[str]) -> None:
    async def test(cluster: Cluster) -> None:
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

    at(test, processes=2)


def test_equal_values_have_equal_versions() -> None:
    async def test(cluster: Cluster) -> None:
        (registry,) = cluster.registries
        first = await registry.compare_and_set("containers/0", b"same", None)
        assert first is not None
        other = await registry.compare_and_set("containers/0", b"other", first)
        assert await registry.compare_and_set("containers/0", b"same", other) == first
        assert await registry.compare_and_set("containers/0", b"new", None) is None

    at(test)


def test_requests_take_as_long_as_those_of_an_object_store() -> None:
    async def test(cluster: Cluster) -> None:
        (engine,), took = cluster.engines, list[float]()
        for number in range(2_000):
            began = cluster.loop.now
            assert await engine.create(f"log/{number}", [b"x"])
            took.append(cluster.loop.now - began)
        took.sort()
        assert 0.027 < took[1_000] < 0.033
        assert 0.12 < took[1_980] < 0.2
        assert bytes(await engine.get("log/3") or b"none") == b"x"
        assert bytes(await engine.get("log/3", 1) or b"") == b""
        assert await engine.get("log/none") is None

    at(test)
