"""Stored bytes under damage: readers get the appended bytes, or an error that names the range."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from nadi import limits
from nadi.errors import DamagedDataError
from nadi.model.framing import frame_events
from nadi.segmentstore import storage_writer
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.data_dir import has_chunks
from nadi.segmentstore.reading.reads import AHEAD_EXTENTS
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, FRAME_HEADER_BYTES, log_file_name
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES as CHECKED_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.standalone.health import _container
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, open_store

pytestmark = [
    pytest.mark.uvloop,
    pytest.mark.usefixtures("nothing_in_memory", "all_in_log"),  # separate files: test_runs.py
]

S, T = "scope/stream/0.#epoch.0", "scope/other/0.#epoch.0"
TXN = S + "#transaction." + "0" * 31 + "1"
EVENT_BYTES = 200_000


def opened(folder: Path, chunks: ChunkStore | None = None) -> AbstractAsyncContextManager[tuple[SegmentStore, Peer]]:
    return open_store(folder, 1, chunks=chunks)


async def write(peer: Peer, segment: str, count: int, size: int = EVENT_BYTES, seed: int = 0) -> bytes:
    """Create a segment of events, each in its own append and frame; return its bytes."""
    rng = random.Random(f"{segment}{seed}")
    writer = rng.randbytes(16)
    await peer.create(segment)
    last = await peer.setup(segment, writer)
    data = b""
    for number in range(count):
        event = rng.randbytes(size)
        await peer.append([event], max(0, last) + number + 1, writer)
        data += frame_events([event])
    return data


def record_of(store: SegmentStore, segment: str) -> SegmentRecord:
    record = store.containers[0].state.find(segment)
    assert record is not None
    return record


async def move(store: SegmentStore) -> None:
    """Move everything to tier 2."""
    while await store.storage_writers[0].flush_once(everything=True):
        pass


async def read(
    store: SegmentStore, segment: str, length: int = 1 << 20
) -> tuple[dict[int, bytes], list[DamagedDataError]]:
    """Return all readable bytes of the segment by offset, resuming where errors say so, and these errors."""
    container, record = store.containers[0], record_of(store, segment)
    found: dict[int, bytes] = {}
    errors: list[DamagedDataError] = []
    offset = record.start_offset
    while offset < record.durable_length:
        try:
            _, data = await store._reader.read(container, segment, offset, length)
        except DamagedDataError as error:
            errors.append(error)
            if not offset < error.end_offset:
                raise
            offset = error.end_offset
        else:
            found[offset] = bytes(data)
            offset += len(data)
    assert all(error.segment == segment for error in errors)
    assert offset == record.durable_length
    return found, errors


async def assert_read(
    store: SegmentStore, segment: str, data: bytes, *gaps: tuple[int, int], length: int = 1 << 20
) -> None:
    """Check that the segment reads as `data` except for these ranges, which raise errors."""
    found, errors = await read(store, segment, length)
    assert [(error.offset, error.end_offset) for error in errors] == list(gaps)
    for offset, piece in found.items():
        assert data[offset : offset + len(piece)] == piece, offset
    start = record_of(store, segment).start_offset
    assert sum(map(len, found.values())) + sum(end - begin for begin, end in gaps) == len(data) - start


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def chunk_path(folder: Path, extent: Extent) -> Path:
    assert extent.chunk
    return folder / "tier2" / extent.chunk


def log_place(folder: Path, extent: Extent) -> tuple[Path, int]:
    """Return the file and position of an extent of the log."""
    assert extent.frame is not None
    assert extent.frame.address is not None
    _, file, offset = extent.frame.address
    return folder / "container-0" / "log" / log_file_name(file), offset + extent.position


# --- chunks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1 << 20, 2 << 20, 70_000])
async def test_flipped_byte_in_a_chunk_is_reported(tmp_path: Path, length: int) -> None:
    async with opened(tmp_path) as (store, peer):
        data, other = await write(peer, S, 40), await write(peer, T, 3)
        await move(store)
        (extent,) = record_of(store, S).extents
        await assert_read(store, S, data, length=length)
        damaged = 5 * CHECKED_BYTES + 17
        flip(chunk_path(tmp_path, extent), damaged)
        event = EVENT_BYTES + 8
        behind = -(-6 * CHECKED_BYTES // event) * event  # the first append that begins after the damaged block
        await assert_read(store, S, data, (5 * CHECKED_BYTES, behind), length=length)
        await assert_read(store, T, other)
        (known,) = store.containers[0].damaged
        assert (known.segment, known.offset, known.end_offset) == (S, 5 * CHECKED_BYTES, behind)
        assert "checksum" in known.reason
        details = _container(store.containers[0]).details
        assert details["damaged_ranges"] == 1
        assert [(place["segment"], place["offset"]) for place in details["damaged"]] == [(S, known.offset)]
        flip(chunk_path(tmp_path, extent), damaged)
        await assert_read(store, S, data, length=length)


@pytest.mark.parametrize("what", ["missing", "empty", "short", "description", "swapped", "block of another place"])
async def test_replaced_or_missing_chunk_is_reported(tmp_path: Path, what: str) -> None:
    async with opened(tmp_path) as (store, peer):
        data, other = await write(peer, S, 10), await write(peer, T, 10)
        await move(store)
        path, second = (chunk_path(tmp_path, record_of(store, s).extents[0]) for s in (S, T))
        gaps = [(0, len(data))]
        other_gaps: list[tuple[int, int]] = []
        if what == "missing":
            path.unlink()
        elif what == "swapped":
            content = path.read_bytes()
            path.write_bytes(second.read_bytes())
            second.write_bytes(content)
            other_gaps = gaps
        elif what == "block of another place":
            content = path.read_bytes()
            path.write_bytes(content[BLOCK_BYTES : 2 * BLOCK_BYTES] + content[BLOCK_BYTES:])
            gaps = [(0, 6 * (EVENT_BYTES + 8))]
        else:
            size = {"empty": 0, "short": len(data) - 1, "description": len(data)}[what]
            os.truncate(path, size)
            gaps = {"empty": gaps, "short": [(CHECKED_BYTES, len(data))], "description": []}[what]
        await assert_read(store, S, data, *gaps)
        await assert_read(store, T, other, *other_gaps)
    async with opened(tmp_path) as (store, _):
        listed = store.containers[0].damaged
        assert [damage.segment for damage in listed] == ([S] if what in ("missing", "empty", "short") else [])
        await assert_read(store, S, data, *gaps)


async def test_a_merged_segment_and_one_truncated_within_a_chunk(tmp_path: Path) -> None:
    """Offsets change, checksums don't; and bytes before the start offset may be damaged."""

    async with opened(tmp_path) as (store, peer):
        data, more = await write(peer, S, 10), await write(peer, TXN, 10)
        await move(store)
        await peer.ask(wire.MergeSegments(1, S, TXN, ""))
        await assert_read(store, S, data + more)
        start = 3 * CHECKED_BYTES // 2
        await peer.ask(wire.TruncateSegment(2, S, start, ""))
        first, second = (chunk_path(tmp_path, extent) for extent in record_of(store, S).extents)
        flip(first, CHECKED_BYTES - 1)
        flip(second, 10)
        gap = (len(data), len(data) + 6 * (EVENT_BYTES + 8))
        await assert_read(store, S, data + more, gap)
        flip(first, CHECKED_BYTES)
        await assert_read(store, S, data + more, (start, len(data)), gap)
    async with opened(tmp_path) as (store, _):
        await assert_read(store, S, data + more, (start, len(data)), gap)


