"""Where a segment is, is told of servers that are there: a client may keep the answer for long."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, cast

import pytest

from nadi import limits
from nadi.cluster.map import Address, Map, takes_connections
from nadi.errors import UnavailableError
from nadi.runtime import Runtime
from nadi.wire.rpc import controller_pb2 as pb
from tests.support.waiting import until_async

AT_ONCE_S = 8.0  # where nothing is settled one waits for ten seconds
OWN, OTHER, THIRD = ("own", 1), ("other", 2), ("third", 3)
SEGMENT = pb.SegmentId(streamInfo=pb.StreamInfo(scope="home", stream="meters"), segmentId=0)


class Clock(Runtime):
    """The real one, and ahead of it as the test says."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Servers(Map):
    """owner: of all segments. up: which take connections. lives: which are heard of."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(cast("Any", None), 1, self.clock, self._ring)
        self.own = OWN
        self.owner: Address | None = OTHER
        self.up, self.lives = {OWN, OTHER, THIRD}, set[Address]()
        self.rings = self.at_once = 0
        self.answers_after_s = 0.0
        self.answers = asyncio.Event()
        self.answers.set()

    def find(self, segment: str) -> Address | None:
        return self.owner

    def lives_since(self, store: Address, since: float) -> bool:
        return store in self.lives

    async def _ring(self, address: Address) -> bool:
        self.rings += 1
        self.at_once += 1
        await asyncio.sleep(self.answers_after_s)
        await self.answers.wait()
        self.at_once -= 1
        return address in self.up

    async def where(self) -> Address:
        found = await self.get_uri(SEGMENT)
        return found.endpoint, found.port


async def test_one_that_was_just_killed_is_not_named_and_its_successor_is_at_once() -> None:
    servers = Servers()
    assert await servers.where() == OTHER
    servers.up.remove(OTHER)
    asked = asyncio.create_task(servers.where())
    await asyncio.sleep(0.3)
    assert not asked.done()
    servers.owner = None
    await asyncio.sleep(0.1)
    assert not asked.done()
    servers.owner = THIRD
    async with asyncio.timeout(AT_ONCE_S):
        assert await asked == THIRD


async def test_one_that_is_back_is_named() -> None:
    servers = Servers()
    servers.up.remove(OTHER)
    asked = asyncio.create_task(servers.where())
    await asyncio.sleep(0.1)
    servers.up.add(OTHER)
    async with asyncio.timeout(AT_ONCE_S):
        assert await asked == OTHER


async def test_one_that_lives_and_is_cut_off_from_here_is_named() -> None:
    servers = Servers()
    servers.up.remove(OTHER)
    asked = asyncio.create_task(servers.where())
    await asyncio.sleep(0.2)
    assert not asked.done()
    servers.lives.add(OTHER)
    async with asyncio.timeout(AT_ONCE_S):
        assert await asked == OTHER


async def test_what_lies_here_is_told_without_asking_anybody() -> None:
    servers = Servers()
    servers.owner = OWN
    assert await servers.where() == OWN
    assert servers.rings == 0


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_WHERE_S", 0.2)
    servers = Servers()
    servers.owner = None
    with pytest.raises(UnavailableError, match=r"home/meters/0\.#epoch\.0 is between two servers: try again"):
        await servers.where()
    servers.owner = OTHER
    servers.up.remove(OTHER)
    with pytest.raises(UnavailableError, match=r"home/meters/0\.#epoch\.0 takes no connections: try again"):
        await servers.where()


async def test_callers_at_the_same_time_share_a_ring() -> None:
    servers = Servers()
    servers.answers.clear()
    first = asyncio.create_task(servers.where())
    await until_async(lambda: servers.at_once)
    late = [asyncio.create_task(servers.where()) for _ in range(100)]
    await asyncio.sleep(0.02)
    servers.answers.set()
    assert {*await asyncio.gather(first, *late)} == {OTHER}
    assert servers.rings == 1
    assert await servers.where() == OTHER
    assert servers.rings == 2


async def test_a_port_that_listens_takes_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_RING_S", 60.0)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    assert await takes_connections(address)
    server.close()
    await server.wait_closed()
    assert not await takes_connections(address)


async def test_what_cant_be_an_address_takes_no_connections() -> None:
    assert not await takes_connections(("a..b", 9000))


async def test_rings_leave_no_ports_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is kept for a minute once its connection was closed in order; a system has some 28,000."""
    monkeypatch.setattr(limits, "CLUSTER_RING_S", 60.0)

    async def until_it_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    async def kept(port: int) -> set[str]:
        """Whose connections to the port are kept."""
        rows = (line.split() for line in (await asyncio.to_thread(Path("/proc/net/tcp").read_text)).splitlines()[1:])
        return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "06"}  # TIME_WAIT

    server = await asyncio.start_server(until_it_ends, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    before = await kept(address[1])  # of another server that had it
    for _ in range(50):
        assert await takes_connections(address)
    server.close()
    assert await kept(address[1]) <= before


async def test_of_a_store_that_says_nothing_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are refused after one ring, which they share."""
    monkeypatch.setattr(limits, "CLUSTER_WHERE_AT_ONCE", 3)
    servers = Servers()
    servers.up.remove(OTHER)
    servers.answers_after_s = 0.2
    first = [asyncio.create_task(servers.where()) for _ in range(10)]
    for _ in range(7):
        await asyncio.wait([task for task in first if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        if sum(task.done() for task in first) == 7:
            break
    assert sum(task.done() for task in first) == 7
    more = [asyncio.create_task(servers.where()) for _ in range(10)]
    await asyncio.wait(more, timeout=60)
    assert sum(task.done() for task in first) == 7
    servers.clock.ahead_s = 60.0  # longer than anybody waits
    found = await asyncio.gather(*first, *more, return_exceptions=True)
    assert {type(one) for one in found} == {UnavailableError}
    servers.up.add(OTHER)
    assert await servers.where() == OTHER


async def test_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls need room, too."""
    monkeypatch.setattr(limits, "CLUSTER_WHERE_AT_ONCE", 3)
    servers = Servers()
    servers.owner = None
    waiting = [asyncio.create_task(servers.where()) for _ in range(3)]
    await asyncio.sleep(0.02)
    with pytest.raises(UnavailableError, match="is between two servers: try again"):
        await servers.where()
    servers.owner = THIRD
    assert {*await asyncio.gather(*waiting)} == {THIRD}
    assert await servers.where() == THIRD
