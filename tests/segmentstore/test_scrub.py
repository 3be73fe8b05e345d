"""The scrub: everything stored is read, once a week or on request, and damage is reported."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nadi import limits
from nadi.model.framing import frame_events
from nadi.model.scrub import ScrubPass, ScrubReport
from nadi.naming import SCRUB_SEGMENT
from nadi.object_log.checksummed_lines import line_of
from nadi.runtime import Runtime
from nadi.segmentstore import scrub as scrubs
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.recovery import snapshotter
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.repair.offline_store import StoppedLog
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import FRAME_HEADER_BYTES
from nadi.segmentstore.tier2.checksums import ChunkDescription
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from tests.support.replayed import replayed
from tests.support.waiting import until_async

from .harness import Peer, open_store

pytestmark = pytest.mark.uvloop

SEGMENTS = [f"s/t/{number}.#epoch.0" for number in range(6)]
WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubs, "_RETRY_S", 0.01)
    monkeypatch.setattr(scrubs, "_CHECK_S", 0.02)
    monkeypatch.setattr("nadi.limits.CHECKPOINT_INTERVAL_S", 0.02)


class Clock(Runtime):
    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall_ms


async def fill(store: SegmentStore, peer: Peer, *, chunks: int = 2) -> None:
    """Give each segment `chunks` chunks of at least 1,000 bytes and as much in the log, all in a checkpoint."""
    for segment in SEGMENTS:
        await peer.create(segment)
        await peer.setup(segment)
        for number in range(chunks + 1):
            await peer.append([bytes(1_000)], number)
            if number < chunks:
                writer = store.storage_writers[store.containers.index(store.container_of(segment))]
                assert await writer.flush_once(everything=True)
    for container in store.containers:
        sequence = container.state.sequence
        await until_async(lambda c=container, s=sequence: c.metadata.state().sequence >= s)  # type: ignore[misc]


async def ended(store: SegmentStore, *, after: ScrubPass | None = None) -> ScrubPass:
    await until_async(lambda: store.scrub.running is None and store.scrub.last not in (None, after))
    assert store.scrub.last is not None
    return store.scrub.last


def chunks_of(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "tier2").glob("container-*/**/*") if path.is_file())


async def test_scrub_of_intact_data_reads_everything(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer)
        held = {name: len(container.state.record_cache) for name, container in enumerate(store.containers)}
        cached = store.containers[0].cache.size_bytes
        store.scrub.begin()
        found = await ended(store)
        assert (found.damages, found.damaged, found.requested) == (0, [], True)
        assert found.read_bytes == len(SEGMENTS) * 3 * 1_008
        assert found.total_bytes == found.read_bytes
        assert found.records >= len(SEGMENTS) * 6
        assert store.containers[0].cache.size_bytes == cached
        assert {name: len(one.state.record_cache) for name, one in enumerate(store.containers)} == held


async def test_scrub_reports_missing_data_in_any_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer)
        lost = chunks_of(tmp_path)[1::4]
        for path in lost:
            path.unlink()
        store.scrub.begin()
        first = await ended(store)
        assert first.damages == len(lost) == 3
        for path in lost:
            assert sum(path.name in text and "s/t/" in text for text in first.damaged) == 1
        assert sum("the scrub found damage" in line for line in caplog.messages) == 3
        store.scrub.begin()  # again: damage stays until it is repaired
        assert (await ended(store, after=first)).damages == 3


async def test_scrub_runs_weekly(tmp_path: Path) -> None:
    clock = Clock()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await fill(store, peer)
        await asyncio.sleep(0.1)
        assert (store.scrub.running, store.scrub.last) == (None, None)
        clock.wall_ms += WEEK_MS
        first = await ended(store)
        assert not first.requested
        assert first.ended_ms == clock.wall_ms
    clock.wall_ms += WEEK_MS - 1
    async with open_store(tmp_path, runtime=clock) as (store, _):
        await asyncio.sleep(0.1)
        assert store.scrub.last == first  # survives the restart
        clock.wall_ms += 1
        assert (await ended(store, after=store.scrub.last)).read_bytes == first.read_bytes


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_scrub_starts_over_after_a_clock_correction(tmp_path: Path, *, is_restarted: bool) -> None:
    """The last pass ended two years in the future, by a clock corrected since."""
    clock = Clock()
    now_ms, clock.wall_ms = clock.wall_ms, clock.wall_ms + 400 * WEEK_MS // 7
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await fill(store, peer, chunks=0)
        store.scrub.begin()
        first = await ended(store)
        clock.wall_ms = now_ms
        if not is_restarted:
            assert not (await ended(store, after=first)).requested
    if is_restarted:
        async with open_store(tmp_path, runtime=clock) as (store, _):
            await until_async(lambda: store.scrub.last is not None and not store.scrub.last.requested)


def held_after(store: SegmentStore, extents: int) -> None:
    """Stop the store's scrub after that many extents."""
    original, read = store._reader.verify, 0

    async def verify(container: Any, record: Any, extent: Any) -> bool:
        nonlocal read
        read += 1
        if read > extents:
            await asyncio.Event().wait()
        return await original(container, record, extent)

    store._reader.verify = verify  # type: ignore[method-assign]


