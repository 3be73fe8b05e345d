"""Segment records are evicted and reloaded without visible effects, and needed ones are never evicted."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from nadi import limits
from nadi.errors import UnavailableError
from nadi.model.framing import frame_events
from nadi.segmentstore.container import container as container_module
from nadi.segmentstore.recovery import storage
from nadi.segmentstore.state import machine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey
from tests.segmentstore.harness import Peer, WallClock, connect, open_store
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

STREAMS = [f"s/stream-{n}/0.#epoch.0" for n in range(8)]
TABLES = [f"s/table-{n}_kvtable/0.#epoch.0" for n in range(4)]
KEYS = [b"key-%02d" % n for n in range(6)]
ATTRIBUTES = [bytes([n]) * 16 for n in range(1, 4)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.005)
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)
    small_files = SimpleNamespace(open=partial(FileLog.open, file_bytes=1 << 20))
    monkeypatch.setattr(storage, "FileLog", small_files)
    commit = ContainerMetadata.commit

    def slow_commit(self: ContainerMetadata, *arguments: Any) -> None:
        time.sleep(0.005)  # so that much happens during a checkpoint
        commit(self, *arguments)

    monkeypatch.setattr(ContainerMetadata, "commit", slow_commit)


class Story:
    """Random commands, determined by the seed; `replies` are all that a client sees."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replies: list[object] = []
        self.fewest = 1000  # the fewest records in memory, of those in the store
        self._writers = 0
        self._wall_ms = 1_000_000

    async def run(self, folder: Path, lives: int, steps: int) -> None:
        for _ in range(lives):
            async with open_store(folder, 1, runtime=WallClock(lambda: self._wall_ms)) as (store, peer):
                for _ in range(steps):
                    await self._step(store, peer)
                    self.fewest = min(self.fewest, len(store.containers[0].state.record_cache))
                peer = await self._crash(store, peer)
                for segment in STREAMS:
                    await self._look(peer, segment)
                peer.close()

    async def _crash(self, store: SegmentStore, peer: Peer) -> Peer:
        """Forget all memory, as a crash does, and recover from disk."""
        container = store.containers[0]
        former = container.state
        container._pending_failure = UnavailableError("a crash")
        container._wake.set()
        await until_async(lambda: container.state is not former and container.failure is None)
        peer.close()
        return await connect(store.address)

    async def _look(self, peer: Peer, segment: str) -> None:
        info = await peer.ask(wire.GetStreamSegmentInfo(1, segment, ""))
        if isinstance(info, wire.NoSuchSegment):
            self.replies.append("absent")
            return
        data = await peer.read_all(segment, info.start_offset)
        attributes = [(await peer.ask(wire.GetSegmentAttribute(2, segment, a, ""))).value for a in ATTRIBUTES]
        self.replies.append((info.is_sealed, info.start_offset, info.write_offset, data, attributes))
        moments = (self.random.randrange(1_000_000, self._wall_ms + 2) for _ in range(5))
        self.replies += [await peer.ask(wire.LocateMoment(3, segment, moment, 0, "")) for moment in moments]

    async def _step(self, store: SegmentStore, peer: Peer) -> None:
        r = self.random
        stream, other, table = r.choice(STREAMS), r.choice(STREAMS), r.choice(TABLES)
        self._wall_ms += r.choice([0, 1, 900, 5_000])
        key, value, attribute = r.choice(KEYS), r.randbytes(r.randrange(30)), r.choice(ATTRIBUTES)
        match r.randrange(15):
            case 0 | 1:
                self.replies.append(await peer.ask(wire.CreateSegment(2, stream, 0, 0, "")))
            case 2 | 3 | 4:
                await self._append(peer, stream, value)
            case 5:
                self.replies.append(await peer.ask(wire.CreateTableSegment(3, table, "")))
            case 6 | 7 | 8:
                version = r.choice([NO_VERSION, NO_VERSION, NOT_EXISTS])
                entries = (WireTableEntry(key, version, value), WireTableEntry(r.choice(KEYS), NO_VERSION, b"2"))
                self.replies.append(await peer.ask(wire.UpdateTableEntries(4, table, "", entries)))
            case 9:
                self.replies.append(await peer.ask(wire.RemoveTableKeys(5, table, "", (WireTableKey(key),))))
            case 10:
                self.replies.append(await peer.ask(wire.ReadTableEntries(6, table, "", 4, (b"", b"", b""))))
                self.replies.append(await peer.ask(wire.ReadTableEntriesDelta(7, table, "", 0, 3)))
                self.replies.append(await peer.ask(wire.GetTableSegmentInfo(8, table, "")))
            case 11:
                command = r.choice([wire.SealSegment(9, stream, ""), wire.DeleteSegment(10, stream, "")])
                self.replies.append(await peer.ask(command))
            case 12:
                if other != stream:
                    self.replies.append(await peer.ask(wire.MergeSegmentsBatch(11, stream, (other,), "")))
            case 13:
                update = wire.UpdateSegmentAttribute(12, stream, attribute, r.randrange(9), NO_VERSION, "")
                self.replies.append(await peer.ask(update))
            case 14:
                while await store.storage_writers[0].flush_once(everything=True):
                    pass
        if r.random() < 0.2:
            await self._look(peer, r.choice(STREAMS))
        if r.random() < 0.1:
            await asyncio.sleep(0.02)  # a checkpoint or two

    async def _append(self, peer: Peer, segment: str, value: bytes) -> None:
        self._writers += 1
        writer = self._writers.to_bytes(16, "big")
        reply = await peer.ask(wire.SetupAppend(13, writer, segment, ""))
        if isinstance(reply, wire.AppendSetup):
            data = frame_events([value])
            reply = await peer.ask(wire.AppendBlockEnd(writer, len(data), data, 1, 1, 14))
        self.replies.append(reply)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_evicting_records_does_not_change_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    few, many = Story(seed), Story(seed)
    with monkeypatch.context() as tight:
        tight.setattr(machine, "RECORDS_IN_MEMORY", 1)
        tight.setattr(machine, "RECORD_ATTRIBUTES_IN_MEMORY", 1)
        uvloop.run(few.run(tmp_path / "few", lives=2, steps=120))
    uvloop.run(many.run(tmp_path / "many", lives=2, steps=120))
    assert few.replies == many.replies
    assert few.fewest <= 1 < 5 < len({str(reply) for reply in few.replies})


