"""Commands in unusual cases: errors use the protocol's replies where it has them, and nothing harms the container."""

from __future__ import annotations

import logging
import struct
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nadi import limits
from nadi.model.framing import frame_events
from nadi.throttled_log import SeldomWarning
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, AttributeUpdate, WireTableEntry, WireTableKey
from tests.segmentstore.harness import WRITER, Peer, connect, open_segment, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
S1 = "scope/stream/1.#epoch.0"
T = "scope/table_kvtable/0.#epoch.0"
TXN = S + "#transaction." + "0" * 31 + "1"
OTHER = b"other writer 123"


async def put(peer: Peer, *entries: WireTableEntry, length: int = -1) -> wire.Command:
    reply: wire.Command = await peer.ask(wire.UpdateTableEntries(1, T, "", entries, length))
    return reply


async def remove(peer: Peer, *keys: WireTableKey, length: int = -1) -> wire.Command:
    reply: wire.Command = await peer.ask(wire.RemoveTableKeys(2, T, "", keys, length))
    return reply


async def test_conditions_of_removals(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await put(peer, WireTableEntry(b"k", NO_VERSION, b"v"))
        assert isinstance(await remove(peer, WireTableKey(b"none", NOT_EXISTS)), wire.TableKeysRemoved)
        assert isinstance(await remove(peer, WireTableKey(b"k", NOT_EXISTS)), wire.TableKeyBadVersion)
        assert isinstance(await remove(peer, WireTableKey(b"k", 7)), wire.TableKeyBadVersion)
        assert isinstance(await remove(peer, WireTableKey(b"none", 7)), wire.TableKeyDoesNotExist)
        both = (WireTableKey(b"k", 0), WireTableKey(b"none", 7))
        assert isinstance(await remove(peer, *both), wire.TableKeyDoesNotExist)
        assert await remove(peer, WireTableKey(b"k", 0), length=5) == wire.SegmentIsTruncated(2, T, 19)
        assert isinstance(await remove(peer, WireTableKey(b"k", 0), length=19), wire.TableKeysRemoved)
        info = await peer.ask(wire.GetTableSegmentInfo(3, T, ""))
        assert (info.length, info.entry_count) == (37, 0)
        assert isinstance(await put(peer, WireTableEntry(b"k", NOT_EXISTS, b"w"), length=19), wire.SegmentIsTruncated)
        assert await put(peer, WireTableEntry(b"k", NOT_EXISTS, b"w"), length=37) == wire.TableEntriesUpdated(1, (37,))


async def test_a_table_of_fixed_keys_is_read_by_ranges(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, "", False, 2))
        await put(peer, *(WireTableEntry(bytes([a, b]), NO_VERSION, b"v") for a in (3, 1, 2) for b in (255, 0)))
        wrong = await put(peer, WireTableEntry(b"abc", NO_VERSION, b""))
        assert isinstance(wrong, wire.ErrorMessage)
        assert wrong.error_code == 0

        async def keys(low: bytes, high: bytes, count: int = 10, token: bytes = b"") -> list[bytes]:
            page = await peer.ask(wire.ReadTableKeys(4, T, "", count, (token, low, high)))
            assert bool(page.keys) <= bool(page.continuation_token)
            return [key.key for key in page.keys]

        assert await keys(b"\1\0", b"\2\0") == [b"\1\0", b"\1\xff", b"\2\0"]
        assert await keys(b"\1\1", b"") == [b"\1\xff", b"\2\0", b"\2\xff", b"\3\0", b"\3\xff"]
        assert await keys(b"", b"\1\xff") == [b"\1\0", b"\1\xff"]
        assert await keys(b"", b"\2\xff", 2, b"\1\0") == [b"\1\xff", b"\2\0"]
        assert await keys(b"\4\0", b"") == []


@pytest.mark.parametrize("written", [False, True])
async def test_long_keys_with_one_head_are_all_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    if not written:
        monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 60.0)
    names = sorted([b"h" * 470 + bytes([n]) * (10 + n) for n in range(60)] + [b"h" * 450, b"i", b"h" * 471])

    async def listed(peer: Peer) -> list[bytes]:
        found: list[bytes] = []
        token = b""
        while True:
            page = await peer.ask(wire.ReadTableKeys(3, T, "", 7, (token, b"", b"")))
            if not page.keys:
                return found
            found += [key.key for key in page.keys]
            token = page.continuation_token

    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        for name in names:
            await put(peer, WireTableEntry(name, NOT_EXISTS, b""))
        if not written:
            assert await listed(peer) == names
    async with open_store(tmp_path, 1) as (_, peer):
        assert await listed(peer) == names


