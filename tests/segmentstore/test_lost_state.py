"""Each start restores a container's state from its snapshot and the log, without loss, or is refused."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nadi
from nadi import limits
from nadi.errors import DamagedStateError, DataFolderError, UnavailableError
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.storage import LocalStorage
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.state.metadata import STATE_FILE, ContainerMetadata, verify
from nadi.segmentstore.state.stored import state_change
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import SnapshotManifest, SnapshotPart
from tests.segmentstore.state_tables import apart, copy_of, record_of, recovered, snapshot_records
from tests.support.waiting import until_async

LIMITS = (
    "chunk_flush_age_s=0.2,chunk_flush_bytes=65536,checkpoint_interval_s=0.1,storage_writer_tick_s=0.05,"
    "log_file_bytes=1048576,snapshot_interval_s=0.2,snapshot_deltas=6"
)
EVENTS = 3_000


def event(number: int) -> bytes:
    return b"%d:" % number + bytes([number % 251]) * 700


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A killed server's folder, with the start of its log released, and snapshots."""
    folder = tmp_path_factory.mktemp("lost") / "base"
    server = nadi.embedded(folder, containers=2, environment={"NADI_LIMITS": LIMITS})
    try:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "t", 2)
            table = manager.table("s", "tab")
            table.create()
            with manager.create_writer("s", "t") as writer:
                for number in range(EVENTS):
                    writer.write_event(event(number), str(number % 10))
                    if number % 100 == 0:
                        writer.flush(60)
                        table.put(b"key-%d" % number, b"value of %d" % number)
                writer.flush(60)
            for number in range(20):
                manager.create_stream("s", f"short-{number}", 1)
            manager.seal_stream("s", "short-3")
            manager.delete_stream("s", "short-3")
            first = folder / "container-{}/log/log-0000000000000001.nadi"
            deadline = time.monotonic() + 60
            while any(Path(str(first).format(n)).exists() for n in range(2)) and time.monotonic() < deadline:
                with manager.create_writer("s", "t") as writer:
                    for number in range(EVENTS, EVENTS + 50):
                        writer.write_event(event(number), str(number % 10))
                time.sleep(0.1)
                table.put(b"more", b"and more")
    finally:
        server.kill()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "data"))


def events_of(folder: Path) -> set[bytes]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert len(manager.list_streams("s")) == 20
        assert manager.table("s", "tab").get(b"key-2900") is not None
        return {found.data for found in manager.read_events("s", "t", end=manager.stream_info("s", "t").tail)}


def start(folder: Path, number: int = 0) -> None:
    async def run() -> None:
        chunks = ChunkStore.in_folder(folder / "tier2")
        container = Container(LocalStorage(number, folder / f"container-{number}", chunks), BlockCache())
        await container.start()
        await container.stop()

    asyncio.run(run())


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock" and ".nadi" not in path.parts
    }


def spoil(folder: Path, name: str) -> None:
    """Damage an object of tier 2."""
    path = folder / "tier2" / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def manifest_of(folder: Path) -> SnapshotManifest:
    snapshot = asyncio.run(record_of(ChunkStore.in_folder(folder / "tier2"))).snapshot
    assert snapshot is not None
    return snapshot


# --- a start -----------------------------------------------------------------------------------------


def test_the_restored_state_is_that_of_the_server_that_was_killed(folder: Path) -> None:
    """The result equals the state that checkpoints had written to a surviving state file, plus the log since."""
    left = recovered(copy_of(folder, "left"), from_state=True)
    assert list(map(apart, recovered(folder))) == list(map(apart, left))


@pytest.mark.parametrize("what", ["gone", "garbage"])
def test_leftover_state_is_not_used(folder: Path, what: str) -> None:
    for container in folder.glob("container-*"):
        if what == "gone":
            shutil.rmtree(container / "state")
        else:
            (container / "state/data.mdb").write_bytes(bytes(range(256)) * 4096)
    assert {event(number) for number in range(EVENTS)} <= events_of(folder)
    assert not list(folder.glob("container-*/state")), "a clean stop deletes the state"


def test_a_container_that_was_never_used_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(container: Container, chunks: ChunkStore) -> None:
        await until_async(lambda: container.parts.snapshots._manifest is not None)

    with quick(monkeypatch):
        in_container(tmp_path, work)
    start(tmp_path)


@pytest.mark.parametrize("what", ["base", "delta", "the record"])
@pytest.mark.parametrize("which", ["", "-copy"])
@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_state_restores_from_one_of_two_copies(folder: Path, what: str, which: str, how: str) -> None:
    whole = list(map(apart, recovered(folder)))
    manifest = manifest_of(folder)
    assert manifest.deltas
    name = {"base": manifest.base[-1].name, "delta": manifest.deltas[0].name}.get(what, "containers/0") + which
    if how == "gone":
        (folder / "tier2" / name).unlink()
    else:
        spoil(folder, name)
    assert list(map(apart, recovered(folder))) == whole


