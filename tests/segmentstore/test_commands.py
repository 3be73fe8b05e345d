"""Commands in the odd cases: what the protocol has a word for gets it, and nothing harms the container."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from nadi import limits
from nadi.model.framing import frame_events
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, AttributeUpdate, TableEntry, TableKey
from tests.segmentstore.harness import WRITER, Peer, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
T = "scope/table_kvtable/0.#epoch.0"
TXN = S + "#transaction." + "0" * 31 + "1"
OTHER = b"other writer 123"


async def put(peer: Peer, *entries: TableEntry, length: int = -1) -> wire.Command:
    reply: wire.Command = await peer.ask(wire.UpdateTableEntries(1, T, "", entries, length))
    return reply


async def remove(peer: Peer, *keys: TableKey, length: int = -1) -> wire.Command:
    reply: wire.Command = await peer.ask(wire.RemoveTableKeys(2, T, "", keys, length))
    return reply


async def test_conditions_of_removals(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await put(peer, TableEntry(b"k", NO_VERSION, b"v"))
        assert isinstance(await remove(peer, TableKey(b"none", NOT_EXISTS)), wire.TableKeysRemoved)
        assert isinstance(await remove(peer, TableKey(b"k", NOT_EXISTS)), wire.TableKeyBadVersion)
        assert isinstance(await remove(peer, TableKey(b"k", 7)), wire.TableKeyBadVersion)
        assert isinstance(await remove(peer, TableKey(b"none", 7)), wire.TableKeyDoesNotExist)
        both = (TableKey(b"k", 0), TableKey(b"none", 7))
        assert isinstance(await remove(peer, *both), wire.TableKeyDoesNotExist)
        assert await remove(peer, TableKey(b"k", 0), length=5) == wire.SegmentIsTruncated(2, T, 19)
        assert isinstance(await remove(peer, TableKey(b"k", 0), length=19), wire.TableKeysRemoved)
        info = await peer.ask(wire.GetTableSegmentInfo(3, T, ""))
        assert (info.length, info.entry_count) == (37, 0)
        assert isinstance(await put(peer, TableEntry(b"k", NOT_EXISTS, b"w"), length=19), wire.SegmentIsTruncated)
        assert await put(peer, TableEntry(b"k", NOT_EXISTS, b"w"), length=37) == wire.TableEntriesUpdated(1, (37,))


async def test_a_table_of_fixed_keys_is_read_by_ranges(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, "", False, 2))
        await put(peer, *(TableEntry(bytes([a, b]), NO_VERSION, b"v") for a in (3, 1, 2) for b in (255, 0)))
        wrong = await put(peer, TableEntry(b"abc", NO_VERSION, b""))
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
def test_long_keys_with_one_head_are_all_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
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

    async def run() -> None:
        async with open_store(tmp_path, 1) as (_, peer):
            await peer.ask(wire.CreateTableSegment(1, T, ""))
            for name in names:
                await put(peer, TableEntry(name, NOT_EXISTS, b""))
            if not written:
                assert await listed(peer) == names
        async with open_store(tmp_path, 1) as (_, peer):
            assert await listed(peer) == names

    uvloop.run(run())


async def test_a_sealed_table_takes_nothing(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await put(peer, TableEntry(b"k", NO_VERSION, b"v"))
        await peer.ask(wire.SealSegment(2, T, ""))
        assert isinstance(await put(peer, TableEntry(b"k", NO_VERSION, b"w")), wire.SegmentIsSealed)
        assert isinstance(await remove(peer, TableKey(b"k")), wire.SegmentIsSealed)


async def test_kinds_of_segments_are_not_mixed(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        await peer.create(TXN)
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        await peer.setup(S)
        await peer.append([b"kept"], 1)
        for command in (
            wire.ReadSegment(T, 0, 100, "", 2),
            wire.ReadTable(3, S, "", (TableKey(b"k"),)),
            wire.MergeSegments(4, S, T, ""),
            wire.MergeSegments(5, T, S, ""),
            wire.MergeSegmentsBatch(6, S, (TXN, T), ""),
            wire.MergeSegmentsBatch(7, S, (S,), ""),
            wire.MergeSegments(8, S, S, ""),
            wire.TruncateSegment(9, T, 0, ""),
            wire.LocateOffset(10, T, 0, ""),
            wire.LocateMoment(13, T, 1, 0, ""),
            wire.CreateSegment(11, "", 0, 0, ""),
            wire.CreateTableSegment(12, "", ""),
        ):
            reply = await peer.ask(command)
            assert isinstance(reply, wire.ErrorMessage), command
            assert (reply.request_id, reply.error_code) == (command.request_id, 0)
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(12, TXN, "")), wire.StreamSegmentInfo)
        assert await peer.read_all(S) == frame_events([b"kept"])
        assert store.containers[0].failure is None


async def test_a_truncated_segment_is_not_merged(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.create(S)
        await peer.create(TXN)
        await peer.setup(TXN)
        await peer.append([b"a", b"b"], 2)
        await peer.ask(wire.TruncateSegment(1, TXN, 9, ""))
        assert isinstance(await peer.ask(wire.MergeSegments(2, S, TXN, "")), wire.ErrorMessage)
        assert isinstance(await peer.ask(wire.MergeSegmentsBatch(3, S, (TXN,), "")), wire.ErrorMessage)
        assert await peer.read_all(TXN, 9) == frame_events([b"b"])


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
        assert await value() == -(1 << 63)  # as Java's long goes over
    async with open_store(tmp_path, 1) as (_, peer):
        assert (await peer.ask(wire.GetSegmentAttribute(2, S, OTHER, ""))).value == -(1 << 63)


async def test_a_failed_condition_leaves_the_session_open(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_, peer):
        await peer.create(S)
        await peer.setup(S)
        peer.send(
            wire.ConditionalBlockEnd(WRITER, 1, 0, b"12345678", 1),
            wire.ConditionalBlockEnd(WRITER, 2, 9, b"refused!", 2),
            wire.ConditionalBlockEnd(WRITER, 3, 8, b"abcdefgh", 3),
        )
        replies = [await peer.receive() for _ in range(3)]
        assert replies[1] == wire.ConditionalCheckFailed(WRITER, 2, 2)
        assert (replies[2].event_number, replies[2].previous_event_number) == (3, 1)
        assert await peer.setup(S) == 3
        assert await peer.read_all(S) == b"12345678abcdefgh"


async def test_behind_a_refused_append_nothing_passes(tmp_path: Path) -> None:
    """Somebody else's bytes fill the place of the refused one, so the length alone would let the next pass."""

    async with open_store(tmp_path, 1) as (_, peer):
        await peer.create(S)
        await peer.setup(S)
        await peer.setup(S, OTHER)
        peer.send(
            wire.ConditionalBlockEnd(WRITER, 1, 0, b"1234", 1),
            wire.ConditionalBlockEnd(OTHER, 1, 4, b"else", 1),
            wire.ConditionalBlockEnd(WRITER, 2, 4, b"5678", 2, 1),
            wire.ConditionalBlockEnd(WRITER, 3, 8, b"9abc", 3, 2),
            wire.ConditionalBlockEnd(WRITER, 4, 8, b"anew", 4, 1),
        )
        replies = [await peer.receive() for _ in range(5)]
        assert replies[2:4] == [wire.ConditionalCheckFailed(WRITER, number, number) for number in (2, 3)]
        assert (replies[4].event_number, replies[4].previous_event_number) == (4, 1)
        assert await peer.setup(S) == 4
        assert await peer.read_all(S) == b"1234elseanew"


async def test_transient_segments_do_not_outlive_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgotten(_: str) -> None:
        """A server that crashes does not see its connections end."""

    async with open_store(tmp_path, 1) as (store, peer):
        monkeypatch.setattr(store._service, "delete", forgotten)
        made = await peer.ask(wire.CreateTransientSegment(1, WRITER, S, ""))
        await peer.setup(made.segment)
        await peer.append([b"part"], 1)
    async with open_store(tmp_path, 1) as (store, peer):
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(2, made.segment, "")), wire.NoSuchSegment)
        assert not store.containers[0].state.transients
        assert not store.containers[0].state.frames
