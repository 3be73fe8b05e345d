"""Containers that go from one store to another while clients use them: everything goes on, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nadi.client import KeyValueTableConfiguration, Version
from nadi.client.aio import StreamManager
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import add_controller, rpc_server
from nadi.segmentstore.container_registry import container_of
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from tests.segmentstore.two_stores import CONTAINERS, Stores, two_stores

pytestmark = pytest.mark.uvloop

HOST = "127.0.0.1"
MOVES = 6


class Cluster:
    """A controller that knows which store has a container, once that has it."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._where = dict.fromkeys(range(CONTAINERS), stores.one)
        self._segments: dict[bytes, str] = {}  # by writer
        self.moves = 0
        self.asked = 0
        self.controller = Controller(self._exchange, endpoint_of=self._endpoint_of, rpc_endpoint=(HOST, 0))

    def _store_of(self, segment: str) -> SegmentStore:
        return self._where[container_of(segment, CONTAINERS)]

    def _endpoint_of(self, segment: str) -> tuple[str, int]:
        self.asked += 1
        return self._store_of(segment).address

    async def _exchange(self, command: wire.Command) -> wire.Command:
        if isinstance(command, wire.ConditionalAppend):
            segment = self._segments[command.writer_id]
        else:
            names = (getattr(command, name, None) for name in ("segment", "target", "parent_segment"))
            segment = next(name for name in names if name is not None)
        if isinstance(command, wire.SetupAppend):
            self._segments[command.writer_id] = segment
        return await self._store_of(segment).exchange(command)

    async def move(self) -> None:
        """The next container goes to the other store."""
        number = self.moves % CONTAINERS
        origin = self._where[number]
        target = self._stores.two if origin is self._stores.one else self._stores.one
        await self._stores.move(number, origin, target)
        self._where[number] = target
        self.moves += 1


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Cluster, StreamManager]]:
    async with two_stores(folder) as stores:
        made = Cluster(stores)
        await made.controller.start()
        rpc = rpc_server()
        add_controller(rpc, made.controller)
        port = rpc.add_insecure_port(f"{HOST}:0")
        await rpc.start()
        try:
            async with StreamManager(f"tcp://{HOST}:{port}") as manager:
                await manager.create_scope("sc")
                yield made, manager
        finally:
            await rpc.stop(0)
            await made.controller.stop()


class User:
    """Does something again and again until all moves are made; `done` counts."""

    def __init__(self, made: Cluster) -> None:
        self._made = made
        self.done = 0
        self._step = asyncio.Event()

    def goes_on(self) -> bool:
        """Asked before each round."""
        self.done += 1
        self._step.set()
        return self._made.moves < MOVES

    async def rounds(self, count: int) -> None:
        """Wait until it has begun so many more."""
        wanted = self.done + count
        while self.done < wanted and self._made.moves < MOVES:
            self._step.clear()
            await self._step.wait()


async def writes_events(user: User, manager: StreamManager) -> None:
    await manager.create_stream("sc", "events", 3)
    writer = await manager.create_writer("sc", "events")
    count = 0
    while user.goes_on():
        for number in range(count, count + 20):
            writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
        count += 20
        await writer.flush()
    await writer.close()
    await check_events(manager, count)


async def check_events(manager: StreamManager, count: int) -> None:
    reader = await manager.create_reader("sc", "events")
    found: list[bytes] = []
    while len(found) < count:
        block = await reader.next_block(60)
        assert block is not None
        found += block[1].events()
    reader.close()
    for key in range(7):
        of_key = [int(event.split()[1]) for event in found if event.startswith(b"%d " % key)]
        assert of_key == [number for number in range(count) if number % 7 == key]


async def reads_what_another_writes(user: User, manager: StreamManager) -> None:
    """The reader waits at the tail each time."""
    await manager.create_stream("sc", "echo", 1)
    reader = await manager.create_reader("sc", "echo")
    writer = await manager.create_writer("sc", "echo")
    number = 0
    while user.goes_on():
        block = asyncio.create_task(reader.next_block(60))
        await asyncio.sleep(0.01)
        writer.write_event(b"%d" % number)
        found = await block
        assert found is not None
        assert found[1].events() == [b"%d" % number]
        number += 1
    await writer.close()
    reader.close()


async def writes_bytes(user: User, manager: StreamManager) -> None:
    await manager.create_stream("sc", "bytes", 1)
    expected = b""
    writer = await manager.create_byte_writer("sc", "bytes")
    while user.goes_on():
        piece = b"piece %d of the stream," % user.done
        await writer.write(piece)
        expected += piece
        await writer.flush()
    await writer.close()
    reader = await manager.create_byte_reader("sc", "bytes")
    found = b""
    while len(found) < len(expected):
        found += await reader.read(len(expected) - len(found))
    assert found == expected


async def counts_in_a_table(user: User, manager: StreamManager) -> None:
    await manager.create_key_value_table("sc", "table", KeyValueTableConfiguration(1, partitions=3))
    table = await manager.key_value_table("sc", "table")
    count = 0
    versions: dict[bytes, Version] = {}  # a put that names one may not be sent twice, unless nothing was done
    while user.goes_on():
        count += 1
        for key in (b"a", b"b", b"c", b"d"):
            versions[key] = await table.put(key, b"%d" % count, versions.get(key))
            found = await table.get(key)
            assert found is not None
            assert found.value == b"%d" % count


async def commits_transactions(user: User, manager: StreamManager) -> None:
    await manager.create_stream("sc", "txn", 2)
    writer = await manager.create_transaction_writer("sc", "txn")
    count = 0
    while user.goes_on():
        txn = await writer.begin_txn()
        txn.write_event(b"%d" % count, "a")
        txn.write_event(b"%d" % count, "b")
        await txn.commit(wait=True)
        count += 1
    reader = await manager.create_reader("sc", "txn")
    found: list[bytes] = []
    while len(found) < 2 * count:
        block = await reader.next_block(60)
        assert block is not None
        found += block[1].events()
    reader.close()
    assert sorted(map(int, found)) == [number for number in range(count) for _ in range(2)]
    await writer.close()


async def agrees_on_a_map(user: User, manager: StreamManager) -> None:
    await manager.create_stream("sc", "map", 1)
    shared = await manager.shared_map("sc", "map")
    count = 0
    while user.goes_on():
        await shared.put("key", count)
        count += 1
    other = await manager.shared_map("sc", "map")
    assert other["key"] == count - 1


USERS: list[Callable[[User, StreamManager], object]] = [
    writes_events, reads_what_another_writes, writes_bytes, counts_in_a_table, commits_transactions, agrees_on_a_map,
]  # fmt: skip


async def test_all_goes_on_while_containers_move(tmp_path: Path) -> None:
    async with asyncio.timeout(120), cluster(tmp_path) as (made, manager), asyncio.TaskGroup() as tasks:
        users = [User(made) for _ in USERS]
        for user, uses in zip(users, USERS, strict=True):
            tasks.create_task(uses(user, manager))  # type: ignore[arg-type]
        await asyncio.gather(*(user.rounds(2) for user in users))
        before = made.asked
        while made.moves < MOVES:
            await made.move()
            await asyncio.gather(*(user.rounds(2) for user in users))
    assert made.asked > before, "clients ask the controller again"
