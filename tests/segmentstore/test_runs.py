"""Large runs in separate files: readable from everywhere, written once, and as safe as data in the log."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nadi import limits
from nadi.errors import DamagedDataError
from nadi.limits import RUN_FILE_BYTES, RUN_FILES_READY
from nadi.model.framing import frame_events
from nadi.segmentstore.container import container as container_module
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.state.records import Extent
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1 import blob_files as runs_module
from nadi.segmentstore.tier1 import reading
from nadi.segmentstore.tier1.blob_files import BlobFile, run_name
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, connect, open_store
from tests.segmentstore.test_stored_bytes import assert_read, flip, move, record_of
from tests.support.folders import as_a_kill_leaves_it
from tests.support.waiting import until_async

pytestmark = [pytest.mark.uvloop, pytest.mark.usefixtures("nothing_in_memory")]

S, T = "scope/stream/0.#epoch.0", "scope/other/0.#epoch.0"
TXN = S + "#transaction." + "0" * 31
LARGE = 300_000


class Writer:
    """Appends random events to one segment, and knows its expected contents."""

    def __init__(self, peer: Peer, segment: str, seed: int = 0) -> None:
        self.peer, self.segment = peer, segment
        self.data = b""
        self._chance = random.Random(f"{segment}{seed}")
        self._id, self._last = self._chance.randbytes(16), 0

    async def begin(self) -> Writer:
        await self.peer.create(self.segment)
        return await self.go_on(self.peer)

    async def go_on(self, peer: Peer) -> Writer:
        self.peer = peer
        assert await self.peer.setup(self.segment, self._id) in (self._last, -(1 << 63))
        return self

    async def append(self, size: int) -> None:
        event = self._chance.randbytes(size)
        reply = await self.peer.append([event], self._last + 1, self._id)
        assert isinstance(reply, wire.DataAppended), reply
        self._last += 1
        self.data += frame_events([event])


def runs_in(folder: Path) -> list[Path]:
    return sorted((folder / "container-0" / "log" / "runs").glob("run-*"))


def blobs(store: SegmentStore, segment: str = S) -> list[Extent]:
    return [extent for extent in record_of(store, segment).extents if extent.run]


async def made_ready(store: SegmentStore) -> None:
    """Wait until there are files for the next large runs."""
    runs = store.containers[0].runs
    assert runs is not None
    await until_async(lambda: len(runs._ready) == RUN_FILES_READY)


async def warm(writer: Writer, store: SegmentStore) -> None:
    """Append a large run, which finds no file ready, and causes one to be created."""
    await writer.append(LARGE)
    await made_ready(store)


async def checkpointed(store: SegmentStore) -> None:
    """Wait until state and snapshot are current, and the log is released accordingly."""
    container = store.containers[0]
    await container.call(lambda frame: None)
    for _ in range(6_000):
        container.checkpoints.start()
        await container.checkpoints.ended()
        if min(container.checkpoints.sequence, container.parts.snapshots.sequence) >= container.state.sequence:
            container.checkpoints.truncate_log()
            return
        container.parts.snapshots.hasten()
        await asyncio.sleep(0.01)
    raise AssertionError("no checkpoint")


async def test_a_large_run_is_written_once_and_its_file_becomes_the_chunk(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        writer = await Writer(peer, S).begin()
        await warm(writer, store)
        for size in (LARGE, 100, 2 * LARGE, 70_000, 5, LARGE):
            await writer.append(size)
        (file,) = {extent.run for extent in blobs(store)}
        path = tmp_path / "container-0" / "log" / "runs" / run_name(file)
        inode = path.stat().st_ino
        assert len(blobs(store)) == 3
        await assert_read(store, S, writer.data)
        await move(store)
        chunks = [extent.chunk for extent in record_of(store, S).extents]
        assert len(chunks) == 2
        assert (tmp_path / "tier2" / chunks[1]).stat().st_ino == inode
        await assert_read(store, S, writer.data)
        for extent in record_of(store, S).extents:
            assert await store._reader.verify(store.containers[0], record_of(store, S), extent)
        description = await store.chunks.description(chunks[1], record_of(store, S).extents[1].length)
        assert description is not None
        assert description.offset == LARGE + 8
        assert path.exists(), "a start may still replay frames that refer to it"
        await checkpointed(store)
        await until_async(lambda: not path.exists())
        await assert_read(store, S, writer.data)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
async def test_random_operations_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Appends of all sizes to segments and transactions, merges, truncations, tiering, checkpoints, restarts and kills:
    reads return the appended bytes."""
    chance = random.Random(seed)
    monkeypatch.setattr(limits, "RUN_FILE_BYTES", chance.choice((400_000, 1 << 20, 32 << 20)) // 4096 * 4096)
    monkeypatch.setattr(limits, "RUN_FILES_OPEN", chance.choice((1, 2, 16)))
    monkeypatch.setattr(limits, "RUN_IDLE_S", 0.0)
    monkeypatch.setattr("nadi.limits.RUN_CARRY_BYTES", chance.choice((0, 5_000, 300_000)))
    folder, started, used = tmp_path / "0", 0, 0
    states: dict[str, Writer] = {}
    for turn in range(4):
        async with open_store(folder, 1) as (store, peer):
            for segment in (S, T):
                if segment in states:
                    await states[segment].go_on(peer)
                else:
                    states[segment] = await Writer(peer, segment, seed).begin()
                await assert_read(store, segment, states[segment].data)
            transactions: list[Writer] = []
            for _ in range(30):
                writer = states[chance.choice((S, T))]
                match chance.choice(
                    ("large", "large", "large", "small", "begin", "merge", "move", "cut", "wait", "keep")
                ):
                    case "large":
                        await chance.choice([writer, *transactions]).append(chance.randrange(130_000, 350_000))
                    case "small":
                        await chance.choice([writer, *transactions]).append(chance.choice((1, 4_000, 4_088, 100_000)))
                    case "begin":
                        started += 1
                        transactions.append(await Writer(peer, f"{TXN}{started % 10}", started).begin())
                    case "merge" if transactions:
                        transaction = transactions.pop(0)
                        await peer.ask(wire.MergeSegments(1, S, transaction.segment, ""))
                        states[S].data += transaction.data
                    case "move":
                        used += len(blobs(store, S) + blobs(store, T))
                        for _ in range(chance.randrange(1, 4)):
                            await store.storage_writers[0].flush_once(everything=True)
                    case "cut" if chance.random() < 0.3:
                        record = record_of(store, writer.segment)
                        offset = chance.randrange(record.start_offset, record.length + 1)
                        await peer.ask(wire.TruncateSegment(1, writer.segment, offset, ""))
                    case "wait":
                        await asyncio.sleep(0.02)
                    case "keep":
                        await checkpointed(store)
                for segment in (S, T):
                    if chance.random() < 0.2:
                        await assert_read(store, segment, states[segment].data)
            for transaction in transactions:
                await peer.ask(wire.DeleteSegment(2, transaction.segment, ""))
            for segment in (S, T):
                await assert_read(store, segment, states[segment].data)
            if chance.random() < 0.5:
                as_a_kill_leaves_it(folder, tmp_path / str(turn + 1))
                folder_next = tmp_path / str(turn + 1)
            else:
                folder_next = folder
        folder = folder_next
    assert used, "no separate file was used"
    async with open_store(folder, 1) as (store, _):
        await move(store)
        await checkpointed(store)
        for segment in (S, T):
            await assert_read(store, segment, states[segment].data)
        await until_async(lambda: not store.containers[0].state.runs.bytes_of)
        await until_async(lambda: not runs_in(folder))  # all files were released
    reports = await inspect_folder(folder)
    assert not any(report.lost or report.is_refused for report in reports), [report.lost for report in reports]


@pytest.mark.parametrize("what", ["flipped", "short", "missing", "a folder", "a pipe"])
async def test_damage_in_separate_files_is_reported(tmp_path: Path, what: str) -> None:
    async with open_store(tmp_path / "a", 1) as (store, peer):
        writer = await Writer(peer, S).begin()
        await warm(writer, store)
        for _ in range(3):
            await writer.append(LARGE)
        await writer.append(10)
        # the remainder in the log begins within the event
        size = LARGE + 8
        places = [(extent.run, extent.position, extent.offset, extent.offset + size) for extent in blobs(store)]
        as_a_kill_leaves_it(tmp_path / "a", tmp_path / "b")
    run, position, begin, end = places[1]
    path = tmp_path / "b" / "container-0" / "log" / "runs" / run_name(run)
    gaps = [(begin, end)]
    if what == "flipped":
        flip(path, position + 1_000)
    elif what == "short":
        os.truncate(path, position + 1_000)
        gaps = [(begin, end) for _, _, begin, end in places[1:]]
    else:
        path.unlink()
        if what == "a folder":
            path.mkdir()
        elif what == "a pipe":
            os.mkfifo(path)
        gaps = [(begin, end) for _, _, begin, end in places]
    reports = await inspect_folder(tmp_path / "b")
    losses = "\n".join(line for report in reports for line in report.lost)
    assert all(f"{begin:,}" in losses for begin, _ in gaps)
    assert not any(report.is_refused for report in reports)
    async with open_store(tmp_path / "b", 1) as (store, peer):
        await assert_read(store, S, writer.data, *gaps)
        await (await writer.go_on(peer)).append(LARGE)
        await move(store)
        await assert_read(store, S, writer.data, *gaps)
        assert {damage.offset for damage in store.containers[0].damaged} == {begin for begin, _ in gaps}
        await checkpointed(store)
        await asyncio.sleep(0.1)
        assert path.exists() == (what != "missing"), "damaged bytes can still be restored"


async def test_unreadable_separate_file_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    async with open_store(tmp_path, 1) as (store, peer):
        writer = await Writer(peer, S).begin()
        await warm(writer, store)
        await writer.append(LARGE)
        (extent,) = blobs(store)
        with monkeypatch.context() as patches:
            patches.setattr(reading, "os", SimpleNamespace(pread=unreadable))
            with pytest.raises(DamagedDataError):
                await store._reader.read(store.containers[0], S, extent.offset, 100)
        await assert_read(store, S, writer.data)


async def test_a_file_that_becomes_a_chunk_while_the_container_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversion of a file to a chunk ends after all files were closed."""
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.05)
    async with open_store(tmp_path, 1) as (store, peer):
        container = store.containers[0]
        writers = [await Writer(peer, segment).begin() for segment in (S, T)]
        await warm(writers[0], store)
        for writer in writers:
            await writer.append(LARGE)
        runs, loop, abandon = container.runs, asyncio.get_running_loop(), BlobFile.abandon
        assert runs is not None
        assert len(runs._written) == 2

        async def forget(file: BlobFile) -> None:
            runs.forget(file)

        def abandoned(file: BlobFile) -> None:
            asyncio.run_coroutine_threadsafe(forget(file), loop).result(60)
            abandon(file)

        with monkeypatch.context() as patches:
            patches.setattr(BlobFile, "abandon", abandoned)
            container._recover_from(OSError(errno.EIO, "the disk fails"))
            await until_async(lambda: container.runs is not runs and container.failure is None)
        assert container.runs is not runs
        again = await connect(store.address)
        for writer in writers:
            await (await writer.go_on(again)).append(LARGE)
            await assert_read(store, writer.segment, writer.data)
        again.close()


async def test_undeletable_files_do_not_prevent_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that becomes read-only for a while; no descriptor is closed twice, as its number may be reused."""
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)
    async with open_store(tmp_path, 1) as (store, peer):
        container = store.containers[0]
        await warm(await Writer(peer, S).begin(), store)
        assert container.runs is not None
        prepared, closed, close, unlink = (
            [fd for _, _, fd in container.runs._ready],
            list[int](),
            os.close,
            Path.unlink,
        )

        def closes(fd: int) -> None:
            closed.append(fd)
            close(fd)

        def fails(path: Path, missing_ok: bool = False) -> None:
            if path.name.startswith("run-"):
                raise OSError(errno.EROFS, "read-only file system")
            unlink(path, missing_ok)

        monkeypatch.setattr(runs_module, "os", SimpleNamespace(**{**vars(os), "close": closes}))
        monkeypatch.setattr(Path, "unlink", fails)
        container._recover_from(OSError(errno.EIO, "the disk fails"))
        await until_async(lambda: set(prepared) <= set(closed) and container.failure is None)
        assert [closed.count(fd) for fd in prepared] == [1] * len(prepared)  # another may have been prepared meanwhile
        monkeypatch.undo()


