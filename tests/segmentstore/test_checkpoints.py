"""Checkpoints: the log is released only up to data durably stored elsewhere, and the state may outgrow its map."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from nadi import limits
from nadi.errors import DamagedStateError
from nadi.model.framing import frame_events
from nadi.segmentstore.recovery.storage import OpenStorage
from nadi.segmentstore.state import metadata
from nadi.segmentstore.state.operations import decode_frame
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.log import Frame
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, AttributeUpdate, WireTableEntry, WireTableKey
from tests.segmentstore.harness import connect, open_store
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
T = "scope/table_kvtable/0.#epoch.0"


async def test_frame_in_flight_releases_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes in tier 2 count only once the frame that records them is durable."""

    async with open_store(tmp_path, 1) as (store, peer):
        container, tier2 = store.containers[0], store.storage_writers[0]
        await tier2.stop()
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"only in the log"], 1)
        needed = next(iter(container.state.frames))
        append, truncate = container.log.append, container.log.truncate
        under_way, go_on, released = asyncio.Event(), asyncio.Event(), []
        commit, writing = container.metadata.commit, threading.Event()

        def slow_commit(*arguments: Any) -> None:
            assert writing.wait(60)
            commit(*arguments)

        async def held(parts: Any) -> Any:
            if any(type(op).__name__ == "ChunkStored" for op in decode_frame(b"".join(parts))[0]):
                under_way.set()
                await go_on.wait()
            return await append(parts)

        def note(before_sequence: int, keep: Any) -> None:
            released.append((before_sequence, go_on.is_set()))
            truncate(before_sequence, keep)

        await container.checkpoints.ended()
        monkeypatch.setattr(container.log, "append", held)
        monkeypatch.setattr(container.log, "truncate", note)
        monkeypatch.setattr(container.metadata, "commit", slow_commit)
        container.checkpoints.start()  # it starts before the chunk's frame, and ends while that is in flight
        assert container.checkpoints._task is not None
        storing = asyncio.create_task(tier2.flush_once(everything=True))
        await under_way.wait()
        writing.set()
        await asyncio.wait([container.checkpoints._task])
        assert all(before <= needed for before, durable in released if not durable)
        go_on.set()
        await storing
        assert needed not in container.state.frames


async def test_state_outgrows_its_initial_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "STATE_MAP_BYTES", 256 * 1024)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.01)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        for number in range(40):
            entries = tuple(WireTableEntry(b"%d-%d" % (number, n), NO_VERSION, bytes(1000)) for n in range(100))
            reply = await peer.ask(wire.UpdateTableEntries(2, T, "", entries))
            assert isinstance(reply, wire.TableEntriesUpdated)
        assert store.containers[0].failure is None
    monkeypatch.setattr(metadata, "STATE_MAP_BYTES", 1024)  # less than the file's size
    async with open_store(tmp_path, 1) as (_, peer):
        info = await peer.ask(wire.GetTableSegmentInfo(3, T, ""))
        assert info.entry_count == 4000
        read = await peer.ask(wire.ReadTable(4, T, "", (WireTableKey(b"39-99"), WireTableKey(b"0-0"))))
        assert [len(entry.value) for entry in read.entries] == [1000, 1000]


