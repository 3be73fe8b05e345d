"""The storage writer moves old data, and data that fills a chunk, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nadi.errors import UnavailableError
from nadi.limits import STORAGE_WRITER_RUNS
from nadi.model.framing import frame_events
from nadi.segmentstore import storage_writer
from nadi.segmentstore.state import machine as state_module
from nadi.segmentstore.state.operations import ChunksDropped
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer
from tests.segmentstore.harness import WRITER, Peer, open_store
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

LARGE, SMALL = "scope/large/0.#epoch.0", "scope/small/0.#epoch.0"
TXN = SMALL + "#transaction." + "0" * 31 + "1"


async def test_storage_writer_moves_only_due_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "CHUNK_FLUSH_BYTES", 1_000)
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_BYTES", 1_000)
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 3600.0)

    async with open_store(tmp_path, 1) as (store, peer):
        state, tier2 = store.containers[0].state, store.storage_writers[0]
        await tier2.stop()
        for number, segment in enumerate((SMALL, LARGE)):
            await peer.create(segment)
            await peer.setup(segment, bytes([number]) * 16)
            for last in range(1, 4):
                await peer.append([bytes(400 * number + 10)], last, bytes([number]) * 16)
        assert await tier2.flush_once()
        assert not await tier2.flush_once()
        large, small = state.find(LARGE), state.find(SMALL)
        assert large is not None
        assert small is not None
        assert (large.log_bytes, small.log_bytes) == (0, 3 * 18)
        monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", -1.0)
        assert await tier2.flush_once()
        assert not await tier2.flush_once()
        assert (small.log_bytes, len(state.frames)) == (0, 0)


async def test_storage_writer_does_not_yield_once_the_log_needs_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if frames are slow: else the log would grow until writers wait."""
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", -1.0)
    monkeypatch.setattr(storage_writer, "FLUSH_ROUND_S", 60.0)
    segments = [f"scope/paced/{number}.#epoch.0" for number in range(3 * STORAGE_WRITER_RUNS)]
    async with open_store(tmp_path, 1) as (store, peer):
        container, tier2 = store.containers[0], store.storage_writers[0]
        await tier2.stop()
        monkeypatch.setattr(container.throttle, "pause", lambda what, work_s: 3600.0)
        for number, segment in enumerate(segments):
            await peer.create(segment)
            await peer.setup(segment, bytes([number]) * 16)
            await peer.append([bytes(4_000)], 1, bytes([number]) * 16)
        assert container.logged_bytes >= 10_000
        container.log_max_bytes = 40_000
        async with asyncio.timeout(60):
            await tier2._flush()
        assert not container.state.frames


async def test_merged_data_is_moved_with_its_target(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        state, tier2 = store.containers[0].state, store.storage_writers[0]
        await tier2.stop()
        await peer.create(SMALL)
        await peer.create(TXN)
        await peer.setup(TXN)
        await peer.append([b"older"], 1)
        await peer.setup(SMALL, bytes(16))
        await peer.append([b"newer"], 1, bytes(16))
        await peer.ask(wire.MergeSegments(1, SMALL, TXN, ""))
        await peer.create(TXN + "2")
        await peer.setup(TXN + "2", WRITER)
        await peer.append([b"dropped"], 1)
        await peer.ask(wire.DeleteSegment(2, TXN + "2", ""))
        while await tier2.flush_once(everything=True):
            pass
        assert not state.frames
        assert await peer.read_all(SMALL) == frame_events([b"newer", b"older"])


@pytest.mark.parametrize("segments", [1, 3])
async def test_several_runs_are_moved_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """Even of one segment; at most as many as fit in memory, and the bytes stay unchanged."""
    monkeypatch.setattr(state_module, "CHUNK_FLUSH_BYTES", 10_000)
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_BYTES", 10_000)
    monkeypatch.setattr(storage_writer, "CHUNK_MAX_BYTES", 20_000)
    monkeypatch.setattr(storage_writer, "COMPACT_FROM", 1_000)
    put, under_way, most = ChunkStore.put, 0, 0

    async def slow_put(chunks: ChunkStore, name: str, parts: Sequence[Buffer]) -> None:
        nonlocal under_way, most
        if name.startswith("snapshots/"):
            return await put(chunks, name, parts)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        await put(chunks, name, parts)
        under_way -= 1
        return None

    monkeypatch.setattr(ChunkStore, "put", slow_put)
    async with open_store(tmp_path, 2) as (store, peer):
        for tier2 in store.storage_writers:
            await tier2.stop()
        names = [f"scope/stream/{number}.#epoch.0" for number in range(segments)]
        written = dict.fromkeys(names, b"")
        for number, name in enumerate(names):
            await peer.create(name)
            await peer.setup(name, bytes([number]) * 16)
            for last in range(1, 100):
                event = bytes([last, number]) * 2_000
                await peer.append([event], last, bytes([number]) * 16)
                written[name] += frame_events([event])
        for tier2 in store.storage_writers:
            tier2.start()
        records = [store.container_of(name).state.find(name) for name in names]
        await until_async(lambda: all(record is not None and record.log_bytes < 10_000 for record in records))
        assert 1 < most <= STORAGE_WRITER_RUNS
        for name, record in zip(names, records, strict=True):
            assert record is not None
            assert record.log_bytes < 10_000
            ends = [extent.end for extent in record.extents]
            assert [0, *ends[:-1]] == [extent.offset for extent in record.extents]
            assert await peer.read_all(name) == written[name]


async def test_failed_move_is_logged_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "CHUNK_FLUSH_BYTES", 1_000)
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_BYTES", 1_000)
    put, failures = ChunkStore.put, ["once"]

    async def failing_put(chunks: ChunkStore, name: str, parts: Sequence[Buffer]) -> None:
        if failures:
            failures.pop()
            raise UnavailableError("tier 2 is away")
        await put(chunks, name, parts)

    monkeypatch.setattr(ChunkStore, "put", failing_put)

    async with open_store(tmp_path, 1) as (store, peer):
        tier2 = store.storage_writers[0]
        await tier2.stop()
        for number, segment in enumerate((SMALL, LARGE)):
            await peer.create(segment)
            await peer.setup(segment, bytes([number]) * 16)
            await peer.append([bytes(2_000)], 1, bytes([number]) * 16)
        tier2.start()
        said = []
        for _ in range(6_000):
            await asyncio.sleep(0.01)
            said.append(str(tier2.error))
            if said[-1] == "None" and len(set(said)) > 1:
                break
        assert sorted(set(said)) == ["None", "tier 2 is away"]
        records = [store.containers[0].state.find(segment) for segment in (SMALL, LARGE)]
        assert [record is not None and record.log_bytes for record in records] == [0, 0]
        assert [await peer.read_all(segment) for segment in (SMALL, LARGE)] == [frame_events([bytes(2_000)])] * 2


