"""The log is released only by an intact snapshot; a damaged one is reported, and recreated in time."""

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
from nadi.segmentstore.recovery import snapshots, snapshotter
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.repair.offline_store import StoppedLog
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.records import ContainerRecords
from tests.support.waiting import until_async

from .state_tables import recovered, snapshot_records
from .test_lost_state import contents, create, in_container, manifest_of, quick, start

LIMITS = "snapshot_interval_s=0.2,checkpoint_interval_s=0.1,log_file_bytes=65536"


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use files of 15 small frames, so that released frames are deleted at once."""
    open_log = FileLog.open

    def open_small(folder: Path, **settings: Any) -> FileLog:
        return open_log(folder, file_bytes=16 * BLOCK_BYTES, spare_files=0, **settings)

    monkeypatch.setattr(FileLog, "open", open_small)


def has_first_frame(folder: Path) -> bool:
    return StoppedLog(folder / "log").first_sequence == 1


@pytest.fixture
def folder(tmp_path: Path, small_log: None) -> Path:
    """The folder of a cleanly stopped container: a base and deltas, and the log's first frames released."""
    folder = tmp_path / "data"

    async def work(container: Container, chunks: ChunkStore) -> None:
        for number in range(4):
            await create(container, 20, f"round-{number}")
            await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    with pytest.MonkeyPatch.context() as patches, quick(patches):
        in_container(folder, work)
    assert not has_first_frame(folder / "container-0")
    return folder


def rot(folder: Path, what: str) -> Path:
    manifest = manifest_of(folder)
    names = {"base": manifest.base[0].name, "delta": manifest.deltas[-1].name if manifest.deltas else ""}
    name = names.get(what, "containers/0")
    path = folder / "tier2" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("what", ["base", "delta"])