async def test_a_waiting_reader_keeps_its_segment_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RECORDS_IN_MEMORY", 1)

    async with open_store(tmp_path, 1) as (store, peer):
        for segment in STREAMS:
            await peer.create(segment)
        await asyncio.sleep(0.05)
        peer.send(wire.ReadSegment(STREAMS[0], 0, 100, "", 5))
        await peer.ask(wire.UpdateSegmentAttribute(4, STREAMS[0], ATTRIBUTES[0], 1, NO_VERSION, ""))
        table = store.containers[0].state.record_cache
        await until_async(lambda: not table.dirty and not table._writing)
        for segment in STREAMS * 3:
            await peer.ask(wire.GetStreamSegmentInfo(1, segment, ""))
        held = store.containers[0].state.find(STREAMS[0])
        assert held is not None
        assert held.holders == 1
        assert len(store.containers[0].state.record_cache) <= 3
        writer = bytes(16)
        peer.send(wire.SetupAppend(2, writer, STREAMS[0], ""))
        peer.send(wire.AppendBlockEnd(writer, 9, frame_events([b"x"]), 1, 1, 3))
        replies = [await peer.receive() for _ in range(3)]
        assert [bytes(r.data) for r in replies if isinstance(r, wire.SegmentRead)] == [frame_events([b"x"])]
        await until_async(lambda: not held.holders)


async def test_a_restart_loads_only_segments_that_have_bytes_in_the_log(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        for segment in STREAMS:
            await peer.create(segment)
        await peer.setup(STREAMS[3])
        await peer.append([b"x"], 1)
    async with open_store(tmp_path, 1) as (store, peer):
        state = store.containers[0].state
        assert [record.name for record in state.record_cache.all()] == [STREAMS[3]]
        while await store.storage_writers[0].flush_once(everything=True):
            pass
    async with open_store(tmp_path, 1) as (store, peer):
        assert len(store.containers[0].state.record_cache) == 0
        assert await peer.read_all(STREAMS[3]) == frame_events([b"x"])
