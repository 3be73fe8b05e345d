"""A disk that fails at random while large runs and their files are written: no acknowledged data is lost.

After each failure the container recovers as after a crash, or the storage writer retries, while writers continue.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nadi import limits
from nadi.errors import UnavailableError
from nadi.model.framing import frame_events
from nadi.segmentstore import storage_writer
from nadi.segmentstore.container import container as container_module
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1 import blob_files as runs_module
from nadi.segmentstore.tier1.blob_files import BlobFile
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier2 import object_store
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, connect, open_store
from tests.segmentstore.test_runs import checkpointed, runs_in
from tests.segmentstore.test_stored_bytes import assert_read, move
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

S, T = "scope/stream/0.#epoch.0", "scope/other/0.#epoch.0"
TXN = S + "#transaction." + "0" * 31


class Disk:
    """Fails at random, before or after the operation."""

    def __init__(self, chance: random.Random, patches: pytest.MonkeyPatch, part: float) -> None:
        self._chance, self._part = chance, part
        self.is_failing, self.failed = False, 0
        patches.setattr(BlobFile, "_write", self._sometimes(BlobFile._write))
        patches.setattr(BlobFile, "complete", self._sometimes(BlobFile.complete))
        patches.setattr(object_store, "sync", self._sometimes(object_store.sync))
        patches.setattr(runs_module.BlobFiles, "_made", self._sometimes(runs_module.BlobFiles._made))
        append, put = FileLog.append, ChunkStore.put

        async def failing_append(log: FileLog, parts: Any) -> Any:
            self._may_fail(self._part / 4)
            return await append(log, parts)

        async def failing_put(chunks: ChunkStore, name: str, parts: Any) -> None:
            try:
                self._may_fail(self._part)
            except OSError as error:
                raise UnavailableError(str(error)) from error
            await put(chunks, name, parts)

        patches.setattr(FileLog, "append", failing_append)
        patches.setattr(ChunkStore, "put", failing_put)

    def _sometimes(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **given: Any) -> Any:
            self._may_fail(self._part / 2)
            found = call(*args, **given)
            self._may_fail(self._part / 2)
            return found

        return called

    def _may_fail(self, part: float) -> None:
        if self.is_failing and self._chance.random() < part:
            self.failed += 1
            raise OSError(self._chance.choice([errno.EIO, errno.ENOSPC]), "the disk fails")


class Writer:
    """Appends random events to a segment, each until it is stored, and knows the segment's expected contents."""

    def __init__(self, world: World, segment: str, number: int) -> None:
        self.segment, self.data = segment, b""
        self._world, self._id, self._last = world, number.to_bytes(16), 0

    async def begin(self) -> Writer:
        await self._world.ask(wire.CreateSegment(1, self.segment, 0, 0, ""))
        return self

    async def append(self, size: int) -> None:
        event = self._world.chance.randbytes(size)
        async with asyncio.timeout(60):
            while not await self._try(event):
                await self._world.reconnect()
        self._last += 1
        self.data += frame_events([event])

    async def _try(self, event: bytes) -> bool:
        peer = self._world.peer
        try:
            reply = await peer.ask(wire.SetupAppend(1, self._id, self.segment, ""))
            if not isinstance(reply, wire.AppendSetup):
                return False
            assert reply.last_event_number in (self._last, self._last + 1) or not self._last
            if reply.last_event_number == self._last + 1:
                return True
            return isinstance(await peer.append([event], self._last + 1, self._id), wire.DataAppended)
        except ConnectionError:
            return False


class World:
    """The store under test, and a connection that is reopened whenever it is lost."""

    def __init__(self, store: SegmentStore, peer: Peer, chance: random.Random) -> None:
        self.store, self.peer, self.chance = store, peer, chance

    async def reconnect(self) -> None:
        self.peer.close()
        await asyncio.sleep(0.005)
        self.peer = await connect(self.store.address)

    async def ask(self, command: wire.Command) -> None:
        """Send the command until it succeeds, or has succeeded before with a lost reply."""
        async with asyncio.timeout(60):
            while True:
                try:
                    reply = await self.peer.ask(command)
                    if not isinstance(reply, wire.ErrorMessage | wire.WrongHost):
                        return
                except ConnectionError:
                    pass
                await self.reconnect()


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
async def test_randomly_failing_disk_loses_no_acknowledged_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("nadi.segmentstore.store.BlockCache", lambda: BlockCache(0))
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)
    monkeypatch.setattr(storage_writer, "STORAGE_WRITER_TICK_S", 0.005)
    monkeypatch.setattr(storage_writer, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", chance.choice([0.01, 0.1]))
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.05)
    monkeypatch.setattr(limits, "RUN_FILE_BYTES", chance.choice([400_000, 1 << 20, 8 << 20]) // 4096 * 4096)
    monkeypatch.setattr(runs_module, "_TRY_AGAIN_S", 0.01)
    disk = Disk(chance, monkeypatch, 0.1)
    async with open_store(tmp_path, 1) as (store, peer):
        world = World(store, peer, chance)
        writers = [await Writer(world, S, 1).begin(), await Writer(world, T, 2).begin()]
        disk.is_failing = True
        for step in range(60):
            writer = chance.choice(writers)
            match chance.choice(["large", "large", "large", "small", "merge", "cut", "wait"]):
                case "large":
                    await writer.append(chance.randrange(130_000, 350_000))
                case "small":
                    await writer.append(chance.choice([1, 4_088, 100_000]))
                case "merge":
                    transaction = await Writer(world, f"{TXN}{step % 10}", 10 + step).begin()
                    for size in chance.choice([[200_000], [10, 300_000, 5], [140_000, 140_000]]):
                        await transaction.append(size)
                    await world.ask(wire.MergeSegments(1, S, transaction.segment, ""))
                    writers[0].data += transaction.data
                case "cut" if chance.random() < 0.3:
                    offset = chance.randrange(len(writer.data) + 1)
                    await world.ask(wire.TruncateSegment(1, writer.segment, offset, ""))
                case "wait":
                    await asyncio.sleep(0.02)
        disk.is_failing = False
        assert disk.failed
        await until_async(lambda: store.containers[0].failure is None)
        for writer in writers:
            await assert_read(store, writer.segment, writer.data)
        await move(store)
        await checkpointed(store)
        for writer in writers:
            await assert_read(store, writer.segment, writer.data)
        await until_async(lambda: not store.containers[0].state.runs.bytes_of)
        world.peer.close()
    async with open_store(tmp_path, 1) as (store, _):
        for writer in writers:
            await assert_read(store, writer.segment, writer.data)
    reports = await inspect_folder(tmp_path)
    assert not any(report.lost or report.is_refused for report in reports), [report.lost for report in reports]
    assert not runs_in(tmp_path)
