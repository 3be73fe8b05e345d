"""Bytes of a chunk and which of its blocks are damaged: the same from a folder as from any object store."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from nadi.errors import NotFoundError, UnavailableError
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, checksums_of
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError

NAME = "container-0/a chunk"
STORED = random.Random(1).randbytes(3 * BLOCK_BYTES + 777)


@pytest.mark.parametrize("flipped", [None, 0, BLOCK_BYTES - 1, 2 * BLOCK_BYTES, len(STORED) - 1])
@pytest.mark.parametrize("kept", [len(STORED), len(STORED) - 1, 2 * BLOCK_BYTES + 5, 2 * BLOCK_BYTES, 0])
@pytest.mark.parametrize(("position", "length"), [(0, len(STORED)), (BLOCK_BYTES, BLOCK_BYTES), (3 * BLOCK_BYTES, 777)])
async def test_what_is_missing_or_damaged_is_told(
    chunks: ChunkStore, flipped: int | None, kept: int, position: int, length: int
) -> None:
    there = bytearray(STORED)
    if flipped is not None:
        there[flipped] ^= 1
    del there[kept:]
    wrong = set(range(kept // BLOCK_BYTES, -(-len(STORED) // BLOCK_BYTES))) if kept < len(STORED) else set()
    if flipped is not None:
        wrong.add(flipped // BLOCK_BYTES)
    checksums = checksums_of(NAME, [STORED])

    await chunks.put(NAME, [bytes(there)])
    data, damaged = await chunks.read_checked(NAME, position, length, checksums)
    assert bytes(data) == there[position : position + length]
    blocks = range(position // BLOCK_BYTES, -(-(position + length) // BLOCK_BYTES))
    assert damaged == [block for block in blocks if block in wrong]


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
async def test_what_is_no_file_is_told_at_once(tmp_path: Path, kind: str) -> None:
    chunks = ChunkStore.in_folder(tmp_path)
    place = tmp_path / NAME
    place.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(place)

    async with asyncio.timeout(60):
        with pytest.raises(DiskReadError, match="can't read chunk"):
            await chunks.read_checked(NAME, 0, 10, b"")
        for read in (chunks.read(NAME, 0, 10), chunks.description(NAME, 10)):
            with pytest.raises((UnavailableError, NotFoundError)):
                await read


def test_a_chunk_that_is_not_there(chunks: ChunkStore) -> None:
    with pytest.raises(NotFoundError, match="is not in tier 2"):
        asyncio.run(chunks.read_checked(NAME, 0, 10, b""))