async def test_scrub_resumes_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer)
        held_after(store, 5)
        store.scrub.begin()
        before = store.scrub.running
        assert before is not None
        await until_async(lambda: before.read_bytes >= 5 * 1_008)
    verified: list[str] = []
    original = SegmentReader.verify

    async def verify(reader: SegmentReader, container: Any, record: Any, extent: Any) -> bool:
        verified.append(record.name)
        return await original(reader, container, record, extent)

    monkeypatch.setattr(SegmentReader, "verify", verify)
    async with open_store(tmp_path) as (store, _):
        found = await ended(store)
        assert found.started_ms == before.started_ms
        assert found.read_bytes == len(SEGMENTS) * 3 * 1_008
        assert 0 < len(verified) <= (found.read_bytes - before.read_bytes) // 1_008


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\xfe", b'{"since_ms": "a"}', b'{"since_ms":0,"place":{"table":99}}']
)
async def test_scrub_starts_over_with_a_damaged_position_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scrub").write_bytes(content)

    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer, chunks=0)
        store.scrub.begin()
        assert (await ended(store)).read_bytes == len(SEGMENTS) * 1_008


@pytest.mark.parametrize("how", ["flipped", "of another folder", "without checksum"])
async def test_scrub_with_an_invalid_position_skips_nothing(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: it resumed after the damage, or failed repeatedly, and then reported no damage."""
    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer)
        held_after(store, 2)
        store.scrub.begin()
        running = store.scrub.running
        assert running is not None
        await until_async(lambda: running.read_bytes >= 2 * 1_008)
    first = chunks_of(tmp_path)[0]
    first.write_bytes(bytes(first.stat().st_size))
    file = tmp_path / "scrub"
    kept = file.read_bytes()
    if how == "flipped":
        at = kept.index(b'"segment":') + len(b'"segment":')
        file.write_bytes(kept[:at] + bytes([kept[at] ^ 8]) + kept[at + 1 :])
    elif how == "without checksum":
        file.write_bytes(kept.rpartition(b" ")[0])
    else:
        strange = msgspec.json.decode(kept.rpartition(b" ")[0], type=scrubs.ScrubRecord)
        strange.place.container = 7
        file.write_bytes(line_of(msgspec.json.encode(strange)))
    async with open_store(tmp_path) as (store, _):
        found = await ended(store)
        assert found.read_bytes == len(SEGMENTS) * 3 * 1_008
        assert found.damages >= 1
    assert any("starts over" in line for line in caplog.messages)
    assert not any("failed" in line for line in caplog.messages)


async def test_scrub_respects_its_rate_and_yields_to_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_REQUESTED_BYTES_PER_S", 60_000)

    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer)
        began = time.monotonic()
        store.scrub.begin()
        found = await ended(store)
        assert time.monotonic() - began > 0.8 * found.read_bytes / 60_000 - 0.1
        monkeypatch.setattr(limits, "SCRUB_REQUESTED_BYTES_PER_S", 1 << 40)
        monkeypatch.setattr(limits, "SCRUB_YIELD_BYTES", 1_000)
        monkeypatch.setattr(limits, "SCRUB_YIELD_S", 0.03)
        for container in store.containers:
            container.queue.size_bytes += 1
        began = time.monotonic()
        store.scrub.begin()
        await ended(store, after=found)
        assert time.monotonic() - began > 0.03 * found.read_bytes // 1_008
        for container in store.containers:
            container.queue.size_bytes -= 1


async def test_concurrent_changes_do_not_count_as_damage(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await fill(store, peer, chunks=9)
        original = store._reader.verify
        done: list[str] = []

        async def verify(container: Any, record: Any, extent: Any) -> bool:
            if not done:
                done.append(record.name)
                others = [segment for segment in SEGMENTS if segment != record.name]
                await peer.ask(wire.DeleteSegment(1, others[0], ""))
                await peer.ask(wire.TruncateSegment(2, record.name, 5 * 1_008, ""))
                while await store.storage_writers[0].flush_once(everything=True):
                    pass
                await store.storage_writers[0]._compact_once()
                for path in chunks_of(tmp_path):
                    if str(path.relative_to(tmp_path / "tier2")) in container.state.garbage:
                        path.unlink()
            return await original(container, record, extent)

        store._reader.verify = verify  # type: ignore[method-assign]
        store.scrub.begin()
        found = await ended(store)
        assert done
        assert found.damaged == []


async def test_over_the_wire(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer, chunks=0)
        begun = await peer.ask(wire.Scrub(1, SCRUB_SEGMENT, True, ""))
        assert begun.segment == SCRUB_SEGMENT
        running = msgspec.json.decode(begun.report, type=ScrubReport).running
        assert running is not None
        assert running.requested
        again = await peer.ask(wire.Scrub(2, SCRUB_SEGMENT, True, ""))
        report = msgspec.json.decode(again.report, type=ScrubReport)
        assert (report.running or report.last).started_ms == running.started_ms  # type: ignore[union-attr]
        await ended(store)
        reply = await peer.ask(wire.Scrub(3, SCRUB_SEGMENT, False, ""))
        report = msgspec.json.decode(reply.report, type=ScrubReport)
        assert report.running is None
        assert report.last is not None
        assert report.last.read_bytes == len(SEGMENTS) * 1_008
        assert isinstance(await peer.ask(wire.Scrub(4, "s/t/0.#epoch.0", True, "")), wire.NoSuchSegment)


async def test_a_place_that_the_disk_cannot_read_does_not_end_it(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await fill(store, peer, chunks=0)
        original = store._reader.verify
        failing = SEGMENTS[2]

        async def verify(container: Any, record: Any, extent: Any) -> bool:
            if record.name == failing:
                raise OSError(5, "Input/output error")
            return await original(container, record, extent)

        store._reader.verify = verify  # type: ignore[method-assign]
        store.scrub.begin()
        found = await ended(store)
        assert found.damages == 1
        assert failing in found.damaged[0]
        assert "Input/output error" in found.damaged[0]


def leaf_pages(file: Path) -> list[int]:
    """Return the leaf pages of a state's file, by their flags."""
    data = file.read_bytes()
    heads = {n: data[n * 4096 : n * 4096 + 12] for n in range(2, len(data) // 4096)}
    return [n for n, head in heads.items() if head[:8] == n.to_bytes(8, "little") and head[10:12] == b"\x02\0"]


async def test_scrub_finds_and_restores_a_damaged_state(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await fill(store, peer)
        (container,) = store.containers
        rotten = container.metadata
        await until_async(lambda: container.checkpoints._task is None or container.checkpoints._task.done())
        with (tmp_path / "container-0/state/data.mdb").open("r+b", buffering=0) as file:
            for page in leaf_pages(tmp_path / "container-0/state/data.mdb"):
                end = page * 4096 + 4095  # the last byte of a value
                os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, end)[0] ^ 1]), end)
        store.scrub.begin()
        found = await ended(store)
        assert found.damages == 1
        assert "the state of container 0" in found.damaged[0]
        await until_async(lambda: container.failure is None and container.metadata is not rotten)
        await until_async(lambda: container.checkpoints.sequence == container.state.sequence)
        store.scrub.begin()
        again = await ended(store, after=found)
        assert (again.damages, again.read_bytes) == (0, len(SEGMENTS) * 3 * 1_008)
        assert again.state_bytes > 0
        assert await peer.read_all(SEGMENTS[0]) == frame_events([bytes(1_000)]) * 3


