"""Requirements on every chunk store, run on each kind that needs no network: see `conftest`."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from pathlib import Path

import pytest

from nadi.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, checksums_of
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.spark.reading.direct import open_marked

NAME = "container-0/a chunk"
STORED = random.Random(1).randbytes(3 * BLOCK_BYTES + 777)


async def test_chunk_is_read_in_parts(chunks: ChunkStore) -> None:
    await chunks.put(NAME, [b"ab", memoryview(b"cd"), b"", b"efgh"])
    assert bytes(await chunks.read(NAME, 0, 8)) == b"abcdefgh"
    assert bytes(await chunks.read(NAME, 3, 2)) == b"de"
    assert bytes(await chunks.read(NAME, 6, 100)) == b"gh"
    assert bytes(await chunks.read(NAME, 8, 1)) == b""
    assert bytes(await chunks.read(NAME, 100, 1)) == b""
    await chunks.put(NAME, [b"abcdefgh"])  # an attempt whose answer was lost
    assert bytes(await chunks.read(NAME, 0, 100)) == b"abcdefgh"
    await chunks.replace(NAME, [b"another"])
    assert bytes(await chunks.read(NAME, 0, 100)) == b"another"


async def test_one_that_is_not_there(chunks: ChunkStore) -> None:
    for read in (chunks.read(NAME, 0, 1), chunks.read_checked(NAME, 0, 1, b""), chunks.description(NAME, 0)):
        with pytest.raises(NotFoundError, match=NAME):
            await read
    assert await chunks.describe(NAME, 0) is None
    await chunks.delete(NAME)
    with pytest.raises(UnavailableError):
        await chunks.rename(NAME, NAME + "2")


async def test_deleted_or_renamed_chunk_is_missing(chunks: ChunkStore) -> None:
    for name in (NAME, "container-0/b", "container-1/c"):
        await chunks.put(name, [name.encode()])
    assert await chunks.listed("container-0") == {NAME: len(NAME), "container-0/b": 13}
    assert chunks.sizes("container-1/") == {"container-1/c": 13}
    await chunks.rename("container-0/b", "container-0/d")
    await chunks.delete(NAME)
    await chunks.delete(NAME)
    assert await chunks.listed("container-0") == {"container-0/d": 13}
    assert bytes(await chunks.read("container-0/d", 0, 13)) == b"container-0/b"
    with pytest.raises(NotFoundError):
        await chunks.read(NAME, 0, 1)


async def test_damaged_blocks_are_reported(chunks: ChunkStore) -> None:
    await chunks.put(NAME, [b"its dat!"])
    for known, expected in ((checksums_of(NAME, [b"its data"]), [0]), (checksums_of(NAME, [b"its dat!"]), [])):
        data, damaged = await chunks.read_checked(NAME, 0, 8, known)
        assert (bytes(data), damaged) == (b"its dat!", expected)


async def test_a_store_has_a_mark_of_its_own(chunks: ChunkStore, tmp_path: Path) -> None:
    mark = await chunks.mark()
    assert len(mark) == 32
    assert await chunks.mark() == mark
    assert await ChunkStore.in_folder(tmp_path / "another").mark() != mark
    if chunks.url.startswith("memory"):
        with pytest.raises(NotFoundError):
            await open_marked(chunks.url, mark)
        return
    await chunks.put(NAME, [b"data"])
    same = await open_marked(chunks.url, mark)
    assert bytes(await same.read(NAME, 0, 9)) == b"data"
    assert await same.mark() == mark
    for url, other in ((chunks.url, "0" * 32), ((tmp_path / "none").as_uri(), mark), (tmp_path.as_uri(), mark)):
        with pytest.raises(NotFoundError):
            await open_marked(url, other)
    assert not (tmp_path / "none").exists()


def test_free_space_is_reported_if_known(chunks: ChunkStore) -> None:
    assert chunks.free_bytes() > 0
    chunks.check_free_space(1)


@pytest.mark.parametrize(
    ("url", "config", "named"),
    [
        ("ftp://host/folder", {}, "ftp://host/folder"),
        ("/a/folder", {}, "/a/folder"),
        ("", {}, "''"),
        ("s3:/bucket/prefix", {}, "s3://bucket/prefix"),
        ("gs:///prefix", {}, "gs://bucket/prefix"),
        ("file://host/folder", {}, "file:///path"),
        ("file:///folder", {"endpoint": "x"}, "file:///folder"),
        ("s3://bucket/prefix", {"nonsense": "1"}, "nonsense"),
        ("az://container/prefix", {}, "Account must be specified"),
    ],
)
def test_invalid_store_url_is_refused(url: str, config: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named) as caught:
        ChunkStore.from_url(url, **config)
    assert "Debug source" not in str(caught.value)


async def test_unreachable_store_raises_an_error_soon() -> None:
    keys = {"access_key_id": "a", "secret_access_key": "b", "region": "r"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without a listener
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        chunks = ChunkStore.from_url("s3://bucket/prefix", endpoint=endpoint, **keys)
        async with asyncio.timeout(60):
            with pytest.raises(UnavailableError):
                await chunks.put(NAME, [b"x"])
            with pytest.raises(UnavailableError):
                await chunks.read(NAME, 0, 1)


async def test_listing_includes_modification_times(chunks: ChunkStore) -> None:
    before = time.time()
    assert [page async for page in chunks.pages("container-0") if page] == []
    for name in (NAME, "container-0/b/c", "container-10/d"):
        await chunks.put(name, [b"12345"])
    found = [one async for page in chunks.pages("container-0") for one in page]
    assert {one.name for one in found} == {NAME, "container-0/b/c"}
    assert all(one.size_bytes == 5 for one in found)
    assert all(abs(one.modified_ms / 1000 - before) < 60 for one in found)


@pytest.mark.parametrize("flipped", [None, 0, BLOCK_BYTES - 1, 2 * BLOCK_BYTES, len(STORED) - 1])
@pytest.mark.parametrize("kept", [len(STORED), len(STORED) - 1, 2 * BLOCK_BYTES + 5, 2 * BLOCK_BYTES, 0])
@pytest.mark.parametrize(("position", "length"), [(0, len(STORED)), (BLOCK_BYTES, BLOCK_BYTES), (3 * BLOCK_BYTES, 777)])
async def test_missing_or_damaged_chunk_raises_an_error(
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
async def test_pipe_in_place_of_a_chunk_raises_an_error(tmp_path: Path, kind: str) -> None:
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
        with pytest.raises(DiskReadError, match=NAME):
            await chunks.read_checked(NAME, 0, 10, b"")
        for read in (chunks.read(NAME, 0, 10), chunks.description(NAME, 10)):
            with pytest.raises((UnavailableError, NotFoundError)):
                await read