# --- a chunk is deleted only when it is durably garbage -----------------------------------------------


async def test_garbage_of_a_failed_frame_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.0)
    await _scenario(tmp_path, monkeypatch)


async def _scenario(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(folder, containers=1) as (store, _):
        container, tier2 = store.containers[0], store.storage_writers[0]
        await tier2.stop()
        chunks = tier2._chunks
        await chunks.put("container-0/live", [b"da", b"ta"])
        appending, release = asyncio.Event(), asyncio.Event()

        async def fail(_: Any) -> Any:
            appending.set()
            await release.wait()
            raise OSError(5, "the disk failed")

        monkeypatch.setattr(container.log, "append", fail)
        dropping = asyncio.create_task(container.call(lambda frame: frame.emit(ChunksDropped(["container-0/live"]))))
        await appending.wait()
        collecting = asyncio.create_task(tier2._collect_garbage())
        await asyncio.sleep(0)
        release.set()
        for task in (dropping, collecting):
            with pytest.raises(UnavailableError):
                await task
        assert bytes(await chunks.read("container-0/live", 0, 4)) == b"data"


async def test_chunk_is_deleted_once_entirely_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.0)
    name, event = "scope/stream/0.#epoch.0", bytes(1_000)

    def chunks() -> set[str]:
        return {path.name.partition("-")[0] for path in (tmp_path / "tier2" / "container-0").rglob("*-*")}

    async def truncated(peer: Peer, store: SegmentStore, offset: int) -> set[str]:
        assert isinstance(await peer.ask(wire.TruncateSegment(1, name, offset, "")), wire.SegmentTruncated)
        await store.storage_writers[0]._collect_garbage()
        return chunks()

    async with open_store(tmp_path, containers=1) as (store, peer):
        tier2 = store.storage_writers[0]
        await tier2.stop()
        await peer.create(name)
        await peer.setup(name)
        for number in range(1, 5):
            await peer.append([event, event], number)
            assert await tier2.flush_once(everything=True)
        first, second, third, fourth = sorted(chunks())
        assert await truncated(peer, store, 1_008) == {first, second, third, fourth}, "half of it"
        assert await truncated(peer, store, 3 * 2_016) == {fourth}
        assert await truncated(peer, store, 3 * 2_016 + 1_008) == {fourth}
        await peer.append([event, event], 5)
        await peer.ask(wire.TruncateSegment(1, name, 4 * 2_016 + 1_008, ""))
        assert await tier2.flush_once(everything=True), "an extent truncated in the middle is moved too"
        assert not store.containers[0].state.frames
    async with open_store(tmp_path, containers=1) as (store, peer):
        assert len(await peer.read_all(name, 4 * 2_016 + 1_008)) == 1_008
        await store.storage_writers[0].stop()
        await store.storage_writers[0]._collect_garbage()
        assert len(chunks() - {fourth}) == 1
        await peer.ask(wire.DeleteSegment(1, name, ""))
        await store.storage_writers[0]._collect_garbage()
        assert chunks() == set()