async def test_compaction_does_not_hide_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "COMPACT_FROM", 3)

    async with opened(tmp_path) as (store, peer):
        tier2, data = store.storage_writers[0], b""
        for number in range(9):
            data += await write(peer, S, 1, seed=number)
            await move(store)
        extents = list(record_of(store, S).extents)
        assert len(extents) == 9
        flip(chunk_path(tmp_path, extents[4]), 1_000)
        for _ in range(10):
            await tier2._compact_once()
        lengths = [extent.length // (EVENT_BYTES + 8) for extent in record_of(store, S).extents]
        assert lengths == [4, 1, 4]
        await assert_read(store, S, data, (extents[4].offset, extents[4].end))
        assert all(extent.checksums for extent in record_of(store, S).extents)


async def test_boundaries_are_kept_over_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "COMPACT_FROM", 2)

    async with opened(tmp_path) as (store, peer):
        data = b""
        for number in range(2):
            data += await write(peer, S, 13, seed=number)
            await move(store)
        await store.storage_writers[0]._compact_once()
        (extent,) = record_of(store, S).extents
        flip(chunk_path(tmp_path, extent), 3 * CHECKED_BYTES)
        event = EVENT_BYTES + 8
        behind = min(at for at in range(0, len(data), event) if at >= 4 * CHECKED_BYTES)
        # the second chunk began within that block, but has its own blocks: its next known boundary is later
        ((_, end),) = [(e.offset, e.end_offset) for e in (await read(store, S))[1]]
        assert end % event == 0
        assert behind <= end < len(data)


