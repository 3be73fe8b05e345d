"""A container's state that is missing or damaged is made anew without loss, or the start is refused; never less."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
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
from nadi.segmentstore.recovery import rebuild, snapshots
from nadi.segmentstore.recovery.localparts import LocalParts
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.checked import STATE_KEY
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.stored import state_change
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, log_file_name, log_file_number
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Part
from tests.segmentstore.state_tables import Records, apart, copy_of, lose_states, records_of, recovered
from tests.support.replayed import replayed
from tests.support.waiting import until_async

LIMITS = (
    "chunk_flush_age_s=0.2,chunk_flush_bytes=65536,checkpoint_interval_s=0.1,storage_writer_tick_s=0.05,"
    "log_file_bytes=1048576,snapshot_interval_s=0.2,snapshot_deltas=6"
)
EVENTS = 3_000
DAMAGES = int(os.environ.get("NADI_DAMAGES", "150"))


def event(number: int) -> bytes:
    return b"%d:" % number + bytes([number % 251]) * 700


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a killed server leaves that had released the beginning of its log and stored snapshots."""
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


def sealed(folder: Path) -> None:
    recovered(folder)  # and stopped


def events_of(folder: Path, *, may_be_stale: bool = False) -> set[bytes]:
    """may_be_stale: of some records there may be older versions, so what was deleted may be there."""
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        streams = len(manager.list_streams("s"))
        assert streams >= 20 if may_be_stale else streams == 20
        assert manager.table("s", "tab").get(b"key-2900") is not None
        return {found.data for found in manager.read_events("s", "t", end=manager.stream_info("s", "t").tail)}


def start(folder: Path, number: int = 0) -> None:
    async def run() -> None:
        chunks = ChunkStore.in_folder(folder / "tier2")
        container = Container(LocalParts(number, folder / f"container-{number}", chunks), BlockCache())
        await container.start()
        await container.stop()

    asyncio.run(run())


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock" and ".nadi" not in path.parts
    }


# --- missing -----------------------------------------------------------------------------------------


def test_without_its_state_a_server_starts_and_has_everything(folder: Path) -> None:
    """It used to advise a repair that would have emptied the store."""
    lose_states(folder)

    assert {event(number) for number in range(EVENTS)} <= events_of(folder)


def test_the_state_of_a_container_that_was_never_used_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(container: Container, chunks: ChunkStore) -> None:
        await until_async(lambda: container.parts.snapshots._manifest is not None)

    with quick(monkeypatch):
        in_container(tmp_path, work)
    shutil.rmtree(tmp_path / "container-0/state")
    start(tmp_path)