@pytest.mark.parametrize("what", ["the snapshots", "a base", "a delta", "the record", "no record", "the log"])
def test_unrestorable_container_is_refused_unchanged(folder: Path, what: str) -> None:
    manifest = manifest_of(folder)
    match what:
        case "the snapshots":
            shutil.rmtree(folder / "tier2/snapshots/container-0")
        case "the log":
            shutil.rmtree(folder / "container-0/log")
        case "the record":
            spoil(folder, "containers/0")
            spoil(folder, "containers/0-copy")
        case "no record":
            for name in ("0", "0-copy"):
                (folder / "tier2/containers" / name).unlink()
        case _:
            part = (manifest.base if what == "a base" else manifest.deltas or manifest.base)[-1]
            for name in part.names:
                spoil(folder, name)
    before = contents(folder)

    with pytest.raises(DataFolderError, match="nadi check"):
        start(folder)
    if what == "the log":
        with pytest.raises(DataFolderError, match="nadi repair"):
            nadi.embedded(folder)
    after = {path: data for path, data in contents(folder).items() if not is_changed_by_a_start(path)}
    assert after == {path: data for path, data in before.items() if not is_changed_by_a_start(path)}


def is_changed_by_a_start(path: Path) -> bool:
    """Starts change the log's epoch file, and the state."""
    return path.parent.name in ("state", "log") and path.name in ("data.mdb", "lock.mdb", "epoch", "reserve")


def test_start_without_record_and_log_is_refused_if_chunks_exist(folder: Path) -> None:
    for name in ("0", "0-copy"):
        (folder / f"tier2/containers/{name}").unlink()
    shutil.rmtree(folder / "container-0/log")
    with pytest.raises(DamagedStateError):
        start(folder)


def test_repair_without_records_does_not_create_an_empty_store(folder: Path) -> None:
    """Its snapshot would be empty, and the next start would delete all chunks."""
    for name in ("0", "0-copy"):
        (folder / f"tier2/containers/{name}").unlink()
    before = contents(folder)
    (report,) = [report for report in asyncio.run(inspect_folder(folder)) if report.name == "container-0"]
    assert report.is_refused
    assert "record" in report.lost[0]
    assert contents(folder) == before


def test_swapped_records_are_refused(folder: Path) -> None:
    for which in ("", "-copy"):
        first, second = (folder / f"tier2/containers/{number}{which}" for number in range(2))
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    with pytest.raises(DamagedStateError, match="containers/"):
        start(folder)


# --- damaged while open ------------------------------------------------------------------------


async def test_running_container_recovers_from_damaged_state(tmp_path: Path, folder: Path) -> None:
    """It recovers with a restored state; requests in the meantime get a retryable error."""
    chunks = ChunkStore.in_folder(folder / "tier2")
    container = Container(LocalStorage(0, folder / "container-0", chunks), BlockCache())
    await container.start()
    metadata = container.metadata
    place = ("segments", (1).to_bytes(8, "big"))
    with metadata._env.begin(write=True, db=metadata._tables[place[0]]) as txn:
        raw = bytes(txn.get(place[1]) or b"")
        txn.put(place[1], raw[:5] + bytes([raw[5] ^ 1]) + raw[6:])
    with pytest.raises((UnavailableError, DamagedStateError)):
        await container.call(lambda frame: metadata.load(1, {}))
    await until_async(lambda: container.failure is None and container.metadata is not metadata)
    assert container.metadata.load(1, {}) is not None
    await container.stop()


def test_value_of_another_key_counts_as_damaged(tmp_path: Path) -> None:
    metadata = ContainerMetadata(tmp_path, 3)
    metadata.commit([state_change(metadata.state()), ("names", b"a", bytes(8)), ("names", b"b", bytes(8))])
    reported: list[DamagedStateError] = []
    metadata.close()
    assert verify(tmp_path / STATE_FILE, 3)["names"] == 2
    metadata = ContainerMetadata(tmp_path, 3)
    metadata.on_damage = reported.append
    with metadata._env.begin(write=True, db=metadata._tables["names"]) as txn:
        txn.put(b"b", bytes(txn.get(b"a") or b""))
    assert metadata.segment_id("a") == 0
    with pytest.raises(DamagedStateError, match="names"):
        metadata.segment_id("b")
    assert len(reported) == 1
    metadata.close()
    with pytest.raises(DamagedStateError, match="names"):
        verify(tmp_path / STATE_FILE, 3)
    with pytest.raises(DamagedStateError, match="state"):
        verify(tmp_path / STATE_FILE, 2)