async def test_sealed_table_refuses_updates(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await put(peer, WireTableEntry(b"k", NO_VERSION, b"v"))
        await peer.ask(wire.SealSegment(2, T, ""))
        assert isinstance(await put(peer, WireTableEntry(b"k", NO_VERSION, b"w")), wire.SegmentIsSealed)
        assert isinstance(await remove(peer, WireTableKey(b"k")), wire.SegmentIsSealed)


async def test_kinds_of_segments_are_not_mixed(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await peer.setup(S)
        await peer.append([b"kept"], 1)
        for command in (
            wire.ReadSegment(T, 0, 100, "", 2),
            wire.ReadTable(3, S, "", (WireTableKey(b"k"),)),
            wire.TruncateSegment(9, T, 0, ""),
            wire.LocateOffset(10, T, 0, ""),
            wire.LocateMoment(13, T, 1, 0, ""),
        ):
            reply = await peer.ask(command)
            assert isinstance(reply, wire.ErrorMessage), command
            assert (reply.request_id, reply.error_code) == (command.request_id, 0)
        assert await peer.read_all(S) == frame_events([b"kept"])
        assert store.containers[0].failure is None


async def test_attributes_in_merges(tmp_path: Path) -> None:
    largest = (1 << 63) - 1

    async with open_store(tmp_path, 1) as (_, peer):
        await peer.create(S)

        async def merge(*updates: AttributeUpdate) -> wire.Command:
            await peer.create(TXN)
            reply: wire.Command = await peer.ask(wire.MergeSegments(1, S, TXN, "", updates))
            return reply

        async def value() -> int:
            found: int = (await peer.ask(wire.GetSegmentAttribute(2, S, OTHER, ""))).value
            return found

        assert isinstance(await merge(AttributeUpdate(OTHER, 3, 5, 0)), wire.SegmentsMerged)
        assert isinstance(await merge(AttributeUpdate(OTHER, 3, 2, 0)), wire.SegmentsMerged)
        assert await value() == 7
        refused = wire.SegmentAttributeUpdated(1, False)
        assert await merge(AttributeUpdate(OTHER, 2, 7, 0)) == refused
        assert await merge(AttributeUpdate(OTHER, 4, 1, 6)) == refused
        assert isinstance(await merge(AttributeUpdate(OTHER, 9, 1, 6)), wire.ErrorMessage)
        assert await value() == 7
        twice = (AttributeUpdate(OTHER, 4, largest, 7), AttributeUpdate(OTHER, 3, 1, 0))
        assert isinstance(await merge(*twice), wire.SegmentsMerged)
        assert await value() == -(1 << 63)  # overflows as Java's long
    async with open_store(tmp_path, 1) as (_, peer):
        assert (await peer.ask(wire.GetSegmentAttribute(2, S, OTHER, ""))).value == -(1 << 63)


async def test_append_after_a_refused_one_is_refused(tmp_path: Path) -> None:
    """Other bytes fill the gap of the refused append, so a check of the length alone would accept the next one."""

    async with open_segment(tmp_path, S) as (_, peer):
        await peer.setup(S, OTHER)
        peer.send(
            wire.ConditionalBlockEnd(WRITER, 1, 0, b"1234", 1),
            wire.ConditionalBlockEnd(OTHER, 1, 4, b"else", 1),
            wire.ConditionalBlockEnd(WRITER, 2, 4, b"5678", 2, 1),
            wire.ConditionalBlockEnd(WRITER, 3, 8, b"9abc", 3, 2),
            wire.ConditionalBlockEnd(WRITER, 4, 8, b"next", 4, 1),
        )
        replies = [await peer.receive() for _ in range(5)]
        assert replies[2:4] == [wire.ConditionalCheckFailed(WRITER, number, number) for number in (2, 3)]
        assert (replies[4].event_number, replies[4].previous_event_number) == (4, 1)
        assert await peer.setup(S) == 4
        assert await peer.read_all(S) == b"1234elsenext"


async def test_transient_segments_do_not_outlive_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgotten(_: str) -> None:
        """Ignore closed connections, as a crashed server does."""

    async with open_store(tmp_path, 1) as (store, peer):
        monkeypatch.setattr(store._service, "delete", forgotten)
        made = await peer.ask(wire.CreateTransientSegment(1, WRITER, S, ""))
        await peer.setup(made.segment)
        await peer.append([b"part"], 1)
    async with open_store(tmp_path, 1) as (store, peer):
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(2, made.segment, "")), wire.NoSuchSegment)
        assert not store.containers[0].state.transients
        assert not store.containers[0].state.frames


