"""What a store tells of its segments' loads, through its doors, over its containers."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.controller.state.segments import Segments
from nadi.limits import LOAD_REPORT_POSITIONS
from nadi.model.load import KeySample, SegmentLoad
from nadi.naming import LOAD_SEGMENT
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.loads import report_of_keys, unpacked_loads
from tests.segmentstore.harness import WRITER, Peer, open_store
from tests.support.memory_store import MemoryStore
from tests.support.waiting import until_async

S = "home/meters/0.#epoch.0"


class Ahead(Runtime):
    """A clock that stands still until a test puts it forward; the store's timers follow the real one."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def monotonic(self) -> float:
        return 1_000.0 + self.by_s


class Asked:
    """Counts the pages that a store is asked for."""

    def __init__(self, store: SegmentStore) -> None:
        self._store, self.pages = store, 0

    async def exchange(self, command: wire.Command) -> wire.Command:
        self.pages += 1
        return await self._store.exchange(command)


async def appended(peer: Peer, segment: str, batches: int, events: int = 10, writer: bytes = WRITER) -> None:
    await peer.create(segment)
    await peer.setup(segment, writer)
    for number in range(batches):
        await peer.append([b"x" * 92] * events, (number + 1) * events, writer)


async def loads(store: SegmentStore | MemoryStore) -> list[SegmentLoad]:
    return await Segments(store.exchange, REAL).loads()


async def test_all_containers_loads_are_told_in_order(tmp_path: Path) -> None:
    clock = Ahead()
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(8))
    async with open_store(tmp_path, containers=3, runtime=clock) as (store, peer):
        for name in names:
            await appended(peer, name, 2)
        await appended(peer, "home/_MARKmeters/0.#epoch.0", 2)
        await appended(peer, "home/t_kvtable/0.#epoch.0", 2)
        clock.by_s += 1.0
        found = await loads(store)
        assert [load.segment for load in found] == names
        for load in found:
            assert 1.0 <= load.age_s < 20
            assert load.events_per_s == pytest.approx([20 / load.age_s] * 6)
            assert load.bytes_per_s == pytest.approx([2000 / load.age_s] * 6)
            assert load.keys is None
        assert all(len(container.load.loads()) < len(names) for container in store.containers)


async def test_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.server.service.LOAD_PAGE_SEGMENTS", 3)
    clock = Ahead()
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(7))
    async with open_store(tmp_path, containers=2, runtime=clock) as (store, peer):
        assert await loads(store) == []
        for name in names:
            await appended(peer, name, 1)
        clock.by_s += 1.0
        first = await peer.ask(wire.GetSegmentLoads(1, LOAD_SEGMENT, "", ""))
        assert [load.segment for load in unpacked_loads(first.loads)] == names[:3]
        assert not first.is_last
        assert [load.segment for load in await loads(store)] == names
        for name in ("home/metal/0.#epoch.0", "home/meters2/0.#epoch.0"):
            await appended(peer, name, 1)
        clock.by_s += 1.0
        asked = Asked(store)
        assert [load.segment for load in await Segments(asked.exchange, REAL).loads("home/meters/")] == names
        assert asked.pages == 3, "those of others are not asked for"
        assert await Segments(asked.exchange, REAL).loads("home/none/") == []


async def test_a_transaction_counts_as_it_passes_and_its_merge_adds_nothing(tmp_path: Path) -> None:
    clock = Ahead()
    transaction = f"{S}#transaction.{1:032x}"
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await peer.create(S)
        await appended(peer, transaction, 3)
        clock.by_s += 1.0
        (before,) = await loads(store)
        assert before.segment == S
        assert before.events_per_s[0] * before.age_s == pytest.approx(30)
        await peer.ask(wire.MergeSegmentsBatch(5, S, (transaction,), ""))
        clock.by_s += 30.0
        (after,) = await loads(store)
        assert after.events_per_s[0] < 0.001