async def test_a_chunk_that_the_disk_can_not_read_in_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_of_disk = os.preadv

    def failing(file: int, buffers: list[memoryview], position: int) -> int:
        if position <= 2 * CHECKED_BYTES + 9 < position + sum(map(len, buffers)):
            raise OSError(errno.EIO, "input/output error")
        return read_of_disk(file, buffers, position)

    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 30)
        await move(store)
        monkeypatch.setattr(os, "preadv", failing)
        await assert_read(store, S, data, (2 * CHECKED_BYTES, 16 * (EVENT_BYTES + 8)))


async def test_tier_2_may_be_any_chunk_store(tmp_path: Path) -> None:
    chunks = ChunkStore.from_url("memory:///")

    async with opened(tmp_path, chunks=chunks) as (store, peer):
        data = await write(peer, S, 30)
        await move(store)
    async with opened(tmp_path, chunks=chunks) as (store, _):  # its snapshot is in this store too
        await assert_read(store, S, data)
    assert not has_chunks(tmp_path)


# --- the log ---------------------------------------------------------------------------------------


async def test_flipped_byte_in_the_log_is_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 10)
        extents = record_of(store, S).extents
        path, at = log_place(tmp_path, extents[4])
        flip(path, at + 100_000)
        gap = extents[4].offset, extents[4].end
        await assert_read(store, S, data, gap)
        assert [(damage.offset, damage.end_offset) for damage in store.containers[0].damaged] == [gap]
    async with opened(tmp_path) as (store, _):  # after a clean stop: the state includes the frames' changes
        await assert_read(store, S, data, gap)


async def test_bytes_the_disk_can_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 5)
        extents, pread = record_of(store, S).extents, os.pread
        _, bad = log_place(tmp_path, extents[2])

        def failing(fd: int, length: int, offset: int) -> bytes:
            if offset <= bad < offset + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(fd, length, offset)

        monkeypatch.setattr(os, "pread", failing)
        await assert_read(store, S, data, (extents[2].offset, extents[2].end))


