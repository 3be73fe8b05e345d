"""A small read gets all requested bytes in one reply, wherever they are stored: official index readers rely on it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nadi.limits import KIB, MIB, READ_WHOLE_BYTES
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.reading.reads import CHUNK_BLOCK_BYTES
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
APPEND_BYTES = 700 * KIB
SIZES = (1, 200, 4096, READ_WHOLE_BYTES)


@pytest.fixture(autouse=True)
def moved_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StorageWriter, "start", lambda _: None)


async def write(peer: Peer) -> bytes:
    await peer.create(S)
    await peer.setup(S)
    data = b""
    for number in range(20):
        event = random.Random(number).randbytes(APPEND_BYTES - 8)
        await peer.append([event], number + 1)
        data += (0).to_bytes(4) + len(event).to_bytes(4) + event
    return data


async def read(peer: Peer, offset: int, size: int) -> wire.SegmentRead:
    reply = await peer.ask(wire.ReadSegment(S, offset, size, "", 1))
    assert isinstance(reply, wire.SegmentRead), reply
    return reply


async def check(peer: Peer, data: bytes, edge: int) -> None:
    for size in SIZES:
        for offset in (edge - size, edge - size // 2 - 1, edge - 1, edge):
            wanted = data[offset : offset + size]
            found = bytes((await read(peer, offset, size)).data)
            assert found[:size] == wanted, (edge, offset, size)
            assert len(found) <= max(size, 8)  # servers return at least eight bytes


def edges(store: SegmentStore) -> list[int]:
    """Return the edges of the pieces that are fetched."""
    record = store.containers[0].state.find(S)
    assert record is not None
    found = [extent.end for extent in record.extents[:-1]]
    for extent in record.extents:
        if extent.chunk:
            found += range(extent.offset + CHUNK_BLOCK_BYTES, extent.end, CHUNK_BLOCK_BYTES)
    return found


@pytest.mark.parametrize("cache_bytes", [0, 5 * MIB], ids=["cold", "small cache"])
async def test_small_reads_across_fetch_edges_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    monkeypatch.setattr("nadi.segmentstore.store.BlockCache", lambda: BlockCache(cache_bytes))
    async with open_store(tmp_path, 1) as (store, peer):
        data = await write(peer)
        assert len(edges(store)) >= 19
        for edge in edges(store):
            await check(peer, data, edge)
        while await store.storage_writers[0].flush_once(everything=True):
            pass
        in_chunks = edges(store)
        assert in_chunks
        for edge in in_chunks:
            await check(peer, data, edge)
        end = len(data)
        assert bytes((await read(peer, end - 100, 200)).data) == data[-100:]


def damage(folder: Path, chunk: str, at: int) -> None:
    (file,) = [found for found in folder.rglob("*") if found.is_file() and str(found).endswith(chunk)]
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte[0] ^ 1]))


async def test_read_before_damage_returns_the_intact_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.store.BlockCache", lambda: BlockCache(0))
    async with open_store(tmp_path, 1) as (store, peer):
        data = await write(peer)
        while await store.storage_writers[0].flush_once(everything=True):
            pass
        edge = edges(store)[-1]
        record = store.containers[0].state.find(S)
        assert record is not None
        extent = record.extents[record.extent_index(edge)]
        damage(tmp_path, extent.chunk, edge - extent.offset)
        assert bytes((await read(peer, edge - 50, 200)).data) == data[edge - 50 : edge]
        refused = await peer.ask(wire.ReadSegment(S, edge, 200, "", 2))
        assert not isinstance(refused, wire.SegmentRead)
