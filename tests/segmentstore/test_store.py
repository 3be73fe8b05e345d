"""The segment store through its real door: a socket, real files, real fsync."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nadi.errors import DataFolderError, DataFolderLockedError, DataFolderVersionError
from nadi.model.framing import frame_events
from nadi.segmentstore.datafolder import StoreFile
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from tests.segmentstore.harness import WRITER, connect, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
T = "scope/table_kvtable/0.#epoch.0"
OTHER = b"other writer 123"


async def test_append_read_and_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        assert isinstance(await peer.create(S), wire.SegmentCreated)
        assert isinstance(await peer.create(S), wire.SegmentAlreadyExists)
        assert await peer.setup(S) == NO_VERSION
        first = await peer.append([b"a", b"bb"], 2)
        assert (first.event_number, first.previous_event_number) == (2, NO_VERSION)
        assert first.current_segment_write_offset == 19
        second = await peer.append([b"ccc"], 3)
        assert (second.event_number, second.previous_event_number) == (3, 2)
        assert await peer.read_all(S) == frame_events([b"a", b"bb", b"ccc"])
    async with open_store(tmp_path) as (_, peer):
        assert await peer.read_all(S) == frame_events([b"a", b"bb", b"ccc"])
        assert await peer.setup(S) == 3
        assert (await peer.append([b"d"], 4)).previous_event_number == 3
        assert await peer.read_all(S, 30) == frame_events([b"d"])


async def test_two_connections_with_one_writer(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"x"], 1)
        address = store.address
        second = await connect(address)
        assert await second.setup(S) == 1
        await second.append([b"y"], 2)
        late = await peer.append([b"y"], 2)  # the old connection must not interleave
        assert isinstance(late, wire.InvalidEventNumber)
        assert await peer.closed()
        assert await second.read_all(S) == frame_events([b"x", b"y"])
        second.close()


async def test_seal_truncate_delete(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"0123456789"], 1)
        await peer.append([b"0123456789"], 2)
        assert isinstance(await peer.ask(wire.TruncateSegment(1, S, 18, "")), wire.SegmentTruncated)
        assert (await peer.ask(wire.ReadSegment(S, 0, 100, "", 2))) == wire.SegmentIsTruncated(2, S, 18, "", 0)
        assert isinstance(await peer.ask(wire.TruncateSegment(1, S, 99, "")), wire.SegmentIsTruncated)
        peer.send(wire.ReadSegment(S, 36, 100, "", 7))  # waits at the tail
        peer.send(wire.SealSegment(8, S, ""))
        replies = [await peer.receive(), await peer.receive()]
        assert wire.SegmentSealed(8, S) in replies
        end = next(r for r in replies if isinstance(r, wire.SegmentRead))
        assert (end.offset, end.end_of_segment, bytes(end.data)) == (36, True, b"")
        assert isinstance(await peer.append([b"z"], 3), wire.SegmentIsSealed)
        assert isinstance(await peer.ask(wire.SealSegment(9, S, "")), wire.SegmentIsSealed)
        info = await peer.ask(wire.GetStreamSegmentInfo(3, S, ""))
        assert (info.is_sealed, info.start_offset, info.write_offset) == (True, 18, 36)
        assert isinstance(await peer.ask(wire.DeleteSegment(4, S, "")), wire.SegmentDeleted)
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(5, S, "")), wire.NoSuchSegment)
        reply = await peer.ask(wire.ReadSegment(S, 5, 100, "", 6))
        assert reply == wire.NoSuchSegment(6, S, "", 5)


async def test_long_poll_wakes(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        await peer.create(S)
        await peer.setup(S)
        peer.send(wire.ReadSegment(S, 0, 1 << 20, "", 5))
        peer.send(wire.AppendBlockEnd(WRITER, 9, frame_events([b"q"]), 1, 1, 6))
        replies = [await peer.receive(), await peer.receive()]
        read = next(r for r in replies if isinstance(r, wire.SegmentRead))
        assert (bytes(read.data), read.at_tail, read.request_id) == (frame_events([b"q"]), True, 5)


async def test_conditional_append(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        await peer.create(S)
        await peer.setup(S)
        ok = await peer.ask(wire.ConditionalAppend(WRITER, 1, 0, 0, b"hi", 3))
        assert ok.current_segment_write_offset == 10
        assert isinstance(
            await peer.ask(wire.ConditionalAppend(WRITER, 2, 0, 0, b"no", 4)), wire.ConditionalCheckFailed
        )
        ok = await peer.ask(wire.ConditionalBlockEnd(WRITER, 3, 10, b"raw", 5))
        assert (ok.event_number, ok.previous_event_number, ok.current_segment_write_offset) == (3, 1, 13)
        assert await peer.read_all(S) == frame_events([b"hi"]) + b"raw"


async def test_merge_keeps_order_and_survives_restart(tmp_path: Path) -> None:
    txn = S + "#transaction." + "0" * 31 + "1"

    async with open_store(tmp_path) as (_, peer):
        await peer.create(S)
        await peer.create(txn)
        await peer.setup(S)
        await peer.setup(txn, OTHER)
        await peer.append([b"before"], 1)
        await peer.append([b"in txn"], 1, OTHER)
        merged = await peer.ask(wire.MergeSegmentsBatch(1, S, (txn, "scope/stream/0.#epoch.0#gone"), ""))
        assert merged.merged == ((txn, 28), ("scope/stream/0.#epoch.0#gone", 28))
        await peer.append([b"after!"], 2)
        assert isinstance(await peer.ask(wire.MergeSegments(2, S, txn, "")), wire.NoSuchSegment)
        assert await peer.read_all(S) == frame_events([b"before", b"in txn", b"after!"])
    async with open_store(tmp_path) as (_, peer):
        assert await peer.read_all(S) == frame_events([b"before", b"in txn", b"after!"])


async def test_a_large_event_for_a_sealed_segment_is_refused_at_its_first_piece(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        await peer.create(S)
        made = await peer.ask(wire.CreateTransientSegment(1, WRITER, S, ""))
        await peer.setup(made.segment)
        first = await peer.ask(wire.ConditionalBlockEnd(WRITER, 0, 0, b"first", 2))
        assert isinstance(first, wire.DataAppended)
        await peer.ask(wire.SealSegment(3, S, ""))
        second = await peer.ask(wire.ConditionalBlockEnd(WRITER, 1, 5, b"second", 4))
        assert second == wire.SegmentIsSealed(4, S, "", 1)


async def test_a_connection_forgets_the_transient_segments_that_are_no_more(tmp_path: Path) -> None:
    """A client that writes large events for months has one connection."""

    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        made = [(await peer.ask(wire.CreateTransientSegment(n, WRITER, S, ""))).segment for n in range(1, 6)]
        (connection,) = store._connections
        assert connection._commands._transients == set(made)
        assert isinstance(await peer.ask(wire.MergeSegments(6, S, made[0], "")), wire.SegmentsMerged)
        assert isinstance(await peer.ask(wire.DeleteSegment(7, made[1], "")), wire.SegmentDeleted)
        merged = await peer.ask(wire.MergeSegmentsBatch(8, S, tuple(made[2:4]), ""))
        assert isinstance(merged, wire.SegmentsBatchMerged)
        assert connection._commands._transients == {made[4]}


async def test_transient_segments_go_with_their_connection(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        other = await connect(store.address)
        made = await other.ask(wire.CreateTransientSegment(1, WRITER, S, ""))
        assert made.segment.startswith(S + "#transient.")
        other.close()
        look = wire.GetStreamSegmentInfo(2, made.segment, "")
        async with asyncio.timeout(60):
            while not isinstance(await peer.ask(look), wire.NoSuchSegment):  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0.02)


async def test_attributes(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        await peer.create(S)
        assert (await peer.ask(wire.GetSegmentAttribute(1, S, OTHER, ""))).value == NO_VERSION
        assert (await peer.ask(wire.UpdateSegmentAttribute(2, S, OTHER, 5, NO_VERSION, ""))).success
        assert not (await peer.ask(wire.UpdateSegmentAttribute(3, S, OTHER, 6, 4, ""))).success
        assert (await peer.ask(wire.UpdateSegmentAttribute(4, S, OTHER, 6, 5, ""))).success
    async with open_store(tmp_path) as (_, peer):
        assert (await peer.ask(wire.GetSegmentAttribute(1, S, OTHER, ""))).value == 6


def entry(key: bytes, value: bytes, version: int = NO_VERSION) -> TableEntry:
    return TableEntry(key, version, value)


async def test_tables(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        put = await peer.ask(wire.UpdateTableEntries(2, T, "", (entry(b"k", b"v", NOT_EXISTS), entry(b"a", b"b"))))
        assert put.versions == (0, 19)
        again = await peer.ask(wire.UpdateTableEntries(3, T, "", (entry(b"k", b"w", NOT_EXISTS),)))
        assert isinstance(again, wire.TableKeyBadVersion)
        missing = await peer.ask(wire.UpdateTableEntries(3, T, "", (entry(b"zz", b"w", 7),)))
        assert isinstance(missing, wire.TableKeyDoesNotExist)
        twice = (entry(b"k", b"1", 0), entry(b"k", b"2", 0))
        assert (await peer.ask(wire.UpdateTableEntries(4, T, "", twice))).versions == (38, 57)
        read = await peer.ask(wire.ReadTable(5, T, "", (TableKey(b"k"), TableKey(b"none"))))
        assert read.entries == (TableEntry(b"k", 57, b"2"), TableEntry(b"none", NOT_EXISTS, b""))
        delta = await peer.ask(wire.ReadTableEntriesDelta(6, T, "", 0, 10))
        assert [e.key for e in delta.entries] == [b"a", b"k"]
        assert (delta.reached_end, delta.last_position) == (True, 76)
        empty = await peer.ask(wire.ReadTableEntriesDelta(7, T, "", 76, 10))
        assert (empty.entries, empty.reached_end, empty.last_position) == ((), True, 76)
        await peer.ask(wire.RemoveTableKeys(8, T, "", (TableKey(b"a"),)))
        for _ in range(2):  # before and after a checkpoint
            page = await peer.ask(wire.ReadTableEntries(9, T, "", 10, (b"", b"", b"")))
            assert page.entries == (TableEntry(b"k", 57, b"2"),)
            end = await peer.ask(wire.ReadTableEntries(9, T, "", 10, (page.continuation_token, b"", b"")))
            assert end.entries == ()
            await store.containers[0].checkpoints.ended()
            store.containers[0].checkpoints.start()
            await store.containers[0].checkpoints.ended()
        info = await peer.ask(wire.GetTableSegmentInfo(10, T, ""))
        assert info.entry_count == 1
        assert isinstance(await peer.ask(wire.DeleteTableSegment(11, T, True, "")), wire.TableSegmentNotEmpty)
    async with open_store(tmp_path, 1) as (_, peer):
        read = await peer.ask(wire.ReadTable(5, T, "", (TableKey(b"k"), TableKey(b"a"))))
        assert read.entries == (TableEntry(b"k", 57, b"2"), TableEntry(b"a", NOT_EXISTS, b""))


@pytest.mark.parametrize(
    "junk",
    [
        b"\0\0\0\x63" + b"\0\0\0\x04" + b"1234",  # unknown type
        b"\0\0\0\x09" + b"\x7f\xff\xff\xff",  # longer than any frame
        b"\0\0\0\x09" + b"\0\0\0\x02" + b"\xff\xff",  # a string longer than its frame
        b"\0\0\0\x04" + b"\0\0\0\x30" + WRITER + b"\0" * 12 + b"\0\0\0\x01" + b"\0" * 16,  # no SetupAppend
    ],
)
async def test_a_malformed_frame_ends_only_its_connection(tmp_path: Path, junk: bytes) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        bad = await connect(store.address)
        bad.send_raw(junk)
        assert await bad.closed()
        await peer.setup(S)
        assert isinstance(await peer.append([b"fine"], 1), wire.DataAppended)


async def test_history_moves_to_tier_2_and_reads_the_same(tmp_path: Path) -> None:
    events = [bytes([65 + n % 26]) * 100_000 for n in range(60)]
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        await peer.setup(S)
        for number, event in enumerate(events):
            await peer.append([event], number + 1)
        while await store.storage_writers[0].flush_once(everything=True):
            pass
        record = store.containers[0].state.find(S)
        assert record is not None
        assert record.log_bytes == 0
        assert all(extent.chunk for extent in record.extents)
        assert await peer.read_all(S) == frame_events(events)
    async with open_store(tmp_path, 1) as (store, peer):
        assert await peer.read_all(S) == frame_events(events)
        assert store.containers[0].log.size_bytes < 100_000_000


async def test_the_folder_is_guarded(tmp_path: Path) -> None:
    async with open_store(tmp_path):
        with pytest.raises(DataFolderLockedError, match="in use by another server"):
            SegmentStore(tmp_path)
    with pytest.raises(DataFolderError, match="2 containers"):
        SegmentStore(tmp_path, 3)
    StoreFile(99, "other", 2).write(tmp_path)
    with pytest.raises(DataFolderVersionError, match="format 99"):
        SegmentStore(tmp_path)


async def test_pipelined_commands_keep_their_order(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        peer.send(
            wire.CreateSegment(1, S, 0, 0, ""),
            wire.SetupAppend(2, WRITER, S, ""),
            wire.AppendBlockEnd(WRITER, 9, frame_events([b"q"]), 1, 1, 3),
            wire.SealSegment(4, S, ""),
            wire.ReadSegment(S, 0, 100, "", 5),
        )
        kinds = [type(await peer.receive()).__name__ for _ in range(5)]
        assert kinds == ["SegmentCreated", "AppendSetup", "DataAppended", "SegmentSealed", "SegmentRead"]
