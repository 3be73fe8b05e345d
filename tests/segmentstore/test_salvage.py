"""What a repair has back where neither the state nor all of its snapshot is whole: never less than what is."""

from __future__ import annotations

import asyncio
import re
import shutil
import zlib
from pathlib import Path

import pytest

import nadi
from nadi.errors import DataFolderError
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.repair import salvage
from nadi.segmentstore.repair.logtold import LogTells
from nadi.segmentstore.repair.remains import Remains, no_records
from nadi.segmentstore.rota import Rota
from nadi.segmentstore.state.checked import STATE_KEY
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import Extent, FrameRef, Kind, SegmentRecord
from nadi.segmentstore.state.stored import PAIR, encode_state, pack_extent, record_changes, time_key
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.description import ChunkDescription
from nadi.wire.moments import ARRIVAL, clock_of, earliest_of, indexed_attribute
from tests.cli.test_check_and_repair import command
from tests.segmentstore.state_tables import lose_states, recovered
from tests.segmentstore.test_lost_state import EVENTS, base, contents, event, events_of, folder

__all__ = ["base", "folder"]  # fixtures
EVENT = re.compile(rb"(\d+):(.)\2{699}", re.DOTALL)


def flipped(packed: bytes) -> bytes:
    """With one bit changed, about in the middle, that matters: another distance within zeros unpacks to the same."""
    for at in range(len(packed) // 2, len(packed)):
        damaged = packed[:at] + bytes([packed[at] ^ 8]) + packed[at + 1 :]
        try:
            zlib.decompress(damaged)
        except zlib.error:
            return damaged
    raise AssertionError("any bit may be changed")


def damage_snapshots(folder: Path, what: str) -> None:
    """Of both containers; what a server of today writes, and then what is left if its manifests are gone too."""
    for number in range(2):
        stored = folder / f"tier2/snapshots/container-{number}"
        manifest, _ = asyncio.run(snapshots.newest(ChunkStore.in_folder(folder / "tier2"), number))
        assert manifest is not None
        bases = sorted(stored.glob("base-*"))  # an earlier one may be there yet, and does as well
        assert folder / "tier2" / manifest.base[0].name in bases
        if "manifests" in what:
            for path in stored.glob("manifest-*"):
                path.write_bytes(b"?" + path.read_bytes()[1:])
        if "base flipped" in what:
            for file in bases:
                file.write_bytes(flipped(file.read_bytes()))
        if "base missing" in what:
            for file in bases:
                file.unlink()
        if "delta" in what and manifest.deltas:
            (folder / "tier2" / manifest.deltas[0].name).write_bytes(b"")
        if "all" in what:
            shutil.rmtree(stored)


def bytes_kept(folder: Path) -> set[bytes]:
    """Events in all segments there are, whoever can find them; all that looks like one must be one."""
    from nadi.errors import DamagedDataError
    from nadi.segmentstore.reading.reads import SegmentReader
    from nadi.segmentstore.repair.stopped import StoppedContainer

    async def read() -> set[bytes]:
        found: set[bytes] = set()
        for number in range(2):
            container = folder / f"container-{number}"
            chunks = ChunkStore.in_folder(folder / "tier2")
            stopped = StoppedContainer(number, container, chunks)
            await stopped.open(Path(shutil.copytree(container / "state", folder.parent / f"looked-at-{number}")))
            reader = SegmentReader(chunks, stopped.cache, Rota())
            for segment in stopped.segments():
                record = stopped.state.must(segment)
                data = b""
                for extent in record.extents:
                    try:
                        data += b"".join(await reader.read_exactly(stopped, record, [extent], past_cache=True))
                    except DamagedDataError:
                        data += b"gap"
                found |= {match[0] for match in EVENT.finditer(data)}
            await stopped.shut()
            shutil.rmtree(folder.parent / f"looked-at-{number}")
        return found

    return asyncio.run(read())


def repaired(folder: Path) -> str:
    """Check, which changes nothing, then repair; what they said."""
    with pytest.raises(DataFolderError, match="nadi repair"):
        nadi.embedded(folder)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    assert contents(folder) == before
    done = command("repair", folder, "--yes")
    assert "a server can be started" in done.output or done.exit_code == 0, done.output
    kept = contents(folder)
    aside = {path.name: data for path, data in kept.items() if any(".damaged-" in part for part in path.parts)}
    for path, data in before.items():
        is_kept = data in (kept.get(path), aside.get(path.name))  # chunks that nothing names are set aside
        assert "state" in path.parts or is_kept, "nothing of what there was is touched"
    again = command("repair", folder, "--yes")
    assert contents(folder) == kept, again.output
    return told.output


def starts(folder: Path) -> bool:
    """Whether a server makes all of it anew by itself; tried on a copy."""
    copy = Path(shutil.copytree(folder, folder.with_name("tried")))
    try:
        with nadi.embedded(copy):
            pass
    except DataFolderError:
        return False
    finally:
        shutil.rmtree(copy)
    return True


DAMAGES = ["base flipped", "base missing", "delta", "manifests, delta", "manifests, base flipped", "all"]
QUICK = {("delta", False), ("manifests, base flipped", False), ("all", True)}


@pytest.mark.parametrize(
    ("what", "stop"),
    [
        pytest.param(what, stop, id=f"{what}-{'stopped' if stop else 'killed'}", marks=marks)
        for what in DAMAGES
        for stop in (True, False)
        for marks in [[] if (what, stop) in QUICK else [pytest.mark.slow]]
    ],
)
def test_events_that_are_whole_are_had_back(folder: Path, what: str, stop: bool) -> None:
    """It ended with 1, and nothing could be had, though chunks and log were whole."""
    if stop:
        recovered(folder)
        recovered(folder)
    expected = {event(number) for number in range(EVENTS)}
    assert bytes_kept(folder) >= expected
    damage_snapshots(folder, what)
    lose_states(folder)
    if "delta" in what and starts(folder):  # the log goes back to the base, or the newest snapshot has no deltas
        recovered(folder)
        assert bytes_kept(folder) >= expected
        return
    told = repaired(folder)
    if what in ("base missing", "delta", "all"):  # of a flipped one what is before that is whole
        assert "entries of tables are gone" in told
    assert bytes_kept(folder) >= expected
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("after")
        manager.create_stream("after", "t", 1)
        with manager.create_writer("after", "t") as writer:
            writer.write_event(b"new", "k").result(60)
    assert bytes_kept(folder) >= expected


def test_what_an_earlier_repair_set_aside_comes_before_a_damaged_snapshot(folder: Path) -> None:
    expected = events_of(folder)
    recovered(folder)
    for number in range(2):
        container = folder / f"container-{number}"
        shutil.copytree(container / "state", container / "state.damaged-20200101T000000Z")
    damage_snapshots(folder, "base flipped")
    lose_states(folder)
    told = repaired(folder)
    assert "the intact part of state.damaged-20200101T000000Z" in told
    assert events_of(folder) == expected


def test_without_a_log_too_what_chunks_describe_is_kept(folder: Path) -> None:
    recovered(folder)
    expected = bytes_kept(folder)
    damage_snapshots(folder, "all")
    lose_states(folder)
    for number in range(2):
        shutil.rmtree(folder / f"container-{number}/log")
    repaired(folder)
    kept = bytes_kept(folder)
    assert kept
    assert kept <= expected


def test_what_chunks_have_beyond_an_older_record_is_kept(tmp_path: Path) -> None:
    """Of a snapshot without its last changes: the record said that nothing was in the segment, and its chunk was set
    aside."""
    name, chunk = "s/t/0.#epoch.0", "container-0/7/0-a"
    records = no_records()
    old = Metadata(tmp_path / "old", 0)
    changes = record_changes(SegmentRecord(7, name, Kind.STREAM, 5))
    old.close()
    for table, key, value in changes:
        if value is not None:
            records[table][key] = value
    records["state"][STATE_KEY] = encode_state(20, 8)
    described = {7: [(chunk, ChunkDescription(1, 0, 7, name, 0, 400, BLOCK_BYTES, b"....", (0,)))]}
    for is_stale, length in ((True, 400), (False, 0)):
        new = tmp_path / f"new-{is_stale}"
        found = Remains("a snapshot", {table: dict(rows) for table, rows in records.items()}, {}, [], is_stale)
        salvage._make(new, 0, found, described, {chunk}, LogTells())
        made = Metadata(new, 0)
        record = made.load(7, {})
        made.close()
        assert record is not None
        assert (record.length, [extent.chunk for extent in record.extents]) == (length, [chunk] * is_stale)


def test_chunks_before_what_is_left_of_a_segments_extents_are_had_back(tmp_path: Path) -> None:
    """Its record is lost, and so is its first extent: the others don't show that it was truncated."""
    name, chunks = "s/t/0.#epoch.0", ["container-0/000000000007/0", "container-0/000000000007/190"]
    record = SegmentRecord(7, name, Kind.STREAM, 0)
    extents = [Extent(0, 400, None, 0, chunks[0], b"...."), Extent(400, 300, None, 0, chunks[1], b"....")]
    records = no_records()
    for table, key, value in record_changes(record):
        if value is not None and table != "segments":
            records[table][key] = value
    records["extents"][PAIR.pack(7, 400)] = pack_extent(extents[1])
    records["state"][STATE_KEY] = encode_state(20, 8)
    described = {
        7: [
            (extent.chunk, ChunkDescription(1, 0, 7, name, extent.offset, extent.length, BLOCK_BYTES, b"....", (0,)))
            for extent in extents
        ]
    }
    salvage._make(tmp_path / "new", 0, Remains("a snapshot", records, {}, []), described, set(chunks), LogTells())
    made = Metadata(tmp_path / "new", 0)
    found = made.load(7, {})
    made.close()
    assert found is not None
    assert (found.start_offset, found.length) == (0, 700)
    assert [extent.chunk for extent in found.extents] == chunks


def test_of_extents_that_overlap_those_in_chunks_are_kept(tmp_path: Path) -> None:
    """The manifests are gone, and a delta that took the first half of a row apart: the next has a chunk for the rest,
    and deletes a row under a key that the base has not."""
    name, chunk = "s/t/0.#epoch.0", "container-0/000000000007/20"
    record = SegmentRecord(7, name, Kind.STREAM, 0, length=40)
    frame = FrameRef(9, LogAddress(9, 1, 4_096), 0.0)
    logged = [Extent(offset, 10, frame, offset, checksums=b"abcd") for offset in range(0, 40, 10)]
    records = no_records()
    for table, key, value in record_changes(record):
        if value is not None:
            records[table][key] = value
    for extent in [*logged, Extent(20, 20, None, 0, chunk, b"....")]:
        records["extents"][PAIR.pack(7, extent.offset)] = pack_extent(extent)
    records["state"][STATE_KEY] = encode_state(20, 8)
    salvage._make(tmp_path / "new", 0, Remains("", records), {}, {chunk}, LogTells(first_sequence=1))
    made = Metadata(tmp_path / "new", 0)
    found = made.load(7, {})
    made.close()
    assert found is not None
    assert [(extent.offset, extent.length, extent.chunk) for extent in found.extents] == [
        (0, 10, ""),
        (10, 10, ""),
        (20, 20, chunk),
    ]
    assert found.log_bytes == 20


def test_times_of_events_are_left_to_those_who_can_read_them(tmp_path: Path) -> None:
    """Where an entry may be gone, a cut by the others could miss events."""
    clock, writer = clock_of("json s read_at"), b"w" * 16
    records = no_records()
    record = SegmentRecord(1, "sc/st/0.#epoch.0", Kind.STREAM, 5)
    record.attributes = {writer: 3, indexed_attribute(clock): 40}
    record.changed_attributes = set(record.attributes)
    for table, key, value in record_changes(record):
        if value is not None:
            records[table][key] = value
    for of in (ARRIVAL, clock, earliest_of(clock)):
        records["times"][time_key(1, of, 9)] = (40).to_bytes(8)
    records["state"][STATE_KEY] = encode_state(20, 2)
    found = Remains("what is left", records, {}, [], False)
    salvage._make(tmp_path / "new", 0, found, {}, set(), LogTells())
    metadata = Metadata(tmp_path / "new")
    assert metadata.last_time(1, ARRIVAL, 10) == (9, 40)
    assert metadata.last_time(1, clock, 10) is metadata.last_time(1, earliest_of(clock), 10) is None
    assert metadata.attribute(1, writer) == 3
    assert metadata.attribute(1, indexed_attribute(clock)) is None
    metadata.close()