class Killed:
    """A store stopped as by kill -9: nothing is written at its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    async def __call__(self, store: SegmentStore) -> None:
        (container,) = store.containers
        if container.checkpoints._task is not None:
            await asyncio.wait([container.checkpoints._task])
        self._monkeypatch.setattr(container.checkpoints, "start", lambda: None)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Killed:
    return Killed(monkeypatch)


async def test_damaged_data_does_not_stop_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 3600.0)

    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 10)
        extents = list(record_of(store, S).extents)
        await killed(store)
    path, at = log_place(tmp_path, extents[4])
    flip(path, at + 100_000)
    gap = extents[4].offset, extents[4].end
    async with opened(tmp_path) as (store, peer):
        assert [(damage.offset, damage.end_offset) for damage in store.containers[0].damaged] == [gap]
        await assert_read(store, S, data, gap)
        reply = await peer.ask(wire.GetStreamSegmentInfo(1, S, ""))
        assert reply.write_offset == len(data)
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("frames_from_end", [1, 2, 5])
@pytest.mark.parametrize("where", ["header", "head", "data"])
async def test_a_frame_that_the_state_reflects_is_never_taken_for_a_torn_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, frames_from_end: int
) -> None:
    """It was acknowledged, and its changes are in the state: only readers of its data need it."""

    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 8)
        extents = list(record_of(store, S).extents)
    extent = extents[-frames_from_end]
    path, at = log_place(tmp_path, extent)
    flip(path, {"header": at - extent.position - FRAME_HEADER_BYTES + 9, "head": at - 3, "data": at + 3}[where])
    gaps = [(extent.offset, extent.end)] if where == "data" else []
    async with opened(tmp_path) as (store, peer):
        await assert_read(store, S, data, *gaps)
        more = await write(peer, T, 2)
    async with opened(tmp_path) as (store, _):
        await assert_read(store, S, data, *gaps)
        await assert_read(store, T, more)
    assert "never acknowledged" not in caplog.text


async def test_damaged_extent_in_the_log_is_set_aside(tmp_path: Path) -> None:
    """Its neighbours move to tier 2, the files before and after it are released, and it stays, even over a restart."""

    async with opened(tmp_path) as (store, peer):
        data, other = await write(peer, S, 10), await write(peer, T, 10)
        extents = record_of(store, S).extents
        damaged = extents[4]
        gap = damaged.offset, damaged.end
        path, at = log_place(tmp_path, damaged)
        flip(path, at + 5)
        await move(store)
        assert [bool(extent.chunk) for extent in record_of(store, S).extents] == [True, False, True]
        assert record_of(store, T).log_bytes == 0
        needed = store.containers[0].state.log_needed()
        assert needed == (None, [damaged.frame and damaged.frame.address])
        await assert_read(store, S, data, gap)
        await assert_read(store, T, other)
    async with opened(tmp_path) as (store, peer):
        more = await write(peer, T + "2", 3)
        await move(store)
        await assert_read(store, S, data, gap)
        await assert_read(store, T + "2", more)
        assert path.exists()
        await peer.ask(wire.TruncateSegment(2, S, damaged.end, ""))
        assert store.containers[0].state.log_needed() == (None, [])
        assert store.containers[0].damaged == []


async def test_files_are_released_around_one_that_is_damaged(tmp_path: Path) -> None:
    open_log = FileLog.open

    def small(folder: Path, **options: Any) -> FileLog:
        return open_log(folder, **options, file_bytes=64 * BLOCK_BYTES)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLog, "open", small)
        patch.setattr(limits, "CHECKPOINT_INTERVAL_S", 3600.0)
        async with opened(tmp_path) as (store, peer):
            container = store.containers[0]
            data = await write(peer, S, 12)
            damaged = record_of(store, S).extents[5]
            path, at = log_place(tmp_path, damaged)
            flip(path, at + 5)
            before = sorted(p.name for p in path.parent.glob("log-*"))
            assert len(before) > 8
            await move(store)
            assert container.log.size_bytes > 1_000_000
            container.checkpoints.start()
            await container.checkpoints.ended()
            await container.parts.snapshots.ended()  # the first snapshot
            await container.checkpoints.snapshot()
            await container.parts.snapshots.ended()
            container.checkpoints.truncate_log()
            assert container.log.size_bytes < 500_000
        left = sorted(p.name for p in path.parent.glob("log-*"))
        assert path.name in left
        assert before[0] not in left
        assert len(left) < 5
        async with opened(tmp_path) as (store, _):
            await assert_read(store, S, data, (damaged.offset, damaged.end))


@pytest.mark.parametrize("what", ["missing", "short"])
async def test_missing_log_file_is_detected_at_a_start(tmp_path: Path, what: str) -> None:
    """Detected before any read, without preventing the start."""

    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 6)
    async with opened(tmp_path) as (store, peer):  # which starts a new file
        other = await write(peer, T, 6)
        extents = list(record_of(store, S).extents)
    path, at = log_place(tmp_path, extents[3])
    if what == "missing":
        path.unlink()
        gap = 0, len(data)
    else:
        os.truncate(path, at + 10)
        gap = extents[3].offset, len(data)
    async with opened(tmp_path) as (store, peer):
        known = [(damage.segment, damage.offset, damage.end_offset) for damage in store.containers[0].damaged]
        assert known == [(S, *gap)]
        found, errors = await read(store, S)
        assert b"".join(found.values()) == data[: gap[0]]
        assert (errors[0].offset, errors[-1].end_offset) == gap
        await assert_read(store, T, other)
        await move(store)
        await assert_read(store, T, other)


# --- random damage -------------------------------------------------------------------------------


async def test_small_extents_of_the_log_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each was read separately: at 5,000 a second moving them took a core, and lagged."""
    reads: list[object] = []
    reading = FileLog._reading

    def counted(self: FileLog, *arguments: Any) -> Any:
        reads.append(arguments)
        return reading(self, *arguments)

    async with opened(tmp_path) as (store, peer):
        first, second = await write(peer, S, 1_000, 50), await write(peer, T, 1_000, 50)
        assert len(record_of(store, S).extents) == 1_000
        with monkeypatch.context() as patched:
            patched.setattr(FileLog, "_reading", counted)
            while await store.storage_writers[0].flush_once(everything=True):
                pass
        assert len(reads) <= 4, "these frames are in at most four files"
        assert [extent.frame for extent in record_of(store, S).extents] == [None]
        await assert_read(store, S, first)
        await assert_read(store, T, second)


async def test_log_read_fetches_the_following_extents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.store.BlockCache", BlockCache)
    reads: list[object] = []
    reading = FileLog._reading

    def counted(self: FileLog, *arguments: Any) -> Any:
        reads.append(arguments)
        return reading(self, *arguments)

    monkeypatch.setattr(FileLog, "_reading", counted)
    async with opened(tmp_path) as (store, peer):
        data = await write(peer, S, 1_000, 50)
        record = record_of(store, S)
        store.containers[0].cache.drop(0, record.extents)
        await assert_read(store, S, data)
        assert 1_000 // AHEAD_EXTENTS <= len(reads) <= 1_000 // AHEAD_EXTENTS + 4
        store.containers[0].cache.drop(0, record.extents)
        flip(*log_place(tmp_path, record.extents[700]))
        await assert_read(store, S, data, (record.extents[700].offset, record.extents[700].end))