# --- snapshots ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from nadi.segmentstore.recovery import snapshotter

    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.02)
    monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=0.05))
    yield


def in_container(folder: Path, work: Callable[[Container, ChunkStore], object]) -> None:
    async def run() -> None:
        chunks = ChunkStore.in_folder(folder / "tier2")
        container = Container(LocalStorage(0, folder / "container-0", chunks), BlockCache())
        await container.start()
        try:
            await work(container, chunks)  # type: ignore[misc]
        finally:
            await container.stop()

    asyncio.run(run())


async def create(container: Container, count: int, prefix: str) -> None:
    from nadi.segmentstore.state.operations import Create

    for number in range(count):
        segment = container.state.next_segment
        name = f"{prefix}-{number}"
        await container.call(lambda frame, s=segment, n=name: frame.emit(Create(s, n, 0, 5)))  # type: ignore[misc]


def test_log_is_retained_while_tier_2_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, away = ChunkStore.put, [False]

    async def sometimes(self: ChunkStore, name: str, parts: list[bytes]) -> None:
        if away[0]:
            raise UnavailableError("tier 2 is away")
        await put(self, name, parts)

    monkeypatch.setattr(ChunkStore, "put", sometimes)

    async def work(container: Container, chunks: ChunkStore) -> None:
        released: list[int] = []
        monkeypatch.setattr(container.log, "truncate", lambda before, keep: released.append(before))
        await create(container, 10, "before")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        durable = container.parts.snapshots.sequence
        await until_async(lambda: bool(released) and released[-1] == durable + 1)
        away[0] = True
        await create(container, 30, "meanwhile")
        await until_async(lambda: bool(container.parts.snapshots.error))
        await until_async(lambda: container.checkpoints.sequence == container.state.sequence)
        await asyncio.sleep(0.1)
        assert container.failure is None
        assert max(released) == durable + 1
        away[0] = False
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        await until_async(lambda: released[-1] == container.parts.snapshots.sequence + 1)
        assert not container.parts.snapshots.error

    with quick(monkeypatch):
        in_container(tmp_path, work)
    (found,) = recovered(tmp_path)
    assert len(found["names"]) == 40


def test_deltas_follow_a_base_and_old_objects_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nadi.segmentstore.recovery import snapshotter

    monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(deltas=4))
    seen: set[tuple[tuple[SnapshotPart, ...], int]] = set()

    async def work(container: Container, chunks: ChunkStore) -> None:
        for number in range(200):  # on a busy machine a round may take several snapshots
            if len({base for base, _ in seen}) >= 2 and {count for _, count in seen} >= {0, 1, 4}:
                break
            await create(container, 5, f"round-{number}")
            await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
            manifest = (await record_of(chunks)).snapshot
            assert manifest is not None
            assert manifest.sequence == container.state.sequence
            assert len(manifest.deltas) <= 4
            seen.add((manifest.base, len(manifest.deltas)))
        await container.parts.snapshots.ended()
        listed = await chunks.listed(snapshots.folder_of(0))
        manifest = (await record_of(chunks)).snapshot
        assert manifest is not None
        assert set(listed) == manifest.names

    with quick(monkeypatch):
        in_container(tmp_path, work)
    assert len({base for base, _ in seen}) >= 2
    assert {count for _, count in seen} >= {0, 1, 4}


def test_a_clean_stop_leaves_a_snapshot_of_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 5, "a")
        await until_async(lambda: container.parts.snapshots.sequence > 0)
        await create(container, 5, "b")

    with quick(monkeypatch):
        in_container(tmp_path, work)
    assert len(snapshot_records(tmp_path)["names"]) == 10


def test_damaged_state_does_not_replace_an_intact_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 20, "a")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        good, metadata = (await record_of(chunks)).snapshot, container.metadata
        await until_async(lambda: container.checkpoints._task is None or container.checkpoints._task.done())
        with metadata._env.begin(write=True, db=metadata._tables["names"]) as txn:
            txn.put(b"a-3", b"not at all")
        container.parts.snapshots._base_due = True
        await until_async(lambda: container.metadata is not metadata and container.failure is None)
        assert container.state.find("a-3") is not None
        kept = (await record_of(chunks)).snapshot
        assert kept is not None
        assert good is not None
        assert kept.sequence >= good.sequence

    with quick(monkeypatch):
        in_container(tmp_path, work)
    assert len(snapshot_records(tmp_path)["names"]) == 20
