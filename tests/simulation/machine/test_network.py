"""The simulated network delivers data in order whatever happens on the way, or ends the connection."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from nadi.access.listener import Listener
from nadi.errors import UnavailableError

from .loop import SimulatedLoop, run, simulated
from .network import LostError, Network
from .process import Process

ADDRESS = ("server", 9090)


class Peer(asyncio.Protocol):
    """Collects received data. takes: whether it reads at once."""

    def __init__(self, takes: bool = True) -> None:
        self.received = bytearray()
        self.pieces: list[int] = []
        self.takes = takes
        self.transport: Any = None
        self.lost: list[Exception | None] = []
        self.paused: list[bool] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if not self.takes:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces.append(len(data))

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Site:
    """A client, and a server with the real listener."""

    def __init__(self, loop: SimulatedLoop, seed: int = 1) -> None:
        self.loop = loop
        self.notes: list[tuple[object, ...]] = []
        self.network = Network(
            loop, lambda whose: random.Random(f"{seed}/{whose}"), lambda *what: self.notes.append(what), lambda *_: None
        )
        self.client, self.server = Process(loop, "client", random.Random(1)), Process(loop, "server", random.Random(2))
        self.guests: list[Peer] = []
        self.takes = True

    async def listen(self, server: Process | None = None) -> None:
        def make(guest: Any) -> Peer:
            self.guests.append(Peer(self.takes))
            return self.guests[-1]

        async def work() -> None:
            listener = Listener(make, lambda protocol: None, most=100, most_of_address=100)
            listener.listen([cast("Any", self.network.door(server or self.server, ADDRESS))])

        await (server or self.server).start(work())

    async def connect(self) -> tuple[Peer, Peer]:
        async def work() -> Peer:
            _, protocol = await self.loop.create_connection(Peer, *ADDRESS)
            assert isinstance(protocol, Peer)
            return protocol

        peer = await self.client.start(work())
        await asyncio.sleep(0.5)
        return peer, self.guests[-1]


@simulated
@pytest.mark.parametrize("seed", range(5))
async def test_bytes_arrive_completely_and_in_order(loop: SimulatedLoop, seed: int) -> None:
    site = Site(loop, seed)
    await site.listen()
    one, other = await site.connect()
    chance = random.Random(seed)
    sent = [chance.randbytes(chance.choice([1, 20, 5_000, 100_000])) for _ in range(30)]
    back = chance.randbytes(70_000)
    other.transport.write(back)
    for number, data in enumerate(sent):
        one.transport.write(data)
        if number == 10:
            site.network.cut("client", "server", 2.0, both=False)
            site.network.stall("server", 1.0, lambda: 1.5)
        if number == 20:
            site.network.slow("client", "server", 3.0, 0.2, 1e6)
        await asyncio.sleep(chance.random() * 0.3)
    one.transport.close()
    await asyncio.sleep(60.0)
    assert (bytes(other.received), bytes(one.received)) == (b"".join(sent), back)
    assert set(other.pieces) - set(map(len, sent)), "they are split"
    assert one.lost == other.lost == [None]


@pytest.mark.parametrize("takes_back", [True, False])
@pytest.mark.parametrize("is_cut", [True, False])
def test_lost_data_is_retransmitted_unless_aborted(*, is_cut: bool, takes_back: bool) -> None:
    results = []

    async def lose(site: Site) -> None:
        await site.listen()
        one, other = await site.connect()
        if is_cut:
            site.network.cut("client", "server", 20.0, both=False)
        else:
            site.network.stall("server", 1.0, lambda: 20.0)
        one.transport.write(b"late")
        await asyncio.sleep(5.0)
        if takes_back:
            one.transport.take_back()
        one.transport.abort()
        await asyncio.sleep(60.0)
        results.append(bytes(other.received))
        assert [type(error) for error in other.lost] == [ConnectionResetError]

    for seed in range(5):  # several, since a reset may always lose data
        run(lambda loop, seed=seed: lose(Site(loop, seed)))  # type: ignore[misc]
    assert set(results) == {b""} if takes_back else b"late" in results


@simulated
async def test_sender_stops_when_the_peer_does_not_read(loop: SimulatedLoop) -> None:
    site = Site(loop)
    site.takes = False
    await site.listen()
    one, other = await site.connect()
    data = random.Random(1).randbytes(4 << 20)
    one.transport.write(data)
    await asyncio.sleep(10.0)
    assert one.paused == [True]
    assert one.transport.get_write_buffer_size() >= len(data) - (1 << 20)
    assert not other.received
    other.transport.resume_reading()
    await asyncio.sleep(30.0)
    assert one.paused == [True, False]
    assert bytes(other.received) == data


@simulated
async def test_cut_delays_one_direction_only(loop: SimulatedLoop) -> None:
    site = Site(loop)
    await site.listen()
    one, other = await site.connect()
    site.network.cut("client", "server", 10.0, both=False)
    one.transport.write(b"there")
    other.transport.write(b"back")
    await asyncio.sleep(9.0)
    assert (bytes(other.received), bytes(one.received)) == (b"", b"back")
    await asyncio.sleep(10.0)
    assert bytes(other.received) == b"there"


@simulated
async def test_peers_notice_a_kill_but_not_a_power_failure(loop: SimulatedLoop) -> None:
    site = Site(loop)
    await site.listen()
    one, _ = await site.connect()
    site.server.kill()
    await asyncio.sleep(1.0)
    assert isinstance(one.lost[0], ConnectionResetError)
    with pytest.raises(ConnectionRefusedError):
        await site.connect()

    again = Process(loop, "server", random.Random(3))
    await site.listen(again)
    one, _ = await site.connect()
    again.kill(with_power=True)
    one.transport.write(b"are you there?")
    await asyncio.sleep(100.0)
    assert not one.lost, "nothing answers"
    site.network.is_back("server")
    one.transport.write(b"are you there?")
    await asyncio.sleep(1.0)
    assert isinstance(one.lost[0], ConnectionResetError)


# --- calls ----------------------------------------------------------------------------------------------


@simulated
async def test_call_is_answered_late_or_its_outcome_is_unknown(loop: SimulatedLoop) -> None:
    site, served = Site(loop), 0

    async def count() -> int:
        nonlocal served
        served += 1
        await asyncio.sleep(1.0)
        return served

    def call() -> asyncio.Task[int]:
        living = site.server if site.server.is_alive else None
        return site.client.start(site.network.call(lambda: living, "server", count))

    task = call()
    await asyncio.sleep(0.5)
    site.server.pause(60.0)
    assert await task == 1
    assert loop.now > 60.0

    site.network.lost = 0.3
    results = await asyncio.gather(*(call() for _ in range(100)), return_exceptions=True)
    lost = sum(isinstance(result, LostError) for result in results)
    assert 101 - served < lost < 100, "some of the lost calls were executed"

    site.network.lost = 0.0
    task = call()
    await asyncio.sleep(0.5)
    site.server.kill()
    with pytest.raises(LostError):
        await task
    with pytest.raises(UnavailableError):
        await call()
