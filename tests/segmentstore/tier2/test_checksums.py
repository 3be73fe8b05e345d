"""Checksums of chunks, chunks' descriptions, and their encoding in the state."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentKind, SegmentRecord
from nadi.segmentstore.state.stored import pack_extent, record_changes
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier2 import checksums
from nadi.segmentstore.tier2.checksums import ChunkDescription, boundaries_of, checksums_of, damaged_blocks

NAME = "container-0/000000000007/0000000000000000-8854d6b214c94b97b01167a3aae42149"
SMALL = 64  # blocks of the property tests


def test_golden_checksums() -> None:
    data = bytes(range(256)) * 5_000
    expected = bytes.fromhex("8378aac85d801cb8")
    assert checksums_of(NAME, [data]) == expected
    seeds = [crc32c(block.to_bytes(4, "little"), crc32c(NAME.encode())) for block in (0, 1)]
    crcs = [crc32c(data[: 1 << 20], seeds[0]), crc32c(data[1 << 20 :], seeds[1])]
    assert expected == b"".join(crc.to_bytes(4, "little") for crc in crcs)
    assert checksums_of(NAME, []) == b""


def test_golden_description() -> None:
    described = ChunkDescription(0, 7, "s/t/0.#epoch.0", 100, 9, b"\1\2\3\4", (0,), 300)
    tail = described.encode(NAME)
    encoded = "980007ae732f742f302e2365706f63682e306409c404010203049100cd012c1f0000002f4afddb"
    assert tail == bytes.fromhex(encoded) + b"nadichnk"
    assert ChunkDescription.decode(NAME, b"its data!" + tail) == described
    for at in range(len(tail)):
        damaged = bytearray(tail)
        damaged[at] ^= 1
        assert ChunkDescription.decode(NAME, damaged) is None
    for end in range(len(tail)):
        assert ChunkDescription.decode(NAME, tail[:end]) is None
    assert ChunkDescription.decode(NAME + "1", tail) is None


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "BLOCK_BYTES", SMALL)


@pytest.mark.usefixtures("small_blocks")
def test_just_the_damaged_blocks_are_found() -> None:
    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        stored = data.draw(st.binary(max_size=6 * SMALL))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stored)), max_size=4)))
        parts = [stored[a:b] for a, b in zip([0, *cuts], [*cuts, len(stored)], strict=True)]
        found = checksums_of(NAME, parts)
        assert found == checksums_of(NAME, [stored])
        blocks = -(-len(stored) // SMALL)
        assert len(found) == 4 * blocks
        first = data.draw(st.integers(0, blocks))
        count = data.draw(st.integers(0, blocks - first))
        begin, end = first * SMALL, min(len(stored), (first + count) * SMALL)
        fetched = bytearray(stored[begin:end])
        damaged = set()
        for at in data.draw(st.lists(st.integers(0, max(0, len(fetched) - 1)), max_size=3, unique=True)):
            if fetched:
                fetched[at] ^= data.draw(st.integers(1, 255))
                damaged.add(first + at // SMALL)
        kept = data.draw(st.integers(0, len(fetched)))
        damaged |= {first + at // SMALL for at in range(kept, len(fetched))}
        length = len(fetched)
        assert damaged_blocks(NAME, found, first, fetched[:kept], length) == sorted(damaged)

    check()


@pytest.mark.usefixtures("small_blocks")
def test_block_of_another_position_or_chunk_counts_as_damaged() -> None:
    block = b"x" * SMALL
    found = checksums_of(NAME, [block, block])
    assert damaged_blocks(NAME, found, 0, block + block, 2 * SMALL) == []
    assert damaged_blocks(NAME, found[4:] + found[:4], 0, block + block, 2 * SMALL) == [0, 1]
    assert damaged_blocks("another", found, 0, block + block, 2 * SMALL) == [0, 1]


@pytest.mark.usefixtures("small_blocks")
@given(st.lists(st.integers(0, 6 * SMALL), max_size=10), st.integers(1, 6 * SMALL))
def test_boundaries_lie_at_or_behind_their_blocks(begins: list[int], length: int) -> None:
    begins = sorted(begin for begin in begins if begin < length)
    found = boundaries_of(begins, length)
    assert len(found) == -(-length // SMALL)
    for block, boundary in enumerate(found):
        assert boundary == min((begin for begin in begins if begin >= block * SMALL), default=length)


def test_extents_of_this_and_of_earlier_versions(tmp_path: Path) -> None:
    metadata = ContainerMetadata(tmp_path)
    record = SegmentRecord(1, "scope/stream/0.#epoch.0", SegmentKind.STREAM, 0)
    frame = FrameRef(7, LogAddress(7, 2, 4_156), 0.0)
    record.extents = [
        Extent(0, 10, None, 0, NAME),
        Extent(10, 20, None, 0, NAME, b"\0\1\2\0"),
        Extent(30, 5, frame, 33),
        Extent(35, 5, frame, 38, checksums=b"\0\0\0\0"),
        Extent(40, 5, frame, 43, checksums=b"\0\0\0\0", continues=True),
        Extent(45, 5, None, 0, NAME, b"\0\1\2\0", continues=True),
    ]
    record.changed_extents = {extent.offset: extent for extent in record.extents}
    metadata.commit(record_changes(record), extents=[(1, record.changed_extents, 0)])
    loaded = metadata.load(1, {})
    assert loaded is not None
    for one, other in zip(record.extents, loaded.extents, strict=True):
        fields = ("offset", "length", "position", "chunk", "checksums", "continues")
        assert [getattr(one, field) for field in fields] == [getattr(other, field) for field in fields]
    assert list(metadata.chunks()) == [(1, 0, 10, NAME), (1, 10, 20, NAME), (1, 45, 5, NAME)]
    numbers = "000000000000000a" + "0" * 64
    assert pack_extent(record.extents[0]).hex() == numbers + NAME.encode().hex()
    assert pack_extent(record.extents[1]).hex()[80:] == NAME.encode().hex() + "00" + "00010200"
    metadata.close()


def test_chunk_description_marks_a_continued_event() -> None:
    def described(*boundaries: int) -> ChunkDescription:
        return ChunkDescription(0, 7, "s/t/0.#epoch.0", 100, 9, b"\1\2\3\4", boundaries)

    assert [described(*boundaries).continues for boundaries in ((0,), (5,), (9,))] == [False, True, True]