async def test_checkpoint_failed_on_a_full_disk_is_retried_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints that include each kind of change fail on a full disk; then only the state on disk remains."""
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 1000)
    part, gone = S + "#transient.part", "scope/gone/0.#epoch.0"
    other = bytes(reversed(range(16)))

    async with open_store(tmp_path, 1) as (store, peer):
        container, tier2 = store.containers[0], store.storage_writers[0]
        await tier2.stop()
        commit, failures = container.metadata.commit, 0

        def no_room(*_: Any) -> None:
            nonlocal failures
            failures += 1
            raise lmdb.DiskError("mdb_txn_commit: No space left on device")

        async def checkpoint() -> None:
            container.checkpoints.start()
            await container.checkpoints.ended()

        for name in (S, part, gone):
            await peer.create(name)
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await checkpoint()
        monkeypatch.setattr(container.metadata, "commit", no_room)

        await peer.setup(S)
        await peer.append([b"1" * 100], 1)
        await checkpoint()
        await peer.append([b"2" * 100], 2)
        await peer.ask(wire.UpdateTableEntries(2, T, "", (WireTableEntry(b"a", NO_VERSION, b"1"),)))
        await checkpoint()
        await tier2.flush_once(everything=True)
        await peer.setup(part, other)
        await peer.append([b"3" * 100], 7, other)
        updates = (AttributeUpdate(other, 0, 7, 0),)
        merged = await peer.ask(wire.MergeSegments(3, S, part, "", updates))
        assert isinstance(merged, wire.SegmentsMerged), merged
        await checkpoint()
        await peer.ask(wire.DeleteSegment(4, gone, ""))
        await peer.ask(wire.UpdateTableEntries(5, T, "", (WireTableEntry(b"b", NO_VERSION, b"2"),)))
        await peer.ask(wire.TruncateSegment(6, S, 108, ""))
        await checkpoint()
        assert failures == 8, "each was retried once, with the reserve"
        assert container.failure is None
        waited = container.checkpoints.waits_for_space

        monkeypatch.setattr(container.metadata, "commit", commit)
        await checkpoint()
        assert (waited, container.checkpoints.waits_for_space) == (True, False)
        whole = await peer.read_all(S, 108)

    monkeypatch.setattr(FileLog, "replay", _nothing_new)
    async with open_store(tmp_path, 1) as (_, peer):
        assert await peer.read_all(S, 108) == whole
        assert len(whole) == 216
        assert (await peer.setup(S), await peer.setup(S, other)) == (2, 7)
        read = await peer.ask(wire.ReadTable(7, T, "", (WireTableKey(b"a"), WireTableKey(b"b"))))
        assert [bytes(entry.value) for entry in read.entries] == [b"1", b"2"]
        for name in (part, gone):
            assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(8, name, "")), wire.NoSuchSegment)


_replay = FileLog.replay


async def _nothing_new(log: FileLog, after_sequence: int) -> AsyncIterator[Frame]:
    frames = [frame async for frame in _replay(log, after_sequence)]
    assert not frames, "the last checkpoint includes them all"
    for frame in frames:
        yield frame


async def test_state_found_damaged_by_a_checkpoint_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 1_000)
    async with open_store(tmp_path, 1) as (store, peer):
        container, tier2 = store.containers[0], store.storage_writers[0]
        await tier2.stop()
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"first"], 1)
        container.checkpoints.start()
        await container.checkpoints.ended()
        state = container.metadata
        with state._env.begin(write=True, db=state._tables["extents"]) as txn:
            key, raw = next(iter(txn.cursor()))
            txn.put(bytes(key), bytes([*raw[:-1], raw[-1] ^ 1]))
        await peer.append([b"second"], 2)
        begin = len(frame_events([b"first"]))
        await peer.ask(wire.TruncateSegment(1, S, begin, ""))  # so that the row is read
        failures: list[Exception] = []
        with monkeypatch.context() as patched:
            patched.setattr(container.checkpoints, "_recover_from", failures.append)
            container.checkpoints.start()
            await container.checkpoints.ended()
        opened = asyncio.Event()
        follow = container.checkpoints.follow

        def noted(parts: OpenStorage) -> None:
            follow(parts)
            opened.set()

        monkeypatch.setattr(container.checkpoints, "follow", noted)
        container._recover_from(failures[-1])
        await asyncio.wait_for(opened.wait(), 60)
        await until_async(lambda: container.failure is None)
        assert {type(failure) for failure in failures} == {DamagedStateError}
        fresh = await connect(store.address)  # the other connection's writers failed
        await fresh.setup(S)
        assert (await fresh.read_all(S, begin)) == frame_events([b"second"])
        fresh.close()
