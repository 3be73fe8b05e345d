"""Storage of a container in a cluster: prepared ahead, discarded unused, and closed though the log doesn't respond."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from nadi.cluster.container_map import RecordWatch
from nadi.cluster.storage import ClusterStorage
from nadi.errors import (
    ClosedError,
    DamagedStateError,
    DataFolderError,
    DataFolderLockedError,
    StoreError,
    UnavailableError,
)
from nadi.runtime import REAL
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecords, name_of
from nadi.standalone.clustered import emptied_cache
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer
from tests.support.memory_engine import MemoryEngine
from tests.support.memory_registry import Faults, MemoryRecords, MemoryRegistry


class SilentEngine(MemoryEngine):
    """Engine that leaves calls unanswered once `is_silent` is set."""

    is_silent = False

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        if self.is_silent:
            await asyncio.get_running_loop().create_future()
        return await super().create(name, parts)


class World:
    def __init__(self, folder: Path) -> None:
        self.engine, self.folder = SilentEngine(), folder
        self.registry = MemoryRegistry(MemoryRecords())
        self.records = ContainerRecords(self.registry, REAL)
        self.chunks = ChunkStore.from_url("memory:///")

    async def parts(self, server: str, number: int = 0) -> ClusterStorage:
        seen, folder = await self.records.read(number), self.folder / server / f"container-{number}"
        return ClusterStorage(number, folder, server, seen, self.engine, self.records, self.chunks, REAL)

    def store(self, server: str) -> SegmentStore:
        return SegmentStore(self.folder / server, 2, chunks=self.chunks, parts=(), on_lost=lambda number: None)


async def test_open_returns_prepared_storage(tmp_path: Path) -> None:
    world = World(tmp_path)
    parts = await world.parts("a")
    await parts.prepare()
    assert (await world.records.read(0)).record.epoch == 1
    opened = await parts.open()
    await parts.discard()
    assert parts.epoch == 1, "claimed twice"
    assert (await opened.log.append([b"frame"])).address.sequence == 1
    await opened.close()


async def test_discard_closes_prepared_storage(tmp_path: Path) -> None:
    world = World(tmp_path)
    parts = await world.parts("a")
    await parts.prepare()
    chain = parts.chain
    await parts.discard()
    with pytest.raises(ClosedError):
        await chain.append([b"frame"])


async def test_missing_record_of_existing_container_is_rejected(tmp_path: Path) -> None:
    """A record is written before any other object of a container, so a missing one was lost, and its data must not be
    overwritten."""
    world = World(tmp_path)
    opened = await (await world.parts("a")).open()
    await opened.log.append([b"frame"])
    await opened.close()
    await world.registry.delete(name_of(0))
    before = dict(world.engine.objects)
    with pytest.raises(DamagedStateError):
        await (await world.parts("b")).open()
    assert dict(world.engine.objects) == before
    assert (await world.records.read(0)).version is None
    await world.chunks.put("snapshots/container-1/base", [b"x"])
    with pytest.raises(DamagedStateError):
        await (await world.parts("b", 1)).open()


@pytest.mark.parametrize("gives_up", [False, True])
async def test_store_closes_while_log_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    """One container has an append in flight, while another is being opened, or the same one closed."""
    monkeypatch.setattr("nadi.limits.CHAIN_CLOSE_S", 0.05)
    world = World(tmp_path)
    store = world.store("a")
    await store.start()
    await store.take(await world.parts("a"))
    world.engine.is_silent = True
    name = next(name for name in map("s/t/{}".format, range(99)) if store.has(name))
    waiting = asyncio.create_task(store.exchange(wire.CreateSegment(1, name, 0, 0, "")))
    moving = asyncio.create_task(store.give_up(0) if gives_up else store.take(await world.parts("a", 1)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert not moving.done()
    store.forsake()
    async with asyncio.timeout(60.0):
        await store.close()
        reply = await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.gather(moving, return_exceptions=True)
    assert isinstance(reply[0], UnavailableError)


async def create_segment(store: SegmentStore, number: int) -> str:
    names = [name for name in map("s/t/{}".format, range(99)) if store.has(name)]
    await store.exchange(wire.CreateSegment(1, names[number], 0, 0, ""))
    return names[number]


async def test_released_container_has_its_last_changes_in_the_log(tmp_path: Path) -> None:
    """A snapshot would take long while the container has no owner."""
    world = World(tmp_path)
    one, two = world.store("a"), world.store("b")
    await one.start()
    await one.take(await world.parts("a"))
    name = await create_segment(one, 0)
    world.registry.opened = asyncio.Event()  # blocks all changes of records
    async with asyncio.timeout(60.0):
        await one.give_up(0)
    world.registry.opened = None
    assert (await world.records.read(0)).record.snapshot is None
    await two.start()
    await two.take(await world.parts("b"))
    assert two.containers[0].state.find(name) is not None
    await one.close()
    await two.close()


async def test_opening_after_a_fetch_reads_only_further_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    store = world.store("a")
    await store.start()
    await store.take(await world.parts("a"))
    names = [await create_segment(store, 0)]
    await store.bring_up_to_date(0)
    parts = await world.parts("b")
    await parts.fetch(await world.records.read(0))
    names.append(await create_segment(store, 1))
    await store.bring_up_to_date(0)
    names.append(await create_segment(store, 2))  # only in the log
    await store.give_up(0)
    read, reads = world.chunks.read, list[str]()

    async def noted(name: str, position: int, length: int) -> memoryview:
        reads.append(name)
        return await read(name, position, length)

    monkeypatch.setattr(world.chunks, "read", noted)
    parts.claimed = await world.records.read(0)
    snapshot = parts.claimed.record.snapshot
    assert snapshot is not None
    opened = await parts.open()
    assert reads == [delta.name for delta in snapshot.deltas]
    assert all(opened.state.find(name) is not None for name in names)
    await opened.close()
    await store.close()


async def test_unused_fetch_is_closed(tmp_path: Path) -> None:
    world = World(tmp_path)
    parts = await world.parts("b")
    await parts.fetch(await world.records.read(0))
    await parts.discard()
    opened = await parts.open()
    assert (await opened.log.append([b"frame"])).address.sequence == 1
    await opened.close()


def test_cache_is_locked_and_emptied_at_each_start(tmp_path: Path) -> None:
    lock, copies = emptied_cache(tmp_path / "cache")
    (copies / "container-0").mkdir(parents=True)
    with pytest.raises(DataFolderLockedError):
        emptied_cache(tmp_path / "cache")
    lock.release()
    lock, copies = emptied_cache(tmp_path / "cache")
    assert not copies.exists()
    lock.release()


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def test_data_folder_is_rejected_as_cache(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path / "data", 1)
    await store.start()
    await store.close()
    before = files(tmp_path)
    with pytest.raises(DataFolderError):
        emptied_cache(tmp_path / "data")
    assert files(tmp_path) == before


# --- records of containers: unanswered changes and damage ---------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_unanswered_claim_is_recognised_as_own(seed: int) -> None:
    stored = MemoryRecords()
    records = ContainerRecords(MemoryRegistry(stored, Faults(unanswered=0.25, lost=0.1), seed=seed), REAL)
    claimed = await records.claim(0, "me", await ContainerRecords(MemoryRegistry(stored), REAL).read(0))
    assert (claimed.record.epoch, claimed.record.owner) == (1, "me")
    assert await ContainerRecords(MemoryRegistry(stored), REAL).read(0) == claimed


async def test_any_flipped_byte_of_a_record_is_detected() -> None:
    """No flipped byte of a record yields another position, owner or snapshot."""
    stored = MemoryRecords()
    records = ContainerRecords(MemoryRegistry(stored), REAL)
    claimed = await records.claim(0, "a", await records.read(0))
    intact = stored.values[name_of(0)].value
    for position in range(len(intact)):
        stored.set(name_of(0), b"%b%c%b" % (intact[:position], intact[position] ^ 1, intact[position + 1 :]))
        with pytest.raises(StoreError, match="containers/0"):
            await records.read(0)
    stored.set(name_of(0), intact)
    assert (await records.read(0)).record == claimed.record


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xff\xff\xff"])
async def test_damaged_record_does_not_affect_others(damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    stored = MemoryRecords()
    registry = MemoryRegistry(stored)
    records = ContainerRecords(registry, REAL)
    await records.claim(0, "a", await records.read(0))
    stored.set(name_of(1), damaged)
    watch = RecordWatch(registry, records, 3, REAL)
    await watch.poll()
    assert watch.owner(0) == "a"
    assert sorted(watch.seen) == [0, 2], "the damaged record is ignored"
    assert "containers/1" in caplog.text
    with pytest.raises(StoreError, match="containers/1"):
        await records.read(1)
