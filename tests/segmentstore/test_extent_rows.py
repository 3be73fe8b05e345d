"""Rows of a state shared by several extents: reads return what was put, however the extents change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from nadi.errors import DamagedStateError
from nadi.segmentstore.state import commit
from nadi.segmentstore.state.commit import StateCommit, singles
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentKind, SegmentRecord
from nadi.segmentstore.state.stored import PAIR, TABLES, ContainerState, pack_extent, record_changes, state_change
from nadi.segmentstore.tier1.log import LogAddress

CHUNK = "container-0/000000000001/0"
SEGMENTS = (1, 2, 3)
Extents = dict[int, Extent]


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[ContainerMetadata]:
    opened = ContainerMetadata(tmp_path / "state", 0)
    for segment in SEGMENTS:
        opened.commit(record_changes(SegmentRecord(segment, f"s/t/{segment}.#epoch.0", SegmentKind.STREAM, 0)))
    opened.commit([state_change(ContainerState(9, 4))])
    yield opened
    opened.close()


def in_log(offset: int, length: int, sequence: int, *, run: int = 0, checksums: bytes = b"abcd") -> Extent:
    frame = FrameRef(sequence, LogAddress(sequence, 1 + sequence // 7, 4_096 * sequence), 0.0)
    return Extent(offset, length, frame, 33 + offset % 64, checksums=checksums, continues=offset % 5 == 1, run=run)


def in_chunk(offset: int, length: int) -> Extent:
    return Extent(offset, length, None, 0, f"{CHUNK}-{offset}", b"abcd")


def fields_of(extent: Extent) -> tuple[object, ...]:
    frame = None if extent.frame is None else extent.frame.address
    place = (extent.position, extent.chunk, extent.checksums, extent.continues, extent.run)
    return extent.offset, extent.length, frame, *place


def put(
    metadata: ContainerMetadata, segment: int, changed: dict[int, Extent | None], stored: int = commit.EVERYWHERE
) -> None:
    metadata.commit([], extents=[(segment, changed, stored)])


def check(metadata: ContainerMetadata, expected: dict[int, Extents]) -> None:
    for segment, extents in expected.items():
        record = metadata.load(segment, {})
        assert record is not None
        assert [fields_of(e) for e in record.extents] == [fields_of(extents[offset]) for offset in sorted(extents)]
        assert record.log_bytes == sum(extent.length for extent in extents.values() if extent.frame is not None)


def rows_of(metadata: ContainerMetadata) -> list[tuple[bytes, bytes]]:
    return metadata.page("extents", b"", 100_000)


def test_log_extents_share_rows_and_read_back_unchanged(metadata: ContainerMetadata) -> None:
    extents = {offset: in_log(offset, 10, 5 + offset) for offset in range(0, 1_000, 10)}
    put(metadata, 1, dict(extents))
    assert [PAIR.unpack(key)[1] for key, _ in rows_of(metadata)] == [0, 420, 840]
    assert [commit.row_length(value) for _, value in rows_of(metadata)] == [420, 420, 160]
    assert all(len(value) < 2_000 for _, value in rows_of(metadata)), "else LMDB stores them in separate pages"
    check(metadata, {1: extents, 2: {}})


def shared_row(extents: list[Extent]) -> bytes:
    parts = b"".join(pack_extent(extent).replace(b"\0abcd", b"abcd") for extent in extents)
    return commit._HEAD.pack(extents[-1].end - extents[0].offset | 1 << 63, len(extents)) + parts


def test_shared_rows_split_into_single_extent_rows() -> None:
    """Readers need to know only one format."""
    extents = [in_log(100 + 10 * number, 10, 5 + number) for number in range(3)]
    shared = shared_row(extents)
    alone = [(PAIR.pack(1, extent.offset), pack_extent(extent)) for extent in extents]
    assert list(singles([(PAIR.pack(1, 100), shared)])) == alone
    assert list(singles(alone)) == alone


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_read_back(metadata: ContainerMetadata, tmp_path: Path, seed: int) -> None:
    """Appends, gaps, separate files, chunks in place of any range, truncations, and merges."""
    chance = random.Random(seed)
    expected: dict[int, Extents] = {segment: {} for segment in SEGMENTS}
    changes: dict[int, dict[int, Extent | None]] = {segment: {} for segment in SEGMENTS}
    ends, stored = dict.fromkeys(SEGMENTS, 0), dict.fromkeys(SEGMENTS, 0)
    for step in range(400):
        segment = chance.choice(SEGMENTS)
        extents, changed = expected[segment], changes[segment]
        match chance.choice(["append"] * 6 + ["move", "move", "truncate", "mark", "merge", "write", "write"]):
            case "append":
                for _ in range(chance.choice([1, 3, 60])):
                    length = chance.randint(1, 50)
                    run, checksums = chance.choice([(0, b"abcd")] * 20 + [(3, b"abcd"), (0, b"")])
                    extent = in_log(ends[segment], length, step + 1, run=run, checksums=checksums)
                    extents[extent.offset] = changed[extent.offset] = extent
                    ends[segment] += length
            case "move" if extents:
                offsets = sorted(extents)
                first = chance.randrange(len(offsets))
                some = offsets[first : first + chance.choice([1, 5, 100])]
                length = extents[some[-1]].end - some[0]
                for offset in some:
                    del extents[offset]
                    changed[offset] = None
                extents[some[0]] = changed[some[0]] = in_chunk(some[0], length)
            case "truncate" if extents:
                offsets = sorted(extents)
                for offset in offsets[: chance.randrange(len(offsets))]:
                    del extents[offset]
                    changed[offset] = None
            case "mark" if extents:
                extent = extents[chance.choice(sorted(extents))]
                extent.continues = not extent.continues
                changed[extent.offset] = extent
            case "merge":  # of a segment that was never written
                for number in range(chance.choice([2, 50])):
                    extent = in_log(ends[segment] + 7 * number, 7, step + 1)
                    extents[extent.offset] = changed[extent.offset] = extent
                ends[segment] = extent.end + chance.choice([0, 11])
            case "write":
                put(metadata, segment, changed, stored[segment])
                changes[segment], stored[segment] = {}, ends[segment]
    for segment in SEGMENTS:
        put(metadata, segment, changes[segment], stored[segment])
    check(metadata, expected)
    of_chunks = [
        (segment, extent.offset, extent.length, extent.chunk)
        for segment in SEGMENTS
        for _, extent in sorted(expected[segment].items())
        if extent.frame is None
    ]
    assert list(metadata.chunks()) == of_chunks
    kept = dict(singles(rows_of(metadata)))
    assert kept == {
        PAIR.pack(segment, offset): pack_extent(extent)
        for segment in SEGMENTS
        for offset, extent in expected[segment].items()
    }


def test_rewriting_part_of_a_damaged_row_does_not_hide_the_damage(metadata: ContainerMetadata, tmp_path: Path) -> None:
    """When half of a row is removed, the other half is rewritten, and must not get a valid checksum."""
    put(metadata, 1, {offset: in_log(offset, 10, 5) for offset in range(0, 100, 10)})
    metadata.close()
    with lmdb.open(str(tmp_path / "state"), max_dbs=len(TABLES)) as env, env.begin(write=True) as txn:
        table = env.open_db(b"extents", txn=txn)
        key, raw = next(iter(txn.cursor(db=table)))
        txn.put(bytes(key), bytes(raw[:40]) + bytes([raw[40] ^ 1]) + bytes(raw[41:]), db=table)
    opened = ContainerMetadata(tmp_path / "state", 0)
    before = records_of_open(opened)
    with pytest.raises(DamagedStateError):
        put(opened, 1, dict.fromkeys(range(0, 50, 10)))
    assert records_of_open(opened) == before
    opened.close()


def records_of_open(metadata: ContainerMetadata) -> dict[bytes, bytes]:
    with metadata._env.begin(db=metadata._tables["extents"]) as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def test_extents_after_a_gap_are_read(metadata: ContainerMetadata) -> None:
    put(metadata, 1, {100: in_chunk(100, 10), 110: in_chunk(110, 10), 120: in_log(120, 10, 5), 130: in_log(130, 10, 5)})
    put(metadata, 1, {50: in_chunk(50, 10), 60: None, 100: None, 120: None})
    check(metadata, {1: {50: in_chunk(50, 10), 110: in_chunk(110, 10), 130: in_log(130, 10, 5)}})


def test_commit_reads_only_rows_with_changed_extents(
    metadata: ContainerMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many rows, the oldest are replaced and new ones added without reading those between."""
    chunks = {offset: in_chunk(offset, 10) for offset in range(0, 10_000, 10)}
    put(metadata, 1, dict(chunks))
    put(metadata, 1, {offset: in_log(offset, 10, 5) for offset in range(10_000, 10_500, 10)})
    asked = []
    neighbours = StateCommit.neighbours

    def counted(commit: StateCommit, table: str, key: bytes) -> tuple[bytes, bytes, bytes]:
        asked.append(key)
        return neighbours(commit, table, key)

    monkeypatch.setattr(StateCommit, "neighbours", counted)
    put(metadata, 1, {offset: in_log(offset, 10, 9) for offset in range(10_500, 10_700, 10)})
    assert len(asked) == 1
    asked.clear()
    put(metadata, 1, {offset: in_log(offset, 10, 9) for offset in range(10_700, 11_000, 10)}, 10_700)
    assert not asked
    both: dict[int, Extent | None] = {0: in_chunk(0, 30), 10: None, 20: None}
    put(metadata, 1, both | {offset: in_log(offset, 10, 11) for offset in range(11_000, 11_500, 10)})
    assert len(asked) == 4