async def test_what_was_not_stored_is_not_counted(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await appended(peer, S, 1)
        await peer.ask(wire.SealSegment(7, S, ""))
        assert isinstance(await peer.append([b"x"] * 1000, 2000), wire.SegmentIsSealed)
        clock.by_s += 1.0
        (load,) = await loads(store)
        assert load.events_per_s[0] * load.age_s == pytest.approx(10)


async def test_only_the_server_is_told(tmp_path: Path) -> None:
    key = TokenKey(b"k" * 64)
    async with open_store(tmp_path, tokens=key) as (_, peer):
        reply = await peer.ask(wire.GetSegmentLoads(1, LOAD_SEGMENT, key.master(), ""))
        assert reply == wire.SegmentLoads(1, LOAD_SEGMENT, b"\x90", True)
        assert isinstance(await peer.ask(wire.GetSegmentLoads(1, S, key.master(), "")), wire.NoSuchSegment)


async def test_a_container_that_recovers_keeps_its_loads(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, containers=1, runtime=clock) as (store, peer):
        await appended(peer, S, 2)
        (container,) = store.containers
        container._recover_from(OSError("the disk is gone for a moment"))
        before = container.state
        await until_async(lambda: container.failure is None and container.state is not before)
        clock.by_s += 1.0
        (load,) = await loads(store)
        assert load.events_per_s[-1] * load.age_s == pytest.approx(20, rel=0.02)


# --- reports of keys ---------------------------------------------------------------------------------


async def measured(peer: Peer, store: SegmentStore, clock: Ahead, segment: str = S) -> SegmentLoad:
    await appended(peer, segment, 1)
    clock.by_s += 1.0
    (load,) = await loads(store)
    return load


async def test_a_report_counts_for_the_session_s_segment(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        assert (await measured(peer, store, clock)).keys is None
        peer.send(report_of_keys(WRITER, 300, [0.0, 0.25, math.nextafter(1.0, 0.0)]))
        await peer.ask(wire.KeepAlive())
        (load,) = await loads(store)
        assert load.keys == KeySample((0.0, 0.25, math.nextafter(1.0, 0.0)), (100.0, 100.0, 100.0))
        clock.by_s += 11.0
        (load,) = await loads(store)
        assert load.keys is None


@pytest.mark.parametrize(
    "report",
    [
        wire.ReportKeys(WRITER, 1, b""),
        wire.ReportKeys(WRITER, 1, bytes(7)),
        wire.ReportKeys(WRITER, 1, bytes(8 * 65)),
        report_of_keys(WRITER, 0, [0.5]),
        report_of_keys(WRITER, -1, [0.5]),
        report_of_keys(WRITER, 1, [1.0]),
        report_of_keys(WRITER, 1, [-0.1]),
        report_of_keys(WRITER, 1, [math.nan]),
        report_of_keys(WRITER, 1, [0.5, math.inf]),
        report_of_keys(bytes(16), 1, [0.5]),  # a writer that isn't set up here
    ],
    ids=str,
)
async def test_a_bad_report_ends_its_connection(tmp_path: Path, report: wire.ReportKeys) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await measured(peer, store, clock)
        peer.send(report)
        assert await peer.closed()
        (load,) = await loads(store)
        assert load.keys is None


async def test_the_most_positions_of_a_report(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await measured(peer, store, clock)
        peer.send(report_of_keys(WRITER, 1, [0.5] * LOAD_REPORT_POSITIONS))
        await peer.ask(wire.KeepAlive())
        (load,) = await loads(store)
        assert load.keys is not None
        assert sum(load.keys.weights) == 1.0


async def test_only_a_client_that_knows_reports_hears_of_them(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        assert await peer.ask(wire.Hello(17, 5)) == wire.Hello(17, 5)
        assert await peer.ask(wire.Hello(10_000, 5)) == wire.Hello(17, 5)
        reply = await peer.ask(wire.OWN_HELLO)
        assert wire.knows(reply, wire.ReportKeys)
        assert reply.low_version == 5


async def test_a_session_whose_token_has_ended_reports_nothing(tmp_path: Path) -> None:
    clock = Ahead()
    key = TokenKey(b"k" * 64, now_s=time.time, monotonic_s=clock.monotonic)
    async with open_store(tmp_path, tokens=key, runtime=clock) as (store, peer):
        token = key.issue("home", "meters", Permission.READ_UPDATE)
        await peer.ask(wire.CreateSegment(1, S, 0, 0, key.master()))
        await peer.ask(wire.SetupAppend(2, WRITER, S, token))
        await peer.append([b"x"], 1)
        clock.by_s += 100_000.0
        peer.send(report_of_keys(WRITER, 1, [0.5]))
        await peer.ask(wire.KeepAlive())
        assert not any(container.load._samples._reports for container in store.containers)
