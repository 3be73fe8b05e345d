"""The snapshot that the log is released by is known to be whole; a damaged one is told, and made anew in time."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

import nadi
from nadi import limits
from nadi.errors import DamagedStateError, NadiError, StorageFullError, UnavailableError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.recovery import rebuild, snapshots, snapshotter
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.records import Manifest, Part, Records
from tests.support.waiting import until_async

from .state_tables import records_of
from .test_lost_state import create, in_container, quick, start

LIMITS = "snapshot_interval_s=0.2,checkpoint_interval_s=0.1,log_file_bytes=65536"


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files with 15 small frames each, so that what is released is gone at once."""
    open_log = FileLog.open

    def open_small(folder: Path, **settings: Any) -> FileLog:
        return open_log(folder, file_bytes=16 * BLOCK_BYTES, spare_files=0, **settings)

    monkeypatch.setattr(FileLog, "open", open_small)


@pytest.fixture
def folder(tmp_path: Path, small_log: None) -> Path:
    """What a container leaves that was stopped cleanly: a base and deltas, and no first frame in the log."""
    folder = tmp_path / "data"

    async def work(container: Container, chunks: ChunkStore) -> None:
        for number in range(4):
            await create(container, 20, f"round-{number}")
            await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    with pytest.MonkeyPatch.context() as patches, quick(patches):
        in_container(folder, work)
    assert (rebuild.first_logged(folder / "container-0") or 0) > 1
    return folder


def newest(folder: Path) -> Manifest:
    manifest, damaged = asyncio.run(snapshots.newest(ChunkStore.in_folder(folder / "tier2"), 0))
    assert manifest is not None
    assert not damaged
    return manifest


def lose_state(folder: Path) -> dict[str, dict[bytes, bytes]]:
    """Gives its records."""
    records = records_of(folder / "container-0/state")
    shutil.rmtree(folder / "container-0/state")
    return records


def rot(folder: Path, what: str) -> Path:
    manifest = newest(folder)
    names = {"base": manifest.base[0].name, "delta": manifest.deltas[-1].name if manifest.deltas else ""}
    name = names.get(what, "containers/0")
    path = folder / "tier2" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("what", ["base", "delta"])
def test_a_snapshot_that_rots_is_made_anew(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to be added to for ever, the log was released by it, and with the state all was lost."""
    rotten = rot(folder, what)

    async def work(container: Container, chunks: ChunkStore) -> None:
        await until_async(lambda: bool(container.parts.snapshots.damage or container.parts.snapshots.renewed))
        await create(container, 40, "later")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        assert rotten.name in container.parts.snapshots.renewed
        assert not container.parts.snapshots.damage

    with quick(monkeypatch):
        in_container(folder, work)
    assert sum(record.levelname == "ERROR" and rotten.name in record.message for record in caplog.records) == 1
    assert not rotten.exists()
    lost = lose_state(folder)
    start(folder)
    assert records_of(folder / "container-0/state") == lost


def test_a_damaged_base_falls_back_to_the_one_before(
    tmp_path: Path, small_log: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the state gone too: the former base, its deltas, and those since."""
    monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(deltas=2))

    async def work(container: Container, chunks: ChunkStore) -> None:
        for number in range(60):
            await create(container, 5, f"round-{number}")
            await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
            await container.parts.snapshots.ended()
            manifest, _ = await snapshots.newest(chunks, 0)
            is_released = (rebuild.first_logged(tmp_path / "data/container-0") or 0) > 1
            if manifest is not None and manifest.former_deltas and manifest.deltas and is_released:
                return
        raise AssertionError("no base followed another, or the log kept its first frame")

    with quick(monkeypatch):
        in_container(tmp_path / "data", work)
    rot(tmp_path / "data", "base")
    lost = lose_state(tmp_path / "data")
    both = Path(shutil.copytree(tmp_path / "data", tmp_path / "both"))
    start(tmp_path / "data")
    assert records_of(tmp_path / "data/container-0/state") == lost
    for part in newest(both).former_base:
        (both / "tier2" / part.name).unlink()
    with pytest.raises(NadiError):
        start(both)


