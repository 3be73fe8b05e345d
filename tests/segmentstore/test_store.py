"""The segment store over a socket, with real files and real fsync."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nadi.errors import DataFolderLockedError, DataFolderVersionError, InvalidArgumentError
from nadi.model.framing import frame_events
from nadi.segmentstore.data_dir import StoreFile
from nadi.segmentstore.store import LocalCommands, SegmentStore
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey
from tests.segmentstore.harness import WRITER, connect, open_segment, open_store

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
    async with open_segment(tmp_path, S) as (store, peer):
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


async def test_connection_forgets_merged_and_deleted_transient_segments(tmp_path: Path) -> None:
    """A client may write large events over one connection for months."""

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
            while not isinstance(await peer.ask(look), wire.NoSuchSegment):  # noqa: ASYNC110 - polls: no event exists
                await asyncio.sleep(0.02)


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
    async with open_segment(tmp_path, S) as (store, peer):
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


async def test_data_folder_refuses_a_second_store_and_other_versions(tmp_path: Path) -> None:
    async with open_store(tmp_path):
        with pytest.raises(DataFolderLockedError):
            SegmentStore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="2 containers, not 3"):
        SegmentStore(tmp_path, 3)
    StoreFile(99, "other", 2).write(tmp_path)
    with pytest.raises(DataFolderVersionError, match="99"):
        SegmentStore(tmp_path)


async def test_tables_read_the_same_before_and_after_a_checkpoint_and_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        both = (WireTableEntry(b"k", NOT_EXISTS, b"1"), WireTableEntry(b"a", NO_VERSION, b"b"))
        assert (await peer.ask(wire.UpdateTableEntries(2, T, "", both))).versions == (0, 19)
        twice = (WireTableEntry(b"k", 0, b"2"), WireTableEntry(b"k", 0, b"3"))
        assert (await peer.ask(wire.UpdateTableEntries(4, T, "", twice))).versions == (38, 57)
        delta = await peer.ask(wire.ReadTableEntriesDelta(6, T, "", 0, 10))
        assert [e.key for e in delta.entries] == [b"a", b"k"]
        assert (delta.reached_end, delta.last_position) == (True, 76)
        await peer.ask(wire.RemoveTableKeys(8, T, "", (WireTableKey(b"a"),)))
        for _ in range(2):  # before and after a checkpoint
            page = await peer.ask(wire.ReadTableEntries(9, T, "", 10, (b"", b"", b"")))
            assert page.entries == (WireTableEntry(b"k", 57, b"3"),)
            await store.containers[0].checkpoints.ended()
            store.containers[0].checkpoints.start()
            await store.containers[0].checkpoints.ended()
        assert isinstance(await peer.ask(wire.DeleteTableSegment(11, T, True, "")), wire.TableSegmentNotEmpty)
    async with open_store(tmp_path, 1) as (_, peer):
        read = await peer.ask(wire.ReadTable(5, T, "", (WireTableKey(b"k"), WireTableKey(b"a"))))
        assert read.entries == (WireTableEntry(b"k", 57, b"3"), WireTableEntry(b"a", NOT_EXISTS, b""))


# --- commands from the process ------------------------------------------------------------------------


def conditional(number: int, offset: int, data: bytes) -> wire.ConditionalAppend:
    return wire.ConditionalAppend(WRITER, number, offset, 0, memoryview(data), 7)


async def test_an_append_whose_wait_was_cancelled_is_stored_or_not(tmp_path: Path) -> None:
    setup = wire.SetupAppend(5, WRITER, S, "")
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        await store.exchange(setup)
        waiting = asyncio.create_task(store.exchange(conditional(1, 0, b"one")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await store.exchange(setup) == wire.AppendSetup(5, S, WRITER, 1)
        assert await store.exchange(conditional(2, 11, b"two")) == wire.DataAppended(WRITER, 2, 1, 7, 22)


async def test_second_writer_with_the_same_id_gets_an_error(tmp_path: Path) -> None:
    """The rules are those of a connection: two writers with one id never both store the same number."""
    setup = wire.SetupAppend(5, WRITER, S, "")
    async with open_store(tmp_path, 1) as (store, peer):
        other = LocalCommands(store.container_of, store._reader, store._service)
        await peer.create(S)
        await store.exchange(setup)
        await other.exchange(setup)
        assert isinstance(await store.exchange(conditional(1, 0, b"one")), wire.DataAppended)
        assert isinstance(await other.exchange(conditional(1, 11, b"two")), wire.InvalidEventNumber)
        assert await other.exchange(setup) == wire.AppendSetup(5, S, WRITER, 1)
        assert isinstance(await other.exchange(conditional(2, 11, b"two")), wire.DataAppended)