def test_an_older_sealed_state_is_not_taken_for_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back from a copy, say: the log has let go of what it lacks, and the snapshot has it."""

    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 10, str(container.state.sequence))
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)

    folder = tmp_path / "data"
    with quick(monkeypatch):
        in_container(folder, work)
        old = copy_of(folder, "old")
        in_container(folder, work)
        in_container(folder, work)
    state, log = folder / "container-0/state", folder / "container-0/log"
    lost = records_of(state)
    for number in sorted(n for p in log.glob("log-*") if (n := log_file_number(p.name)) is not None)[:-2]:
        (log / log_file_name(number)).unlink()  # as it does once tier 2 has the rest
    shutil.rmtree(state)
    shutil.copytree(old / "container-0/state", state)
    start(folder)
    assert records_of(state) == lost


def test_what_the_log_keeps_before_a_gap_is_not_its_beginning(tmp_path: Path) -> None:
    """A file that is kept for its damaged data alone: the frames behind it were released."""

    async def write() -> None:
        log = FileLog.open(tmp_path / "log", file_bytes=16 * BLOCK_BYTES)
        await replayed(log)
        for _ in range(12):
            await log.append([b"head", bytes(3 * BLOCK_BYTES)])
        await log.close()

    asyncio.run(write())
    assert rebuild.first_logged(tmp_path) == 1
    (tmp_path / "log" / log_file_name(2)).unlink()
    assert rebuild.first_logged(tmp_path) == 1
    assert rebuild.first_logged(tmp_path, without_gap=True) == 7


@pytest.mark.parametrize("stop", [True, False])
def test_a_state_made_again_has_the_same_records(folder: Path, stop: bool) -> None:
    if stop:
        sealed(folder)
    without = copy_of(folder, "without")
    lose_states(without)

    assert list(map(apart, recovered(without))) == list(map(apart, recovered(folder)))


def test_a_young_container_needs_no_snapshot(tmp_path: Path) -> None:
    start(tmp_path)
    lost = records_of(tmp_path / "container-0/state")
    shutil.rmtree(tmp_path / "container-0/state")
    start(tmp_path)
    assert records_of(tmp_path / "container-0/state") == lost


@pytest.mark.parametrize("what", ["the snapshots", "a base", "a delta", "the log"])
def test_what_can_not_be_made_again_is_refused_and_left_alone(folder: Path, what: str) -> None:
    lose_states(folder)
    stored = folder / "tier2/snapshots/container-0"
    match what:
        case "the snapshots":
            shutil.rmtree(stored)
        case "the log":
            shutil.rmtree(folder / "container-0/log")
        case _:
            manifest, _ = asyncio.run(snapshots.newest(ChunkStore.in_folder(folder / "tier2"), 0))
            assert manifest is not None
            bases = (*manifest.base[-1:], *manifest.former_base[-1:])
            for part in bases if what == "a base" else (manifest.deltas or manifest.base)[-1:]:
                path = folder / "tier2" / part.name
                path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = contents(folder)

    with pytest.raises(DamagedStateError, match="nadi check"):
        start(folder)
    with pytest.raises(DataFolderError, match="nadi repair"):
        nadi.embedded(folder)
    after = {path: data for path, data in contents(folder).items() if "state.new" not in path.parts}
    assert after == before


# --- damaged -----------------------------------------------------------------------------------------


def damage(file: Path, other: Path, chance: random.Random) -> str:
    """One that a disk or a person makes."""
    data = bytearray(file.read_bytes())
    how = chance.choice(["flip", "flip", "flips", "zeros", "cut", "garbage", "elsewhere", "longer", "swap"])
    at = chance.randrange(len(data))
    block = at - at % 4096
    match how:
        case "flip":
            data[at] ^= 1 << chance.randrange(8)
        case "flips":
            for _ in range(20):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case "zeros":
            data[block : block + 4096] = bytes(len(data[block : block + 4096]))
        case "cut":
            del data[at:]
        case "garbage":
            data[block : block + 4096] = chance.randbytes(len(data[block : block + 4096]))
        case "elsewhere":
            source = chance.randrange(len(data)) // 4096 * 4096
            data[block : block + 4096] = data[source : source + 4096]
        case "longer":
            data += chance.randbytes(5000)
        case "swap":
            data = bytearray(other.read_bytes())
    file.write_bytes(data)
    return f"{how} at {at:,}"


def test_a_damaged_file_is_told_or_reads_as_before(base: Path, tmp_path: Path) -> None:
    """What passes an inspection, LMDB can be trusted with: the very same records are in the compact copy."""
    states = [base / f"container-{number}/state" for number in range(2)]
    expected: Records = records_of(states[0])
    sequence = statecheck.inspect_file(states[0] / "data.mdb", 0).sequence
    chance = random.Random(DAMAGES)
    told = 0
    for _ in range(DAMAGES):
        shutil.copytree(states[0], tmp_path / "state")
        file = tmp_path / "state/data.mdb"
        what = damage(file, states[1] / "data.mdb", chance)
        inspected = statecheck.inspect_file(file, 0, tmp_path / "copy")
        if inspected.damage:
            told += 1
        else:
            (tmp_path / "copy").replace(file)
            # an old page may lead to a complete older state: the log continues from there
            is_older = inspected.sequence < sequence
            assert is_older or records_of(tmp_path / "state") == expected, what
        shutil.rmtree(tmp_path / "state")
    assert told > DAMAGES // 4


@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "killed"])
def test_a_damaged_state_is_set_aside_and_made_again(folder: Path, stop: bool) -> None:
    if stop:
        sealed(folder)
    pristine = copy_of(folder, "pristine")
    expected = apart(recovered(copy_of(folder, "whole"))[0])
    chance = random.Random(stop)
    verdicts = []
    for _ in range(DAMAGES // 10):
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        states = [folder / f"container-{number}/state" for number in range(2)]
        what = damage(states[0] / "data.mdb", states[1] / "data.mdb", chance)
        damaged = (states[0] / "data.mdb").read_bytes()
        verdicts.append(statecheck.examine(states[0], 0).verdict)
        start(folder)
        assert apart(records_of(states[0])) == expected, what
        aside = [path.read_bytes() for path in states[0].parent.glob("state.damaged-*/data.mdb")]
        is_known = verdicts[-1] is statecheck.Verdict.DAMAGED
        assert aside in ([damaged], *([] if is_known else [[]])), what  # a start also copies it, and so sees more
    assert statecheck.Verdict.DAMAGED in verdicts
    assert not stop or set(verdicts) == {statecheck.Verdict.DAMAGED}, "a seal vouches for every byte"


def test_damage_that_is_met_while_a_container_runs(tmp_path: Path, folder: Path) -> None:
    """It recovers by itself, with a state made anew; who asked meanwhile is told to ask again."""

    async def run() -> None:
        chunks = ChunkStore.in_folder(folder / "tier2")
        container = Container(LocalParts(0, folder / "container-0", chunks), BlockCache())
        await container.start()
        metadata = container.metadata
        place = ("segments", (1).to_bytes(8, "big"))
        with metadata._env.begin(write=True, db=metadata._tables[place[0]]) as txn:
            raw = bytes(txn.get(place[1]) or b"")
            txn.put(place[1], raw[:5] + bytes([raw[5] ^ 1]) + raw[6:])
        with pytest.raises((UnavailableError, DamagedStateError)):
            await container.call(lambda frame: metadata.load(1, {}))
        await until_async(lambda: container.failure is None and container.metadata is not metadata)
        assert "rebuilt from" in container.parts.rebuilt
        assert container.metadata.load(1, {}) is not None
        await container.stop()

    asyncio.run(run())
    assert list((folder / "container-0").glob("state.damaged-*"))


def test_a_record_of_another_key_is_no_record(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path, 3)
    metadata.commit([state_change(metadata.state()), ("names", b"a", bytes(8)), ("names", b"b", bytes(8))])
    told: list[DamagedStateError] = []
    metadata.on_damage = told.append
    with metadata._env.begin(write=True, db=metadata._tables["names"]) as txn:
        txn.put(b"b", bytes(txn.get(b"a") or b""))
    assert metadata.segment_id("a") == 0
    with pytest.raises(DamagedStateError, match="table names"):
        metadata.segment_id("b")
    assert len(told) == 1
    metadata.close()
    assert statecheck.inspect_file(tmp_path / "data.mdb", 3).damage == "table names has a damaged record"
    with pytest.raises(DamagedStateError):
        Metadata(tmp_path, 2)


@pytest.mark.parametrize("change", ["gone", "stale"])
def test_the_totals_tell_what_a_checksum_can_not(tmp_path: Path, change: str) -> None:
    metadata = Metadata(tmp_path, 0)
    metadata.commit([state_change(metadata.state()), ("logged", b"a", b"1"), ("logged", b"b", b"1")])
    with metadata._env.begin(db=metadata._tables["logged"]) as txn:
        stale = bytes(txn.get(b"a") or b"")
    metadata.commit([("logged", b"a", b"2")])
    with metadata._env.begin(write=True, db=metadata._tables["logged"]) as txn:
        txn.delete(b"a") if change == "gone" else txn.put(b"a", stale)
    metadata.close()
    assert "table logged" in statecheck.inspect_file(tmp_path / "data.mdb", 0).damage


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
        container = Container(LocalParts(0, folder / "container-0", chunks), BlockCache())
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


def test_while_tier_2_takes_nothing_the_log_is_kept_and_writing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    lost = records_of(tmp_path / "container-0/state")
    shutil.rmtree(tmp_path / "container-0/state")
    start(tmp_path)
    assert records_of(tmp_path / "container-0/state") == lost


def test_deltas_follow_a_base_and_nothing_else_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nadi.segmentstore.recovery import snapshotter

    monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(deltas=4))
    seen: set[tuple[tuple[Part, ...], int]] = set()

    async def work(container: Container, chunks: ChunkStore) -> None:
        for number in range(200):  # on a busy machine a round may make several snapshots
            if len({base for base, _ in seen}) >= 2 and {count for _, count in seen} >= {0, 1, 4}:
                break
            await create(container, 5, f"round-{number}")
            await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
            manifest, damaged = await snapshots.newest(chunks, 0)
            assert manifest is not None
            assert not damaged
            assert manifest.sequence == container.state.sequence
            assert len(manifest.deltas) <= 4
            seen.add((manifest.base, len(manifest.deltas)))
        await container.parts.snapshots.ended()
        listed = await chunks.listed(snapshots.folder_of(0))
        manifest, _ = await snapshots.newest(chunks, 0)
        assert manifest is not None
        assert set(listed) == {part.name for part in manifest.parts}

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
    manifest, _ = asyncio.run(snapshots.newest(ChunkStore.in_folder(tmp_path / "tier2"), 0))
    assert manifest is not None
    state = records_of(tmp_path / "container-0/state")["state"][STATE_KEY]
    assert manifest.sequence == statecheck.inspect_file(tmp_path / "container-0/state/data.mdb", 0).sequence, state


def test_a_damaged_state_takes_no_good_snapshots_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(container: Container, chunks: ChunkStore) -> None:
        await create(container, 20, "a")
        await until_async(lambda: container.parts.snapshots.sequence == container.state.sequence)
        good, _ = await snapshots.newest(chunks, 0)
        metadata = container.metadata
        await until_async(lambda: container.checkpoints._task is None or container.checkpoints._task.done())
        with metadata._env.begin(write=True, db=metadata._tables["names"]) as txn:
            txn.put(b"a-3", b"not at all")
        container.parts.snapshots._whole_due = True
        await until_async(lambda: bool(container.parts.rebuilt))
        await until_async(lambda: container.failure is None)
        assert container.state.find("a-3") is not None
        kept, _ = await snapshots.newest(chunks, 0)
        assert kept is not None
        assert good is not None
        assert kept.sequence >= good.sequence

    with quick(monkeypatch):
        in_container(tmp_path, work)
    assert statecheck.inspect_file(tmp_path / "container-0/state/data.mdb", 0).damage == ""