async def test_without_room_for_files_runs_go_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "_RESERVED_FILES", 1 << 40)
    async with open_store(tmp_path, 1) as (store, peer):
        writer = await Writer(peer, S).begin()
        for _ in range(3):
            await writer.append(LARGE)
            await asyncio.sleep(0.02)
        assert not blobs(store)
        assert not runs_in(tmp_path)
        await assert_read(store, S, writer.data)


async def test_files_that_take_no_more_hold_little_room_and_memory(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        writer = await Writer(peer, S).begin()
        await warm(writer, store)
        for _ in range(8):
            await writer.append(LARGE)
            for _ in range(3):  # more than a file carries: the next large run starts another
                await writer.append(100_000)
            await made_ready(store)
        files = [path.stat() for path in runs_in(tmp_path)]
        assert len(files) > 6, "each large run should have a separate file"
        assert sum(file.st_blocks * 512 for file in files) < 3 * RUN_FILE_BYTES + len(writer.data)
        runs = store.containers[0].runs
        assert runs is not None
        assert sum(file.length - file.end for file in runs._written.values()) < len(writer.data) // 20
        await move(store)
        assert not record_of(store, S).log_bytes
        assert await peer.read_all(S) == writer.data


async def test_many_segments_take_turns_at_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUN_FILES_OPEN", 2)
    async with open_store(tmp_path, 1) as (store, peer):
        writers = [await Writer(peer, f"scope/stream/{number}.#epoch.0").begin() for number in range(4)]
        await warm(writers[0], store)
        for _ in range(3):
            for writer in writers:
                await writer.append(LARGE)
                await made_ready(store)
        assert len(store.containers[0].runs._open) == 2  # type: ignore[union-attr]
        monkeypatch.setattr(limits, "RUN_IDLE_S", 0.0)
        for writer in writers:
            await writer.append(LARGE)
            await made_ready(store)
        assert len(store.containers[0].runs._open) == 2  # type: ignore[union-attr]
        for writer in writers:
            await assert_read(store, writer.segment, writer.data)
        await move(store)
        for writer in writers:
            await assert_read(store, writer.segment, writer.data)


async def test_where_chunks_are_elsewhere_files_are_copied(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1, chunks=ChunkStore.from_url("memory:///")) as (store, peer):
        writer = await Writer(peer, S).begin()
        await warm(writer, store)
        for size in (LARGE, 100, LARGE):
            await writer.append(size)
        assert blobs(store)
        await move(store)
        assert all(extent.chunk for extent in record_of(store, S).extents)
        await assert_read(store, S, writer.data)