def test_damaged_snapshot_is_recreated(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its copy was used, and may be damaged next."""
    rotten = rot(folder, what)

    async def work(container: Container, chunks: ChunkStore) -> None:
        assert container.parts.snapshots.sequence == 0, "the log is retained until then"
        await until_async(lambda: bool(container.parts.snapshots.damage or container.parts.snapshots.renewed))
        await create(container, 40, "later")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        assert rotten.name in container.parts.snapshots.renewed
        assert not container.parts.snapshots.damage

    with quick(monkeypatch):
        in_container(folder, work)
    assert sum(record.levelname == "ERROR" and rotten.name in record.message for record in caplog.records) == 1
    assert not rotten.exists()
    assert len(snapshot_records(folder)["names"]) == 120


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
@pytest.mark.parametrize("which", ["", "-copy"])
def test_damaged_record_is_rewritten_from_its_copy(
    folder: Path, how: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = snapshot_records(folder)
    spoil(folder / f"tier2/containers/0{which}", how)
    (report,) = [report for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0"]
    assert any("containers/0" in line for line in report.renewed)
    assert not report.lost

    assert recovered(folder) == [expected]

    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 1, "later")

    with quick(monkeypatch):
        in_container(folder, work)
    assert all(report.is_sound for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0")


@pytest.mark.parametrize(("which", "is_damage"), [("", True), ("-copy", False)])
def test_outdated_record_is_rewritten(
    folder: Path, which: str, is_damage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two writes leaves the copy outdated, which isn't damage; a start updates either before it
    releases more of the log."""
    path = folder / f"tier2/containers/0{which}"
    before = path.read_bytes()

    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 1, "later")

    async def idle(container: Container, chunks: ChunkStore) -> None:
        assert container.parts.snapshots.sequence == 0, "the log is retained"
        await until_async(lambda: bool(container.parts.snapshots.renewed))

    with quick(monkeypatch):
        in_container(folder, work)
        expected = snapshot_records(folder)
        path.write_bytes(before)
        (report,) = [report for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0"]
        assert any("containers/0" in line for line in report.renewed) == is_damage
        assert snapshot_records(folder) == expected
        in_container(folder, idle)
    assert all(report.is_sound for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0")


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "not text"])
def test_a_record_is_refused_if_its_copy_is_damaged_too(folder: Path, how: str) -> None:
    for which in ("", "-copy"):
        spoil(folder / f"tier2/containers/0{which}", how)
    (report,) = [report for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0"]
    assert report.is_refused
    with pytest.raises(DamagedStateError, match="containers/0"):
        start(folder)


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_record_damaged_at_run_time_is_rewritten(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert manifest_of(folder)


def test_server_repairs_damage_that_check_reports_as_renewable(folder: Path) -> None:
    shutil.rmtree(folder)
    environment = {"NADI_LIMITS": LIMITS}
    with (
        nadi.embedded(folder, containers=1, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("s")
        for number in range(30):
            manager.create_stream("s", f"t{number}", 1)
    assert not has_first_frame(folder / "container-0")
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
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert len(manager.list_streams("s")) == 30


def test_unreadable_snapshot_counts_as_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, broken = ChunkStore.read, manifest_of(folder).base[0].name

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
    assert manifest_of(folder).base[0].name != broken


def test_start_is_retried_while_tier_2_is_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other copy of the state exists. The server's reaction is tested with `tier2.claim`."""
    expected = snapshot_records(folder)
    with monkeypatch.context() as patched:

        async def away(self: ChunkStore, name: str, position: int, length: int) -> memoryview:
            raise UnavailableError("tier 2 is away")

        patched.setattr(ChunkStore, "read", away)
        before = contents(folder / "tier2")
        with pytest.raises(UnavailableError, match="tier 2 is away"):
            start(folder)
    assert contents(folder / "tier2") == before
    assert recovered(folder) == [expected]


def test_a_stop_waits_some_seconds_for_tier_2_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_STOP_S", 0.5)

    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 5, "a")
        await until_async(lambda: container.parts.snapshots.sequence > 0)
        monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=3600.0))

        async def silent(self: ChunkStore, name: str, parts: list[bytes]) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(ChunkStore, "put", silent)
        await create(container, 5, "b")

    with quick(monkeypatch):
        began = time.monotonic()
        in_container(tmp_path, work)
        assert time.monotonic() - began < 20
    monkeypatch.undo()
    (found,) = recovered(tmp_path)
    assert len(found["names"]) == 10


def test_large_state_does_not_delay_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.SNAPSHOT_STOP_BYTES", 1)
    start(tmp_path)
    assert not list((tmp_path / "tier2/snapshots").rglob("base-*"))


# --- a full disk -------------------------------------------------------------------------------------


class FullLog:
    """Makes containers' logs report a full disk, while it `is`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.it_is = False
        monkeypatch.setattr(FileLog, "is_full", property(lambda log: self.it_is))


@pytest.mark.parametrize("error", [UnavailableError("tier 2 is away"), StorageFullError("tier 2 is full")])
def test_on_a_full_disk_the_log_is_released_no_further_than_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: NadiError
) -> None:
    """The state is lost with the process: only the snapshot's contents are stored elsewhere."""
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
        await create(container, 10, "with a full disk")  # such as frames in the reserved file
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        await until_async(lambda: released[-1] == container.state.sequence + 1)
        assert max(released) == container.parts.snapshots.sequence + 1
        fails[0] = True
        durable = container.parts.snapshots.sequence
        await create(container, 10, "without a snapshot")
        await until_async(lambda: bool(container.parts.snapshots.error))
        await until_async(lambda: container.checkpoints.sequence == container.state.sequence)
        container.checkpoints.truncate_log()
        assert released[-1] == durable + 1
        fails[0] = full.it_is = False
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    with quick(monkeypatch):
        in_container(tmp_path, work)


def test_snapshot_on_a_full_disk_uses_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = ChunkStore.put
    reserved = tmp_path / "container-0/reserve"

    async def full(self: ChunkStore, name: str, parts: list[bytes]) -> None:
        if "/delta-" in name and reserved.exists():
            raise StorageFullError("tier 2 is full")
        await put(self, name, parts)

    monkeypatch.setattr(ChunkStore, "put", full)

    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 5, "a")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        await create(container, 5, "b")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        assert not container.parts.snapshots.error

    with quick(monkeypatch):
        in_container(tmp_path, work)


def test_on_a_full_disk_a_snapshot_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullLog(monkeypatch)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.02)
    monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=3600.0))

    async def work(container: Container, chunks: ChunkStore) -> None:
        full.it_is = True  # from now on: the first snapshot may lack the latest segments
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence > 0)
        await create(container, 1, "a")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    in_container(tmp_path, lambda container, chunks: first_then(container, work(container, chunks)))


async def first_then(container: Container, work: object) -> None:
    await create(container, 1, "first")
    await work  # type: ignore[misc]


@pytest.mark.parametrize("where", ["the copy", "a part", "the record"])
def test_base_that_does_not_fit_leaves_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Otherwise each retry would take more of a nearly full disk."""
    put, set_snapshot, tries = ChunkStore.put, ContainerRecords.set_snapshot, [0]
    monkeypatch.setattr(limits, "SNAPSHOT_PART_BYTES", 8192)

    async def full_for_a_record(self: ContainerRecords, *arguments: Any) -> None:
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
        assert tries[0] == (1 if where == "the copy" else 2), "retried with the reserve"
        assert not (tmp_path / "container-0/snapshot.tmp").exists()
        assert await chunks.listed(snapshots.folder_of(0)) == {}

    if where != "the copy":
        monkeypatch.setattr(ChunkStore, "put", full)
        monkeypatch.setattr(ContainerRecords, "set_snapshot", full_for_a_record)
    with quick(monkeypatch):
        monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=3600.0))  # until the next attempt
        in_container(tmp_path, work)