# --- invalid requests, which don't affect the container -----------------


@asynccontextmanager
async def goes_on(folder: Path) -> AsyncIterator[Peer]:
    async with open_store(folder, containers=1) as (store, peer):
        for name in (S, S1):
            await peer.create(name)
            await peer.setup(name)
            await peer.append([b"12345678", b"12345678"], 1)
        yield peer
        assert store.containers[0].failure is None
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(9, S, "")), wire.StreamSegmentInfo)


async def test_an_empty_name(tmp_path: Path) -> None:
    async with goes_on(tmp_path) as peer:
        for look in (
            wire.GetStreamSegmentInfo(1, "", ""),
            wire.ReadSegment("", 0, 100, "", 1),
            wire.SealSegment(1, "", ""),
            wire.SetupAppend(1, bytes(16), "", ""),
            wire.MergeSegments(1, "", S, "", ()),
            wire.MergeSegments(1, S, "", "", ()),
            wire.ReadTable(1, "", "", ()),
        ):
            assert isinstance(await peer.ask(look), wire.NoSuchSegment), look
        assert isinstance(await peer.create(""), wire.ErrorMessage)
        assert isinstance(await peer.ask(wire.CreateTableSegment(1, "", "")), wire.ErrorMessage)
        batch = await peer.ask(wire.MergeSegmentsBatch(1, S, ("",), ""))
        assert isinstance(batch, wire.SegmentsBatchMerged)


async def test_merges_that_would_lose_data(tmp_path: Path) -> None:
    async with goes_on(tmp_path) as peer:
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        assert isinstance(await peer.ask(wire.TruncateSegment(1, S1, 5, "")), wire.SegmentTruncated)
        for target, source in ((S, S), (S, S1), (S, T), (T, S)):
            for command in (
                wire.MergeSegments(1, target, source, "", ()),
                wire.MergeSegmentsBatch(1, target, (source,), ""),
            ):
                reply = await peer.ask(command)
                assert isinstance(reply, wire.ErrorMessage), (command, reply)
        assert len(await peer.read_all(S)) == 32
        assert isinstance(
            await peer.ask(wire.UpdateTableEntries(1, T, "", (WireTableEntry(b"k", -1, b"v"),))),
            wire.TableEntriesUpdated,
        )


async def test_reading_a_key_without_bytes_is_refused(tmp_path: Path) -> None:
    whole = encode(wire.ReadTable(1, T, "", (WireTableKey(b"k", -1),)))
    key_size = struct.pack(">ii", 12, 0)  # no encoder writes this
    payload = whole[8:].replace(struct.pack(">ii", 13, 1) + b"k", key_size)

    async with goes_on(tmp_path) as peer:
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        peer.send_raw(struct.pack(">ii", wire.ReadTable.code, len(payload)) + payload)
        assert isinstance(await peer.receive(), wire.ErrorMessage)


async def test_a_reply_that_the_protocol_cannot_hold_ends_the_connection(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as (store, peer):
        peer.send(wire.CreateTransientSegment(1, bytes(16), "x" * 65_500, ""))  # its name would be too long
        peer.send(wire.GetStreamSegmentInfo(2, S, ""))
        assert await peer.closed(), "later commands would wait forever"
        container = store.containers[0]
        while await container.call(lambda _: bool(container.state.transients)):
            pass


async def test_appends_that_a_session_refuses_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (store, peer):
        await peer.ask(wire.SealSegment(1, S, ""))
        for number in range(50):
            assert isinstance(await peer.append([b"12345678"], number), wire.SegmentIsSealed)
        (connection,) = store._connections
        error = connection.writers.sessions[WRITER].error
        assert error is not None
        assert len(list(traceback.walk_tb(error.__traceback__))) < 10


async def test_repeated_protocol_errors_are_logged_seldom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    async with open_store(tmp_path, containers=1) as (store, _):
        store._report = SeldomWarning(logging.getLogger("nadi"), "%d ended, the last from %s: %s", lambda: now)
        for number in range(12):
            now = 1.0 if number == 11 else 0.5 * bool(number)
            bad = await connect(store.address)
            bad.send_raw(struct.pack(">ii", 9, 1 << 30))
            assert await bad.closed()
            bad.close()
    lines = [record.getMessage() for record in caplog.records if " ended, " in record.getMessage()]
    assert [line.partition(" ended")[0] for line in lines] == ["1", "11"]
    assert "announces" in lines[0]