def spoil(file: Path, how: str) -> None:
    data = file.read_bytes()
    match how:
        case "flipped":
            file.write_bytes(data[:90] + bytes([data[90] ^ 1]) + data[91:])
        case "cut":
            file.write_bytes(data[:-7])
        case "empty":
            file.write_bytes(b"")
        case "not text":
            file.write_bytes(b"\xff" * len(data))
        case _:
            file.unlink()


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "not text", "missing"])
def test_a_damaged_record_of_a_sound_state_is_written_anew(folder: Path, how: str) -> None:
    spoil(folder / "tier2/containers/0", how)
    if how != "missing":
        (report,) = [report for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0"]
        assert any("containers/0" in line for line in report.renewed)
        assert not report.lost

    start(folder)
    assert newest(folder)
    lost = lose_state(folder)
    start(folder)
    assert records_of(folder / "container-0/state") == lost


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_record_without_a_state_is_refused(folder: Path, how: str) -> None:
    spoil(folder / "tier2/containers/0", how)
    lose_state(folder)
    with pytest.raises(DamagedStateError, match="containers/0" if how != "missing" else "no snapshot"):
        start(folder)


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_record_that_is_damaged_while_a_server_runs_is_written_anew(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(size_bytes: int) -> None:
        pass

    async def work(container: Container, chunks: ChunkStore) -> None:
        snapshots = container.parts.snapshots
        await until_async(lambda: snapshots.sequence == container.state.sequence)
        spoil(folder / "tier2/containers/0", how)
        assert "containers/0" in await snapshots.verify(nothing)
        await until_async(lambda: "containers/0" in snapshots.renewed)
        assert not await snapshots.verify(nothing)

    with quick(monkeypatch):
        in_container(folder, work)
    assert newest(folder)


def test_a_server_renews_what_a_check_says_it_renews(folder: Path) -> None:
    shutil.rmtree(folder)
    environment = {"NADI_LIMITS": LIMITS}
    with (
        nadi.embedded(folder, containers=1, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("s")
        for number in range(30):
            manager.create_stream("s", f"t{number}", 1)
    assert (rebuild.first_logged(folder / "container-0") or 0) > 1
    rotten = rot(folder, "base")
    (said,) = [report.renewed for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0"]
    assert rotten.name in said[0]

    with nadi.embedded(folder, environment=environment, rest_port=0) as server:
        details: dict[str, object] = {}
        ends_at = time.monotonic() + 60
        while "snapshot_renewed" not in details and time.monotonic() < ends_at:
            time.sleep(0.05)
            with urlopen(f"{server.rest_uri}/v1/health/details/container-0") as reply:
                details = msgspec.json.decode(reply.read())
        assert rotten.name in str(details["snapshot_renewed"])
        assert "snapshot_damaged" not in details
    assert all(report.is_sound for report in asyncio.run(inspect_folder(folder)))
    shutil.rmtree(folder / "container-0/state")
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert len(manager.list_streams("s")) == 30


def test_the_log_is_kept_until_it_is_known_that_the_snapshot_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_part, go_on = snapshots.read_part, asyncio.Event()

    async def slowly(chunks: ChunkStore, part: Part) -> bytes:
        await go_on.wait()
        return await read_part(chunks, part)

    monkeypatch.setattr(snapshots, "read_part", slowly)
    base = newest(folder).base

    async def work(container: Container, chunks: ChunkStore) -> None:
        released: list[int] = []
        monkeypatch.setattr(container.log, "truncate", lambda before, keep: released.append(before))
        former = newest_sequence(container)
        await create(container, 40, "meanwhile")  # it serves
        await until_async(lambda: newest_sequence(container) > former and bool(released))
        assert container.parts.snapshots.sequence == 0
        assert max(released) <= 1
        go_on.set()
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        await until_async(lambda: released[-1] == container.parts.snapshots.sequence + 1)
        manifest, _ = await snapshots.newest(chunks, 0)
        assert manifest is not None
        assert manifest.base == base, "no new one was needed"

    with quick(monkeypatch):
        in_container(folder, work)


def newest_sequence(container: Container) -> int:
    assert container.parts.snapshots._manifest is not None
    return container.parts.snapshots._manifest.sequence


def test_a_place_that_the_disk_cannot_read_is_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, broken = ChunkStore.read, newest(folder).base[0].name

    async def failing(self: ChunkStore, name: str, position: int, length: int) -> memoryview:
        if name == broken:
            raise DiskReadError(f"the disk can't read chunk {name}: input/output error")
        return await read(self, name, position, length)

    monkeypatch.setattr(ChunkStore, "read", failing)

    async def work(container: Container, chunks: ChunkStore) -> None:
        await until_async(lambda: bool(container.parts.snapshots.renewed))
        assert "input/output error" in container.parts.snapshots.renewed

    with quick(monkeypatch):
        in_container(folder, work)
    assert newest(folder).base[0].name != broken


def test_while_it_can_not_be_read_the_log_is_kept_and_it_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, away = ChunkStore.read, [True]
    base = newest(folder).base

    async def sometimes(self: ChunkStore, name: str, position: int, length: int) -> memoryview:
        if away[0] and "/base-" in name:
            raise UnavailableError("tier 2 is away")
        return await read(self, name, position, length)

    monkeypatch.setattr(ChunkStore, "read", sometimes)

    async def work(container: Container, chunks: ChunkStore) -> None:
        await until_async(lambda: "tier 2 is away" in container.parts.snapshots.error)
        assert container.parts.snapshots.sequence == 0
        away[0] = False
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        assert not container.parts.snapshots.error
        manifest = container.parts.snapshots._manifest
        assert manifest is not None
        assert manifest.base == base, "it was not given up"
        assert not container.parts.snapshots.renewed

    with quick(monkeypatch):
        in_container(folder, work)


@pytest.mark.parametrize("before", ["none", "a damaged record"])
def test_a_short_session_leaves_a_snapshot_where_none_could_be_relied_on(folder: Path, before: str) -> None:
    """Its log was released before: without one, all would go with the state."""
    if before == "none":
        shutil.rmtree(folder / "tier2/snapshots")
    else:
        rot(folder, "record")
    start(folder)
    lost = lose_state(folder)
    start(folder)
    assert records_of(folder / "container-0/state") == lost


@pytest.mark.parametrize("kill", [False, True])
def test_a_state_lost_after_a_short_session_is_made_anew(tmp_path: Path, kill: bool) -> None:
    """From its log alone, which a server keeps from the first frame on until there is a snapshot."""
    server = nadi.embedded(tmp_path / "data", containers=1)
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        with manager.create_writer("s", "t") as writer:
            writer.write_batch([b"%d" % number for number in range(100)], "k")
    server.kill() if kill else server.stop()
    shutil.rmtree(tmp_path / "data/container-0/state")
    shutil.rmtree(tmp_path / "data/tier2/snapshots", ignore_errors=True)
    with nadi.embedded(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        assert [found.data for found in manager.read_events("s", "t", end=tail)] == [b"%d" % n for n in range(100)]


def test_a_large_state_holds_up_no_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.recovery.snapshotter.SNAPSHOT_STOP_BYTES", 1)
    shutil.rmtree(folder / "tier2/snapshots")
    start(folder)
    assert not list((folder / "tier2/snapshots").rglob("base-*"))


# --- a full disk -------------------------------------------------------------------------------------


class FullLog:
    """Makes containers' logs say that their disk is full, while it `is`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.it_is = False
        monkeypatch.setattr(FileLog, "is_full", property(lambda log: self.it_is))


@pytest.mark.parametrize(
    ("error", "is_released"),
    [(UnavailableError("tier 2 is away"), False), (StorageFullError("tier 2 is full"), True)],
)
def test_on_a_full_disk_the_log_is_released_past_the_snapshot_only_where_that_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: NadiError, is_released: bool
) -> None:
    """Where it has none, room can only come from the log; else the snapshot comes first, whatever the disk is."""
    put, fails = ChunkStore.put, [False]

    async def sometimes(self: ChunkStore, name: str, parts: list[bytes]) -> None:
        if fails[0]:
            raise error
        await put(self, name, parts)

    monkeypatch.setattr(ChunkStore, "put", sometimes)
    full = FullLog(monkeypatch)

    async def work(container: Container, chunks: ChunkStore) -> None:
        released: list[int] = []
        monkeypatch.setattr(container.log, "truncate", lambda before, keep: released.append(before))
        await create(container, 10, "before")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        full.it_is = True
        await create(container, 10, "with a full disk")  # frames that go into the file kept aside, say
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        await until_async(lambda: released[-1] == container.state.sequence + 1)
        assert max(released) == container.parts.snapshots.sequence + 1
        fails[0] = True
        durable = container.parts.snapshots.sequence
        await create(container, 10, "without a snapshot")
        await until_async(lambda: bool(container.parts.snapshots.error))
        await until_async(lambda: container.checkpoints.sequence == container.state.sequence)
        container.checkpoints.truncate_log()
        assert released[-1] == (container.state.sequence if is_released else durable) + 1
        fails[0] = full.it_is = False
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    with quick(monkeypatch):
        in_container(tmp_path, work)


def test_on_a_full_disk_a_snapshot_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullLog(monkeypatch)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.02)
    monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=3600.0))

    async def work(container: Container, chunks: ChunkStore) -> None:
        full.it_is = True  # from here on, for the first may have missed what was created just now
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence > 0)
        await create(container, 1, "a")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    in_container(tmp_path, lambda container, chunks: first_then(container, work(container, chunks)))


async def first_then(container: Container, work: object) -> None:
    await create(container, 1, "first")
    await work  # type: ignore[misc]


@pytest.mark.parametrize("where", ["the copy", "a part", "the record"])
def test_a_whole_one_that_finds_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Else each further try would take more of a disk that has too little."""
    put, set_snapshot, tries = ChunkStore.put, Records.set_snapshot, [0]
    monkeypatch.setattr(snapshots, "SNAPSHOT_PART_BYTES", 8192)

    async def full_for_a_record(self: Records, *arguments: Any) -> None:
        if where == "the record":
            tries[0] += 1
            raise StorageFullError("tier 2 is full")
        await set_snapshot(self, *arguments)

    async def full(self: ChunkStore, name: str, parts: list[bytes]) -> None:
        if where == "a part" and name.endswith("-000001"):
            tries[0] += 1
            raise StorageFullError("tier 2 is full")
        await put(self, name, parts)

    async def work(container: Container, chunks: ChunkStore) -> None:
        def half(file: int) -> None:
            tries[0] += 1
            (tmp_path / "container-0/snapshot.tmp").write_bytes(b"half of it")
            raise StorageFullError("no room")

        if where == "the copy":
            monkeypatch.setattr(container.metadata, "copy", half)
        await create(container, 10, "a")
        await until_async(lambda: bool(container.parts.snapshots.error))
        assert container.parts.snapshots.is_full
        assert tries[0] == 1
        assert not (tmp_path / "container-0/snapshot.tmp").exists()
        assert await chunks.listed(snapshots.folder_of(0)) == {}

    if where != "the copy":
        monkeypatch.setattr(ChunkStore, "put", full)
        monkeypatch.setattr(Records, "set_snapshot", full_for_a_record)
    with quick(monkeypatch):
        monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=3600.0))  # for the next try
        in_container(tmp_path, work)
