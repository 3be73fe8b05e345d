"""Requirements on every segment store, by command: the real one, in its process and over its socket, and the one in
memory that other tests use. A new one adds itself to `STORES`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nadi.encryption.master_keys import new_key
from nadi.model.framing import frame_events
from nadi.naming import LOAD_SEGMENT
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, AttributeUpdate, WireTableEntry, WireTableKey
from nadi.wire.load_reports import unpacked_loads
from tests.segmentstore.harness import WRITER, Peer, connect, open_store
from tests.support.memory_store import MemoryStore

Exchange = Callable[[wire.Command], Awaitable[Any]]

S, T, TABLE = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0", "scope/table_kvtable/0.#epoch.0"
ABSENT = "scope/none/0.#epoch.0"


@asynccontextmanager
async def inner(folder: Path) -> AsyncIterator[Exchange]:
    store = SegmentStore(folder, 1)
    await store.start()
    yield store.exchange
    await store.close()


@asynccontextmanager
async def encrypted(folder: Path) -> AsyncIterator[Exchange]:
    (folder / "master.key").write_text(new_key())
    store = SegmentStore(folder / "data", 1, encryption=f"file:{folder / 'master.key'}")
    await store.start()
    yield store.exchange
    await store.close()


@asynccontextmanager
async def socket(folder: Path) -> AsyncIterator[Exchange]:
    async with open_store(folder, 1) as (_, peer):
        yield peer.ask


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[Exchange]:
    yield MemoryStore().exchange


@asynccontextmanager
async def memory_socket(folder: Path) -> AsyncIterator[Exchange]:
    store = MemoryStore()
    server = await asyncio.get_running_loop().create_server(store.connection, "127.0.0.1", 0)
    peer = await connect(server.sockets[0].getsockname()[:2])
    yield peer.ask
    peer.close()
    server.close()
    assert not store.refused


STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[Exchange]]] = {
    "inner": inner,
    "encrypted": encrypted,
    "socket": socket,
    "memory": memory,
    "memory-socket": memory_socket,
}
SOCKETS = ("socket", "memory-socket")  # only these accept appends without a condition


@pytest.fixture(params=list(STORES))
async def ask(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Exchange]:
    async with STORES[request.param](tmp_path) as exchange:
        yield exchange


@pytest.fixture(params=SOCKETS)
async def wired(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Exchange]:
    async with STORES[request.param](tmp_path) as exchange:
        yield exchange


async def made(ask: Exchange, name: str = S, *events: bytes) -> int:
    """Create a segment with these events; return its length."""
    assert await ask(wire.CreateSegment(1, name, 0, 0, "")) == wire.SegmentCreated(1, name)
    assert await ask(wire.SetupAppend(2, WRITER, name, "")) == wire.AppendSetup(2, name, WRITER, NO_VERSION)
    length = 0
    for number, event in enumerate(events):
        reply = await ask(wire.ConditionalAppend(WRITER, number, length, 0, event, 3))
        length += 8 + len(event)
        previous = number - 1 if number else NO_VERSION
        assert reply == wire.DataAppended(WRITER, number, previous, 3, length)
    return length


async def info(ask: Exchange, name: str = S) -> tuple[bool, int, int]:
    """Return whether it is sealed, its start, and its end."""
    reply = await ask(wire.GetStreamSegmentInfo(9, name, ""))
    assert isinstance(reply, wire.StreamSegmentInfo), reply
    assert (reply.request_id, reply.segment, reply.exists, reply.is_deleted) == (9, name, True, False)
    return reply.is_sealed, reply.start_offset, reply.write_offset


async def read(ask: Exchange, name: str = S, offset: int = 0) -> bytes:
    """Read from the offset to the end, in as many replies as needed."""
    _, _, end = await info(ask, name)
    data = b""
    while offset + len(data) < end:
        reply = await ask(wire.ReadSegment(name, offset + len(data), 1 << 20, "", 4))
        assert isinstance(reply, wire.SegmentRead), reply
        assert (reply.segment, reply.offset, reply.request_id) == (name, offset + len(data), 4)
        data += bytes(reply.data)
    return data


async def test_a_segment_is_created_once(ask: Exchange) -> None:
    await made(ask)
    assert await info(ask) == (False, 0, 0)
    assert await ask(wire.CreateSegment(5, S, 0, 0, "")) == wire.SegmentAlreadyExists(5, S)
    assert await ask(wire.UpdateSegmentPolicy(6, S, 1, 10, "")) == wire.SegmentPolicyUpdated(6, S)


@pytest.mark.parametrize(
    "command",
    [
        wire.GetStreamSegmentInfo(7, ABSENT, ""),
        wire.SealSegment(7, ABSENT, ""),
        wire.TruncateSegment(7, ABSENT, 0, ""),
        wire.DeleteSegment(7, ABSENT, ""),
        wire.UpdateSegmentPolicy(7, ABSENT, 1, 10, ""),
        wire.GetSegmentAttribute(7, ABSENT, WRITER, ""),
        wire.UpdateSegmentAttribute(7, ABSENT, WRITER, 1, NO_VERSION, ""),
        wire.SetupAppend(7, WRITER, ABSENT, ""),
        wire.LocateOffset(7, ABSENT, 1, ""),
        wire.LocateMoment(7, ABSENT, 1, 0, ""),
        wire.LocateChunks(7, ABSENT, 0, 1, ""),
        wire.ListMoments(7, ABSENT, 0, 1, ""),
        wire.ListEventSizes(7, ABSENT, 0, 0, 1, 1, ""),
        wire.IndexTimes(7, ABSENT, 2, 0, b"", ""),
        wire.MergeSegments(7, S, ABSENT, ""),
        wire.MergeSegmentsBatch(7, ABSENT, (S,), ""),
        wire.DeleteTableSegment(7, ABSENT, False, ""),
        wire.GetTableSegmentInfo(7, ABSENT, ""),
        wire.ReadTable(7, ABSENT, "", (WireTableKey(b"k"),)),
        wire.ReadTableEntries(7, ABSENT, "", 10, (b"", b"", b"")),
        wire.UpdateTableEntries(7, ABSENT, "", (WireTableEntry(b"k", NO_VERSION, b"v"),)),
        wire.RemoveTableKeys(7, ABSENT, "", (WireTableKey(b"k"),)),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_segment_that_is_not_there(ask: Exchange, command: wire.Command) -> None:
    await made(ask)
    assert await ask(command) == wire.NoSuchSegment(7, ABSENT)


async def test_read_of_a_missing_segment_returns_its_offset(ask: Exchange) -> None:
    assert await ask(wire.ReadSegment(ABSENT, 5, 10, "", 7)) == wire.NoSuchSegment(7, ABSENT, "", 5)


async def test_appended_bytes_are_read_in_parts(ask: Exchange) -> None:
    await made(ask, S, b"one", b"", b"three")
    stored = frame_events([b"one", b"", b"three"])
    assert await read(ask) == stored
    for offset in range(len(stored)):
        reply = await ask(wire.ReadSegment(S, offset, 8, "", 4))
        assert 0 < len(reply.data) <= 8
        assert bytes(reply.data) == stored[offset : offset + len(reply.data)]
        assert not reply.end_of_segment


async def test_an_append_behind_a_condition_that_does_not_hold_changes_nothing(ask: Exchange) -> None:
    length = await made(ask, S, b"one")
    for wrong in (0, length - 1, length + 1):
        reply = await ask(wire.ConditionalAppend(WRITER, 1, wrong, 0, b"two", 5))
        assert reply == wire.ConditionalCheckFailed(WRITER, 1, 5)
    assert await read(ask) == frame_events([b"one"])
    assert await ask(wire.SetupAppend(6, WRITER, S, "")) == wire.AppendSetup(6, S, WRITER, 0)


async def test_an_event_number_is_taken_once(ask: Exchange) -> None:
    length = await made(ask, S, b"one", b"two")
    assert await ask(wire.SetupAppend(6, WRITER, S, "")) == wire.AppendSetup(6, S, WRITER, 1)
    reply = await ask(wire.ConditionalAppend(WRITER, 0, length, 0, b"two", 5))
    assert isinstance(reply, wire.InvalidEventNumber)
    assert (reply.writer_id, reply.request_id) == (WRITER, 5)


async def test_sealed_segment_refuses_appends_and_has_an_end(ask: Exchange) -> None:
    length = await made(ask, S, b"one")
    await made(ask, T, b"two")
    assert await ask(wire.SetupAppend(6, WRITER, S, "")) == wire.AppendSetup(6, S, WRITER, 0)
    assert await ask(wire.SealSegment(1, S, "")) == wire.SegmentSealed(1, S)
    assert await info(ask) == (True, 0, length)
    assert await ask(wire.SealSegment(2, S, "")) == wire.SegmentIsSealed(2, S)
    assert await ask(wire.UpdateSegmentAttribute(3, S, WRITER, 1, 0, "")) == wire.SegmentIsSealed(3, S)
    assert await ask(wire.MergeSegmentsBatch(4, S, (T,), "")) == wire.SegmentIsSealed(4, S)
    assert isinstance(await ask(wire.MergeSegments(4, S, T, "")), wire.SegmentIsSealed)
    refused = await ask(wire.ConditionalAppend(WRITER, 1, length, 0, b"two", 5))
    assert isinstance(refused, wire.SegmentIsSealed)
    assert (refused.request_id, refused.segment) == (5, S)
    assert await read(ask) == frame_events([b"one"])
    end = await ask(wire.ReadSegment(S, length, 10, "", 6))
    assert (end.end_of_segment, bytes(end.data)) == (True, b"")
    assert await read(ask, T) == frame_events([b"two"])


async def test_truncation_removes_only_earlier_bytes(ask: Exchange) -> None:
    length = await made(ask, S, b"one", b"two")
    assert await ask(wire.TruncateSegment(1, S, 11, "")) == wire.SegmentTruncated(1, S)
    assert await ask(wire.TruncateSegment(2, S, 11, "")) == wire.SegmentTruncated(2, S)
    assert await info(ask) == (False, 11, length)
    assert await ask(wire.ReadSegment(S, 10, 10, "", 3)) == wire.SegmentIsTruncated(3, S, 11, "", 10)
    assert await read(ask, S, 11) == frame_events([b"two"])
    for outside in (10, length + 1):
        assert await ask(wire.TruncateSegment(4, S, outside, "")) == wire.SegmentIsTruncated(4, S, 11)
    assert await info(ask) == (False, 11, length)


async def test_deleted_segment_can_be_recreated_empty(ask: Exchange) -> None:
    await made(ask, S, b"one")
    assert await ask(wire.DeleteSegment(1, S, "")) == wire.SegmentDeleted(1, S)
    assert await ask(wire.GetStreamSegmentInfo(2, S, "")) == wire.NoSuchSegment(2, S)
    await made(ask)
    assert await info(ask) == (False, 0, 0)


async def test_an_attribute_is_compared_and_set(ask: Exchange) -> None:
    key = bytes(15) + b"\7"
    await made(ask)

    async def value() -> Any:
        return await ask(wire.GetSegmentAttribute(1, S, key, ""))

    assert await value() == wire.SegmentAttribute(1, NO_VERSION)
    for new, expected, done in ((5, 4, False), (5, NO_VERSION, True), (6, NO_VERSION, False), (6, 5, True)):
        reply = await ask(wire.UpdateSegmentAttribute(2, S, key, new, expected, ""))
        assert reply == wire.SegmentAttributeUpdated(2, done)
    assert await value() == wire.SegmentAttribute(1, 6)


async def test_a_merge_moves_all_of_one_segment_behind_another(ask: Exchange) -> None:
    await made(ask, S, b"one")
    await made(ask, T, b"two", b"three")
    key = bytes(15) + b"\7"
    update = AttributeUpdate(key, 1, 42, 0)
    assert await ask(wire.MergeSegments(1, S, T, "", (update,))) == wire.SegmentsMerged(1, S, T, 35)
    assert await read(ask) == frame_events([b"one", b"two", b"three"])
    assert await ask(wire.GetStreamSegmentInfo(2, T, "")) == wire.NoSuchSegment(2, T)
    assert await ask(wire.GetSegmentAttribute(3, S, key, "")) == wire.SegmentAttribute(3, 42)
    assert await ask(wire.MergeSegments(4, S, T, "")) == wire.NoSuchSegment(4, T)


async def test_a_merge_whose_condition_does_not_hold_leaves_both(ask: Exchange) -> None:
    await made(ask, S, b"one")
    await made(ask, T, b"two")
    update = AttributeUpdate(bytes(15) + b"\7", 4, 42, 41)
    assert await ask(wire.MergeSegments(1, S, T, "", (update,))) == wire.SegmentAttributeUpdated(1, False)
    assert await read(ask) == frame_events([b"one"])
    assert await read(ask, T) == frame_events([b"two"])


async def test_batch_merge_keeps_order_and_skips_missing_segments(ask: Exchange) -> None:
    await made(ask, S, b"one")
    others = ["scope/stream/5.#epoch.0", "scope/stream/6.#epoch.0"]
    for name in others:
        await made(ask, name, name.encode())
    size = 8 + len(others[0])
    asked = (others[1], ABSENT, others[0])
    expected = ((others[1], 11 + size), (ABSENT, 11 + size), (others[0], 11 + 2 * size))
    assert await ask(wire.MergeSegmentsBatch(1, S, asked, "")) == wire.SegmentsBatchMerged(1, S, expected)
    assert await read(ask) == frame_events([b"one", others[1].encode(), others[0].encode()])


async def test_invalid_merge_is_refused(ask: Exchange) -> None:
    await made(ask, S, b"one")
    await made(ask, T, b"two")
    await ask(wire.TruncateSegment(1, T, 11, ""))
    await ask(wire.CreateTableSegment(2, TABLE, ""))
    for source in (S, T, TABLE):
        reply = await ask(wire.MergeSegments(3, S, source, ""))
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.ILLEGAL_ARGUMENT
    assert await read(ask) == frame_events([b"one"])


async def test_an_offset_within_an_event_is_located_behind_it(ask: Exchange) -> None:
    await made(ask, S, b"one", b"two")
    for target, found in ((0, 0), (1, 11), (11, 11), (12, 22), (99, 22)):
        assert await ask(wire.LocateOffset(1, S, target, "")) == wire.OffsetLocated(1, S, found)


# --- appends of writers, which need a socket ------------------------------------------


async def test_an_append_is_acknowledged_with_its_number_and_the_one_before(wired: Exchange) -> None:
    await made(wired)
    blocks = [(frame_events([b"a", b"bb"]), 2, 2), (frame_events([b"ccc"]), 1, 3)]
    end, last = 0, NO_VERSION
    for data, events, number in blocks:
        end += len(data)
        reply = await wired(wire.AppendBlockEnd(WRITER, len(data), data, events, number, 5))
        assert reply == wire.DataAppended(WRITER, number, last, 5, end)
        last = number
    assert await read(wired) == b"".join(data for data, _, _ in blocks)


@pytest.mark.parametrize(
    ("command", "ends", "data"),
    [
        (wire.ConditionalAppend(WRITER, 1, 11, 0, b"two", 3), False, frame_events([b"two"])),
        (wire.SealSegment(3, S, ""), True, b""),
    ],
    ids=["an append", "a seal"],
)
async def test_a_read_at_the_end_waits(wired: Any, command: wire.Command, ends: bool, data: bytes) -> None:
    peer: Peer = wired.__self__
    length = await made(wired, S, b"one")
    peer.send(wire.ReadSegment(S, length, 100, "", 7))
    replies = [await peer.ask(command), await peer.receive()]
    (read,) = [reply for reply in replies if isinstance(reply, wire.SegmentRead)]
    assert (read.offset, read.end_of_segment, bytes(read.data)) == (length, ends, data)


async def test_a_transient_segment_is_made_and_merged(wired: Exchange) -> None:
    await made(wired, S, b"one")
    created = await wired(wire.CreateTransientSegment(1, WRITER, S, ""))
    assert isinstance(created, wire.SegmentCreated)
    assert created.segment.startswith(f"{S}#transient.")
    other = bytes(15) + b"\1"
    assert isinstance(await wired(wire.SetupAppend(2, other, created.segment, "")), wire.AppendSetup)
    data = frame_events([b"large"])
    appended = await wired(wire.ConditionalBlockEnd(other, 0, 0, data, 3))
    assert appended == wire.DataAppended(other, 0, NO_VERSION, 3, len(data))
    assert await wired(wire.MergeSegments(4, S, created.segment, "")) == wire.SegmentsMerged(4, S, created.segment, 24)
    assert await read(wired) == frame_events([b"one", b"large"])


async def test_an_append_to_a_sealed_segment_is_refused_with_its_number(wired: Exchange) -> None:
    await made(wired)
    await wired(wire.SealSegment(1, S, ""))
    data = frame_events([b"a"])
    reply = await wired(wire.AppendBlockEnd(WRITER, len(data), data, 1, 7, 5))
    assert reply == wire.SegmentIsSealed(5, S, "", 7)


# --- tables --------------------------------------------------------------------------------------------------


async def table(ask: Exchange, **values: bytes) -> dict[str, int]:
    """Create a table with these values; return the versions of its keys."""
    assert await ask(wire.CreateTableSegment(1, TABLE, "")) == wire.SegmentCreated(1, TABLE)
    entries = tuple(WireTableEntry(key.encode(), NOT_EXISTS, value) for key, value in values.items())
    reply = await ask(wire.UpdateTableEntries(2, TABLE, "", entries))
    assert isinstance(reply, wire.TableEntriesUpdated)
    return dict(zip(values, reply.versions, strict=True))


async def held(ask: Exchange, *keys: bytes) -> tuple[WireTableEntry, ...]:
    reply = await ask(wire.ReadTable(3, TABLE, "", tuple(map(WireTableKey, keys))))
    assert isinstance(reply, wire.TableRead), reply
    return tuple(WireTableEntry(bytes(key), version, bytes(value)) for key, version, value in reply.entries)


async def test_a_table_is_made_once_and_says_how_much_it_has(ask: Exchange) -> None:
    await table(ask, a=b"1", b=b"22")
    assert await ask(wire.CreateTableSegment(4, TABLE, "")) == wire.SegmentAlreadyExists(4, TABLE)
    found = await ask(wire.GetTableSegmentInfo(5, TABLE, ""))
    assert (found.entry_count, found.length, found.key_length) == (2, 17 + 2 + 17 + 3, 0)


async def test_keys_are_read_in_the_order_they_are_asked_for(ask: Exchange) -> None:
    versions = await table(ask, a=b"1", b=b"22")
    expected = (
        WireTableEntry(b"b", versions["b"], b"22"),
        WireTableEntry(b"z", NOT_EXISTS, b""),
        (b"a", versions["a"], b"1"),
    )
    assert await held(ask, b"b", b"z", b"a") == expected


async def test_each_update_gives_a_later_version(ask: Exchange) -> None:
    versions = await table(ask, a=b"1", b=b"2")
    assert versions["a"] < versions["b"]
    reply = await ask(wire.UpdateTableEntries(4, TABLE, "", (WireTableEntry(b"a", versions["a"], b"new"),)))
    assert reply.versions[0] > versions["b"]
    assert await held(ask, b"a") == (WireTableEntry(b"a", reply.versions[0], b"new"),)
    reply = await ask(wire.UpdateTableEntries(5, TABLE, "", (WireTableEntry(b"a", NO_VERSION, b"newer"),)))
    assert await held(ask, b"a") == (WireTableEntry(b"a", reply.versions[0], b"newer"),)


@pytest.mark.parametrize(
    ("key", "version", "said"),
    [
        (b"a", NOT_EXISTS, wire.TableKeyBadVersion),
        (b"a", 1_000_000, wire.TableKeyBadVersion),
        (b"z", 0, wire.TableKeyDoesNotExist),
    ],
    ids=["there already", "another version", "not there"],
)
async def test_a_condition_that_does_not_hold_changes_nothing(
    ask: Exchange, key: bytes, version: int, said: type[wire.Command]
) -> None:
    versions = await table(ask, a=b"1")
    before = (WireTableEntry(b"a", versions["a"], b"1"), WireTableEntry(b"y", NOT_EXISTS, b""))
    both = (WireTableEntry(b"y", NO_VERSION, b"other"), WireTableEntry(key, version, b"new"))
    assert await ask(wire.UpdateTableEntries(4, TABLE, "", both)) == said(4, TABLE)
    assert await held(ask, b"a", b"y") == before
    if version != NOT_EXISTS:
        assert await ask(wire.RemoveTableKeys(5, TABLE, "", (WireTableKey(key, version),))) == said(5, TABLE)
        assert await held(ask, b"a", b"y") == before


async def test_keys_are_removed(ask: Exchange) -> None:
    versions = await table(ask, a=b"1", b=b"2")
    keys = (WireTableKey(b"a", versions["a"]), WireTableKey(b"z", NO_VERSION))
    assert await ask(wire.RemoveTableKeys(4, TABLE, "", keys)) == wire.TableKeysRemoved(4, TABLE)
    assert await held(ask, b"a") == (WireTableEntry(b"a", NOT_EXISTS, b""),)
    again = await ask(wire.UpdateTableEntries(5, TABLE, "", (WireTableEntry(b"a", NOT_EXISTS, b"again"),)))
    assert again.versions[0] > versions["b"]


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_all_keys_are_listed_page_by_page_in_order(ask: Exchange, count: int) -> None:
    names = ["d", "a", "c", "b", "e"]
    await table(ask, **{name: name.encode() for name in names})
    token, found = b"", []
    while True:
        page = await ask(wire.ReadTableEntries(4, TABLE, "", count, (token, b"", b"")))
        assert len(page.entries) <= count
        if not page.entries:
            break
        found += [(bytes(entry[0]), bytes(entry[2])) for entry in page.entries]
        token = bytes(page.continuation_token)
    assert found == [(name.encode(), name.encode()) for name in sorted(names)]
    page = await ask(wire.ReadTableEntries(5, TABLE, "", 100, (b"", b"b", b"d")))
    assert [bytes(entry[0]) for entry in page.entries] == [b"b", b"c", b"d"]


async def test_delete_of_a_non_empty_table_is_refused(ask: Exchange) -> None:
    await table(ask, a=b"1")
    assert await ask(wire.DeleteTableSegment(4, TABLE, True, "")) == wire.TableSegmentNotEmpty(4, TABLE)
    assert await ask(wire.RemoveTableKeys(5, TABLE, "", (WireTableKey(b"a"),))) == wire.TableKeysRemoved(5, TABLE)
    assert await ask(wire.DeleteTableSegment(6, TABLE, True, "")) == wire.SegmentDeleted(6, TABLE)
    await table(ask, b=b"1")
    assert await ask(wire.DeleteTableSegment(7, TABLE, False, "")) == wire.SegmentDeleted(7, TABLE)


async def test_table_and_stream_commands_are_not_mixed(ask: Exchange) -> None:
    await table(ask)
    await made(ask)
    for command in (
        wire.TruncateSegment(4, TABLE, 0, ""),
        wire.ReadTable(4, S, "", (WireTableKey(b"k"),)),
        wire.UpdateTableEntries(4, S, "", (WireTableEntry(b"k", NO_VERSION, b"v"),)),
    ):
        reply = await ask(command)
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.ILLEGAL_ARGUMENT


async def test_load_of_a_segment_is_reported(ask: Exchange) -> None:
    await made(ask, S, b"one", b"two")
    async with asyncio.timeout(60):
        while True:
            reply = await ask(wire.GetSegmentLoads(9, LOAD_SEGMENT, "", ""))
            if loads := unpacked_loads(reply.loads):
                break  # it is half a second old
            await asyncio.sleep(0.05)
    assert (reply.request_id, reply.segment, reply.is_last) == (9, LOAD_SEGMENT, True)
    (load,) = loads
    assert load.segment == S
    # the longest window, in which the time within a minute is irrelevant
    assert load.events_per_s[-1] * load.age_s == pytest.approx(2, rel=0.05)
    assert load.bytes_per_s[-1] * load.age_s == pytest.approx(22, rel=0.05)
    assert load.keys is None
    assert unpacked_loads((await ask(wire.GetSegmentLoads(9, LOAD_SEGMENT, "", S))).loads) == []
    assert await ask(wire.GetSegmentLoads(9, S, "", "")) == wire.NoSuchSegment(9, S, "", -1)
    assert isinstance(await ask(wire.DeleteSegment(9, S, "")), wire.SegmentDeleted)
    assert unpacked_loads((await ask(wire.GetSegmentLoads(9, LOAD_SEGMENT, "", ""))).loads) == []
