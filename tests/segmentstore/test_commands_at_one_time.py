"""Commands that come one after another over one connection, before any is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from nadi import limits
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, TableEntry, TableKey
from tests.segmentstore.harness import Peer, connect, open_store
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

T = "scope/table_kvtable/0.#epoch.0"


def names(count: int) -> list[str]:
    return [f"scope/stream-{number}/0.#epoch.0" for number in range(count)]


def created(number: int, name: str) -> wire.CreateSegment:
    return wire.CreateSegment(number, name, 0, 0, "")


async def replies(peer: Peer, count: int) -> dict[int, Any]:
    """By request id."""
    found = [await peer.receive() for _ in range(count)]
    return {reply.request_id: reply for reply in found}


class StoodStill:
    """A container's log takes nothing until it is told to go on."""

    def __init__(self, container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        append = container.log.append

        async def appended(parts: Sequence[Any]) -> Any:
            await self.go_on.wait()
            return await append(parts)

        monkeypatch.setattr(container.log, "append", appended)


def in_each(store: SegmentStore, count: int) -> tuple[list[str], list[str]]:
    """So many names in the first container, and in the second."""
    first, second = store.containers
    all_names = names(8 * count)
    mine = [[name for name in all_names if store.container_of(name) is one][:count] for one in (first, second)]
    assert all(len(found) == count for found in mine)
    return mine[0], mine[1]


async def test_they_share_frames(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        before = store.containers[0].state.sequence
        peer.send(*(created(number, name) for number, name in enumerate(names(150))))
        found = await replies(peer, 150)
        assert [type(found[number]) for number in range(150)] == [wire.SegmentCreated] * 150
        assert store.containers[0].state.sequence - before < 30


async def test_one_container_that_stands_still_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path) as (store, peer):
        ((slow,), (quick,)) = in_each(store, 1)
        standing = StoodStill(store.container_of(slow), monkeypatch)
        peer.send(created(1, slow), created(2, quick))
        assert await peer.receive() == wire.SegmentCreated(2, quick)
        standing.go_on.set()
        assert await peer.receive() == wire.SegmentCreated(1, slow)


async def test_what_isnt_handled_beside_others_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_those_on_one_segment_keep_their_order(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        (name,) = names(1)
        commands: list[wire.Command] = []
        for number in range(0, 100, 2):
            commands += [created(number, name), wire.DeleteSegment(number + 1, name, "")]
        commands.append(wire.CreateTableSegment(100, T, ""))
        for number in range(101, 201):
            entry = TableEntry(b"key", NO_VERSION, b"%d" % number)
            commands.append(wire.UpdateTableEntries(number, T, "", (entry,)))
        commands.append(wire.ReadTable(201, T, "", (TableKey(b"key"),)))
        commands += [wire.SealSegment(202, T, ""), wire.DeleteTableSegment(203, T, False, "")]
        peer.send(*commands)
        found = await replies(peer, len(commands))
        assert [type(found[number]) for number in range(100)] == [wire.SegmentCreated, wire.SegmentDeleted] * 50
        assert found[201].entries[0].value == b"200"
        assert isinstance(found[203], wire.SegmentDeleted)


async def test_they_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_COMMANDS_AT_ONCE", 4)
    async with open_store(tmp_path) as (store, peer):
        slow, quick = in_each(store, 10)
        standing = StoodStill(store.container_of(slow[0]), monkeypatch)
        peer.send(*(created(number, name) for number, name in enumerate(slow)), created(10, quick[0]))
        peer.send(wire.KeepAlive())
        assert await peer.receive() == wire.KeepAlive(), "all are taken"
        queue = next(iter(store._connections))._commands
        assert len(queue._running) == 4
        assert len(queue._waiting) == 7
        standing.go_on.set()
        assert set(await replies(peer, 11)) == set(range(11))
        await until_async(lambda: not queue.is_busy)


async def test_they_are_bounded_for_all_connections_and_each_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_UNDER_WAY", 3)
    async with open_store(tmp_path) as (store, peer):
        slow, quick = in_each(store, 10)
        standing = StoodStill(store.container_of(slow[0]), monkeypatch)
        peer.send(*(created(number, name) for number, name in enumerate(slow)), wire.KeepAlive())
        assert await peer.receive() == wire.KeepAlive(), "all are taken"
        (connection,) = store._connections
        assert len(connection._commands._running) == 3
        other = await connect(store.address)
        assert await other.create(quick[0]) == wire.SegmentCreated(ANY, quick[0])
        other.close()
        standing.go_on.set()
        assert set(await replies(peer, 10)) == set(range(10))
        await until_async(lambda: not connection._commands.is_busy)
        assert store._scheduler.under_way == 0


async def test_those_under_way_end_with_their_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert store.budget.held_bytes == 0
        await until_async(lambda: store._scheduler.under_way == 0)
        standing.go_on.set()
        await until_async(lambda: all(container.state.find(name) is not None for name in slow))
