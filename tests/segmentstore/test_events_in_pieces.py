"""A large event is appended in pieces: wherever they are stored, none of them counts as the start of an event.

The events consist of zeros, which look like headers of empty events.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nadi.model.framing import frame_events
from nadi.segmentstore import storage_writer
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.wire import commands as wire
from tests.segmentstore.harness import WRITER, Peer, open_store
from tests.segmentstore.test_boundaries import locate
from tests.segmentstore.test_stored_bytes import (
    TXN,
    S,
    assert_read,
    chunk_path,
    flip,
    killed,
    log_place,
    move,
    record_of,
    write,
)

pytestmark = [pytest.mark.uvloop, pytest.mark.usefixtures("nothing_in_memory")]

__all__ = ["killed"]  # a fixture

PIECE_BYTES = 300_000
PIECES = 8
Between = Callable[[int], Awaitable[None]]


async def nothing(_: int) -> None:
    pass


_ids = itertools.count(1)


async def write_large(peer: Peer, segment: str, between: Between = nothing) -> bytes:
    """Append an event of `PIECES` pieces through a transient segment; `between` is called after each of them."""
    data = frame_events([bytes(PIECES * PIECE_BYTES - 8)])
    number = next(_ids)
    made = await peer.ask(wire.CreateTransientSegment(number, WRITER, segment, ""))
    writer = number.to_bytes(16, "big")
    await peer.setup(made.segment, writer)
    for piece in range(PIECES):
        part = data[piece * PIECE_BYTES :][:PIECE_BYTES]
        reply = await peer.ask(wire.ConditionalBlockEnd(writer, piece, piece * PIECE_BYTES, part, 3))
        assert isinstance(reply, wire.DataAppended)
        await between(piece)
    assert isinstance(await peer.ask(wire.MergeSegments(4, segment, made.segment, "")), wire.SegmentsMerged)
    return data


async def spoil(store: SegmentStore, folder: Path, offset: int) -> None:
    """Flip a bit of that byte of the segment, where it is stored."""
    record = record_of(store, S)
    extent = record.extents[record.extent_index(offset)]
    path, begin = (chunk_path(folder, extent), 0) if extent.chunk else log_place(folder, extent)
    flip(path, begin + offset - extent.offset)


@pytest.mark.parametrize("tier", [1, 2])
async def test_each_piece_is_within_the_event(tmp_path: Path, tier: int) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        data = await write(peer, S, 2)
        begin = len(data)
        data += await write_large(peer, S)
        end = len(data)
        data += await write(peer, S, 2, seed=1)
        if tier == 2:
            await move(store)
        for target in (begin + 1, begin + PIECE_BYTES, begin + 5 * PIECE_BYTES, end - 1, end):
            assert await locate(peer, target) == end
        record = record_of(store, S)
        first = record.extents[record.extent_index(begin + 9)].offset  # 0, unless frames were slow
        await spoil(store, tmp_path, begin + 9)
        gap = (first + (begin - first) // BLOCK_BYTES * BLOCK_BYTES if tier == 2 else begin, end)
        await assert_read(store, S, data, gap)
    async with open_store(tmp_path, 1) as (store, peer):
        await assert_read(store, S, data, gap)


@pytest.mark.parametrize("moved_after", [{0}, {3}, {0, 1, 4}, {PIECES - 1}])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_pieces_that_lie_in_chunks_before_they_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved_after: set[int], *, in_transaction: bool
) -> None:
    """Chunks have no boundaries within the event, nor do chunks compacted from them; its end is retained."""
    monkeypatch.setattr(storage_writer, "COMPACT_FROM", 2)
    monkeypatch.setattr(storage_writer, "SMALL_BYTES", 1 << 30)

    async with open_store(tmp_path, 1) as (store, peer):

        async def between(piece: int) -> None:
            if piece in moved_after:
                await move(store)

        if in_transaction:
            await peer.create(TXN)
            data = await write_large(peer, TXN, between) + await write(peer, TXN, 2)
            await peer.create(S)
            assert isinstance(await peer.ask(wire.MergeSegments(9, S, TXN, "")), wire.SegmentsMerged)
        else:
            await peer.create(S)
            data = await write_large(peer, S, between)
            data += await write(peer, S, 2)
        end = PIECES * PIECE_BYTES
        await spoil(store, tmp_path, 9)
        await assert_read(store, S, data, (0, end))
        await spoil(store, tmp_path, 9)
        await move(store)
        store.storage_writers[0]._fresh.add(record_of(store, S).id)
        for _ in range(2):
            await spoil(store, tmp_path, 9)
            await assert_read(store, S, data, (0, end))
            await spoil(store, tmp_path, 9)
            await store.storage_writers[0]._compact_once()
        assert len(record_of(store, S).extents) == 1
        await assert_read(store, S, data)


async def test_a_chunk_that_begins_within_the_event_tells_where_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a small chunk, and after compaction."""
    monkeypatch.setattr(storage_writer, "COMPACT_FROM", 2)

    async with open_store(tmp_path, 1) as (store, peer):

        async def between(piece: int) -> None:
            if piece in (1, PIECES - 2):
                await move(store)

        await peer.create(S)
        data = await write_large(peer, S, between)
        end = len(data)
        data += await write(peer, S, 1)
        await move(store)
        first, second, last = record_of(store, S).extents
        assert [extent.continues for extent in (first, second, last)] == [False, True, True]
        assert last.length < BLOCK_BYTES
        await spoil(store, tmp_path, 9)
        await assert_read(store, S, data, (0, end))
        await spoil(store, tmp_path, 9)
        data += await write(peer, S, 1, seed=1)
        await move(store)
        monkeypatch.setattr(storage_writer, "SMALL_BYTES", BLOCK_BYTES)
        store.storage_writers[0]._fresh.add(record_of(store, S).id)
        await store.storage_writers[0]._compact_once()
        assert [extent.continues for extent in record_of(store, S).extents] == [False, True, True]
        await spoil(store, tmp_path, 9)
        await assert_read(store, S, data, (0, end))
