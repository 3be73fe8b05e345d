"""Commands sent in sequence over one connection, before any is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from nadi import limits
from nadi.errors import ProtocolError
from nadi.limits import LIST_MAX_ENTRIES, TABLE_READ_KEYS
from nadi.segmentstore.container import table_segments
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey
from tests.segmentstore.harness import Peer, connect, open_store
from tests.support.decoder import Decoder
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

T = "scope/table_kvtable/0.#epoch.0"


def names(count: int) -> list[str]:
    return [f"scope/stream-{number}/0.#epoch.0" for number in range(count)]


def created(number: int, name: str) -> wire.CreateSegment:
    return wire.CreateSegment(number, name, 0, 0, "")


async def replies(peer: Peer, count: int) -> dict[int, Any]:
    """Return replies by request id."""
    found = [await peer.receive() for _ in range(count)]
    return {reply.request_id: reply for reply in found}


class StoodStill:
    """Blocks a container's log until told to resume."""

    def __init__(self, container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        append = container.log.append

        async def appended(parts: Sequence[Any]) -> Any:
            await self.go_on.wait()
            return await append(parts)

        monkeypatch.setattr(container.log, "append", appended)


def in_each(store: SegmentStore, count: int) -> tuple[list[str], list[str]]:
    """Return `count` names of segments in the first container, and in the second."""
    first, second = store.containers
    all_names = names(8 * count)
    mine = [[name for name in all_names if store.container_of(name) is one][:count] for one in (first, second)]
    assert all(len(found) == count for found in mine)
    return mine[0], mine[1]


async def test_pipelined_commands_share_frames(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        before = store.containers[0].state.sequence
        peer.send(*(created(number, name) for number, name in enumerate(names(150))))
        found = await replies(peer, 150)
        assert [type(found[number]) for number in range(150)] == [wire.SegmentCreated] * 150
        assert store.containers[0].state.sequence - before < 30


async def test_blocked_container_does_not_delay_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as (store, peer):
        ((slow,), (quick,)) = in_each(store, 1)
        standing = StoodStill(store.container_of(slow), monkeypatch)
        peer.send(created(1, slow), created(2, quick))
        assert await peer.receive() == wire.SegmentCreated(2, quick)
        standing.go_on.set()
        assert await peer.receive() == wire.SegmentCreated(1, slow)


async def test_serial_command_waits_for_parallel_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as (store, peer):
        ((slow,), (quick,)) = in_each(store, 1)
        assert await peer.create(quick)
        standing = StoodStill(store.container_of(slow), monkeypatch)
        peer.send(created(1, slow), wire.GetStreamSegmentInfo(2, quick, ""), wire.SealSegment(3, quick, ""))
        peer.send(wire.KeepAlive())
        assert await peer.receive() == wire.KeepAlive()
        standing.go_on.set()
        kinds = [type(await peer.receive()) for _ in range(3)]
        assert kinds == [wire.SegmentCreated, wire.StreamSegmentInfo, wire.SegmentSealed]


async def test_commands_on_one_segment_keep_their_order(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        (name,) = names(1)
        commands: list[wire.Command] = []
        for number in range(0, 100, 2):
            commands += [created(number, name), wire.DeleteSegment(number + 1, name, "")]
        commands.append(wire.CreateTableSegment(100, T, ""))
        for number in range(101, 201):
            entry = WireTableEntry(b"key", NO_VERSION, b"%d" % number)
            commands.append(wire.UpdateTableEntries(number, T, "", (entry,)))
        commands.append(wire.ReadTable(201, T, "", (WireTableKey(b"key"),)))
        commands += [wire.SealSegment(202, T, ""), wire.DeleteTableSegment(203, T, False, "")]
        peer.send(*commands)
        found = await replies(peer, len(commands))
        assert [type(found[number]) for number in range(100)] == [wire.SegmentCreated, wire.SegmentDeleted] * 50
        assert found[201].entries[0].value == b"200"
        assert isinstance(found[203], wire.SegmentDeleted)


async def test_parallel_commands_are_limited_per_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_COMMANDS_AT_ONCE", 4)
    async with open_store(tmp_path) as (store, peer):
        slow, quick = in_each(store, 10)
        standing = StoodStill(store.container_of(slow[0]), monkeypatch)
        peer.send(*(created(number, name) for number, name in enumerate(slow)), created(10, quick[0]))
        peer.send(wire.KeepAlive())
        assert await peer.receive() == wire.KeepAlive(), "all are accepted"
        queue = next(iter(store._connections))._commands
        assert len(queue._running) == 4
        assert len(queue._waiting) == 7
        standing.go_on.set()
        assert set(await replies(peer, 11)) == set(range(11))
        await until_async(lambda: not queue.is_busy)


async def test_parallel_commands_are_limited_over_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_UNDER_WAY", 3)
    async with open_store(tmp_path) as (store, peer):
        slow, quick = in_each(store, 10)
        standing = StoodStill(store.container_of(slow[0]), monkeypatch)
        peer.send(*(created(number, name) for number, name in enumerate(slow)), wire.KeepAlive())
        assert await peer.receive() == wire.KeepAlive(), "all are accepted"
        (connection,) = store._connections
        assert len(connection._commands._running) == 3
        other = await connect(store.address)
        assert await other.create(quick[0]) == wire.SegmentCreated(ANY, quick[0])
        other.close()
        standing.go_on.set()
        assert set(await replies(peer, 10)) == set(range(10))
        await until_async(lambda: not connection._commands.is_busy)
        assert store._scheduler.under_way == 0


async def test_running_commands_end_with_their_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as (store, peer):
        slow, _ = in_each(store, 10)
        container = store.container_of(slow[0])
        standing = StoodStill(container, monkeypatch)
        peer.send(*(created(number, name) for number, name in enumerate(slow)), wire.KeepAlive())
        assert await peer.receive() == wire.KeepAlive()
        (connection,) = store._connections
        queue = connection._commands
        assert len(queue._running) == 10
        peer.close()
        await until_async(lambda: not queue._running and not connection.replies.is_open)
        assert store.budget.buffered_bytes == 0
        await until_async(lambda: store._scheduler.under_way == 0)
        standing.go_on.set()
        await until_async(lambda: all(container.state.find(name) is not None for name in slow))


# --- table requests of many keys: processed over several turns, answered in order, and bounded ----------


TABLE = "scope/table/0.#epoch.0"


def test_read_of_many_keys_takes_several_turns_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, sizes = table_segments.read, list[int]()

    def counted(keys: Any, *arguments: Any) -> Any:
        sizes.append(len(keys))
        return read(keys, *arguments)

    monkeypatch.setattr(table_segments, "read", counted)
    count = 3 * TABLE_READ_KEYS + 7
    keys = [b"%05d" % number for number in range(count)]

    async def main() -> None:
        async with open_store(tmp_path) as (_, peer):
            await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
            odd = tuple(WireTableEntry(key, NO_VERSION, key) for key in keys[1::2])
            assert isinstance(await peer.ask(wire.UpdateTableEntries(2, TABLE, "", odd)), wire.TableEntriesUpdated)
            reply = await peer.ask(wire.ReadTable(3, TABLE, "", tuple(map(WireTableKey, keys))))
            assert [entry.key for entry in reply.entries] == keys
            assert [bytes(entry.value) for entry in reply.entries[1::2]] == keys[1::2]
            assert {entry.version for entry in reply.entries[::2]} == {NOT_EXISTS}
            assert (await peer.ask(wire.ReadTable(4, TABLE, "", ()))).entries == ()
            assert isinstance(await peer.ask(wire.ReadTable(5, "scope/none/0.#epoch.0", "", ())), wire.NoSuchSegment)

    asyncio.run(main())
    assert max(sizes) == TABLE_READ_KEYS
    assert sum(sizes) == count


async def test_oversized_table_reply_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FRAME_SENT_BYTES", 100_000)
    keys = tuple(WireTableKey(b"%05d" % number) for number in range(3 * TABLE_READ_KEYS))

    async with open_store(tmp_path) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
        few = await peer.ask(wire.ReadTable(2, TABLE, "", keys[: 2 * TABLE_READ_KEYS]))
        assert len(few.entries) == 2 * TABLE_READ_KEYS
        assert isinstance(await peer.ask(wire.ReadTable(3, TABLE, "", keys * 2)), wire.ErrorMessage)


def test_decoder_limits_list_entries() -> None:
    keys = tuple(WireTableKey(b"%05d" % number) for number in range(LIST_MAX_ENTRIES))
    (found,) = Decoder().receive(encode(wire.ReadTable(1, TABLE, "", keys)))
    assert isinstance(found, wire.ReadTable)
    assert len(found.keys) == LIST_MAX_ENTRIES >= 20_000, "as many as two epochs of a stream have segments"
    with pytest.raises(ProtocolError):
        Decoder().receive(encode(wire.ReadTable(1, TABLE, "", (*keys, WireTableKey(b"one more")))))


async def test_table_command_of_many_keys_reads_the_state_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for its conditions and once to apply it; reading each key separately made the largest command take 350
    ms."""
    looks = 0

    def counted(inner: Any) -> Any:
        def look(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return inner(*arguments)

        return look

    for name in ("entry", "versions"):
        monkeypatch.setattr(ContainerMetadata, name, counted(getattr(ContainerMetadata, name)))

    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
        entries = tuple(WireTableEntry(b"k%d" % n, NOT_EXISTS, b"v") for n in range(500))
        keys = tuple(WireTableKey(b"k%d" % n, NO_VERSION) for n in range(700))
        total = 0
        for command, reply in (
            (wire.UpdateTableEntries(2, TABLE, "", entries), wire.TableEntriesUpdated),
            (wire.UpdateTableEntries(3, TABLE, "", entries), wire.TableKeyBadVersion),
            (wire.RemoveTableKeys(4, TABLE, "", (*keys, *keys)), wire.TableKeysRemoved),
            (wire.RemoveTableKeys(5, TABLE, "", keys), wire.TableKeysRemoved),
        ):
            looks = 0
            assert isinstance(await peer.ask(command), reply)
            assert looks <= 2
            total += looks
        assert total
        info = await peer.ask(wire.GetTableSegmentInfo(6, TABLE, ""))
        assert info.entry_count == 0