@pytest.mark.parametrize(
    "what", ["snapshots/container-0/base-*0", "snapshots/container-0/base-*-copy", "containers/0", "containers/0-copy"]
)
async def test_scrub_finds_and_recreates_a_damaged_snapshot(tmp_path: Path, what: str) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await fill(store, peer)
        (container,) = store.containers
        await until_async(lambda: container.parts.snapshots.sequence > 0 and not container.parts.snapshots.error)
        store.scrub.begin()
        whole = await ended(store)
        assert whole.damages == 0
        assert whole.snapshot_bytes > 0
        rotten = next((tmp_path / "tier2").glob(what))
        rotten.write_bytes(rotten.read_bytes()[:-1] + b"?")
        store.scrub.begin()
        found = await ended(store, after=whole)
        assert (found.damages, found.renewals) == (1, 0)
        name = rotten.name if "snapshots" in what else "containers/0"
        assert name in found.damaged[0]
        await until_async(lambda: name in container.parts.snapshots.renewed)
        store.scrub.begin()
        again = await ended(store, after=found)
        assert (again.damages, again.renewals) == (0, 0)


@pytest.mark.parametrize("what", ["head", "header", "table"])
async def test_damaged_log_head_is_replaced_by_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Frames after the newest snapshot: the state in use has their changes, a recreated one would not."""
    monkeypatch.setattr(snapshotter, "PACE", snapshotter.SnapshotPace(interval_s=10_000.0))
    payloads = [bytes([number]) * 3_000 for number in range(9)]
    async with open_store(tmp_path, 1) as (store, peer):
        (container,) = store.containers
        await until_async(lambda: container.parts.snapshots._manifest is not None)  # the next one is hours away
        await peer.create(SEGMENTS[0])
        await peer.setup(SEGMENTS[0])
        for number, payload in enumerate(payloads):
            await peer.append([payload], number)
        await until_async(lambda: container.checkpoints.sequence == container.state.sequence)
        known = container.parts.snapshots.sequence
        frames = StoppedLog(tmp_path / "container-0/log").readable(known)
        assert len(frames) >= len(payloads)
        store.scrub.begin()
        whole = await ended(store)
        assert whole.damages == 0
        header = frames[-4].header
        within = FRAME_HEADER_BYTES
        place = {"head": within + 8, "header": 20, "table": within + header.payload_bytes + 5}[what]
        with frames[-4].path.open("r+b", buffering=0) as file:
            file.seek(header.offset + place)
            (byte,) = file.read(1)
            file.seek(header.offset + place)
            file.write(bytes([byte ^ 16]))
        store.scrub.begin()
        found = await ended(store, after=whole)
        assert found.damages == 1
        assert f"{header.sequence:,}" in found.damaged[0]
        assert str(frames[-4].path) in found.damaged[0]
        await until_async(lambda: container.parts.snapshots.sequence >= header.sequence)
        store.scrub.begin()
        assert (await ended(store, after=found)).damages == 0
    async with open_store(tmp_path, 1) as (_, peer):
        assert await peer.read_all(SEGMENTS[0]) == b"".join(frame_events([payload]) for payload in payloads)


async def test_frames_are_read_while_the_log_is_written_and_released(tmp_path: Path) -> None:
    log = FileLog.open(tmp_path, file_bytes=64 * 1024)
    assert await replayed(log) == []
    written = asyncio.Event()

    async def write() -> None:
        for number in range(400):
            await log.append([b"head" * 50, bytes(9_000)])
            if number % 20 == 19:
                log.truncate(number - 10)
            await asyncio.sleep(0)
        written.set()

    writing = asyncio.create_task(write())
    looks = 0
    while not written.is_set():
        await asyncio.sleep(0)
        async for heads in log.read_heads(0):
            assert heads.damages == ()
            looks += 1
    await writing
    assert looks > 20
    await log.close()


@pytest.mark.parametrize("what", ["flipped", "cut off"])
async def test_damaged_chunk_description_is_rewritten(tmp_path: Path, what: str) -> None:
    def rot(chunk: Path) -> int:
        """Damage a chunk's description; return the length of the data, which stays intact."""
        data = bytearray(chunk.read_bytes())
        described = ChunkDescription.decode(str(chunk.relative_to(tmp_path / "tier2")), data)
        assert described is not None
        data[-5] ^= 1
        chunk.write_bytes(data if what == "flipped" else data[: described.length])
        return described.length

    async def inspected(folder: Path) -> tuple[list[str], list[str]]:
        _, report = await inspect_folder(folder)
        return report.renewed, report.lost

    async with open_store(tmp_path, 1) as (store, peer):
        await fill(store, peer)
    rotten = chunks_of(tmp_path)[1::6]
    assert await inspected(tmp_path) == ([], [])
    rotten_bytes = sum(map(rot, rotten))
    (renewed,), lost = await inspected(tmp_path)
    assert "chunks with intact data but a damaged description: 2, " in renewed
    assert str(rotten[0].relative_to(tmp_path / "tier2")) in renewed
    assert lost == []
    async with open_store(tmp_path, 1) as (store, peer):
        store.scrub.begin()
        found = await ended(store)
        assert (found.damages, found.renewals, len(found.renewed)) == (0, 2, 2)
        assert found.rewritten_bytes == rotten_bytes
        for chunk, text in zip(rotten, found.renewed, strict=True):
            assert chunk.name in text
            assert str(chunk.relative_to(tmp_path / "tier2")) in store.containers[0].state.garbage
        assert store.containers[0].damaged == []
        for container in store.containers:
            sequence = container.state.sequence
            await until_async(lambda c=container, s=sequence: c.metadata.state().sequence >= s)  # type: ignore[misc]
        store.scrub.begin()
        again = await ended(store, after=found)
        assert (again.damages, again.renewals, again.rewritten_bytes) == (0, 0, 0)
        assert await peer.read_all(SEGMENTS[0]) == frame_events([bytes(1_000)]) * 3
    assert await inspected(tmp_path) == ([], [])


async def test_damaged_description_stays_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as (store, peer):
        await fill(store, peer)
    chunk = chunks_of(tmp_path)[1]
    chunk.write_bytes(chunk.read_bytes()[:-5])
    async with open_store(tmp_path) as (store, peer):
        monkeypatch.setattr(ChunkStore, "free_bytes", lambda self: 0)
        store.scrub.begin()
        found = await ended(store)
        assert (found.damages, found.renewals, found.rewritten_bytes) == (0, 1, 0)
        assert chunk.name in found.renewed[0]
        assert await peer.read_all(SEGMENTS[0]) == frame_events([bytes(1_000)]) * 3


async def test_scrub_during_many_checkpoints_reports_no_damage(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await fill(store, peer, chunks=0)
        last: ScrubPass | None = None
        for number in range(10):
            store.scrub.begin()
            for append in range(20):
                await peer.append([bytes(500)], 100 + 20 * number + append)
            last = await ended(store, after=last)
            assert last.damaged == []
