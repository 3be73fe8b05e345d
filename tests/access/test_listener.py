"""A door's places: so many in all and for one address, and who says nothing goes for who comes."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop

from nadi.access import listener as listening
from nadi.access.listener import Guest, Listener, bound_sockets, files_left
from nadi.limits import FILES_FOR_STORAGE
from tests.access.support import certificate
from tests.support.peers import open_connection

pytestmark = pytest.mark.uvloop


class Echo(asyncio.Protocol):
    """Settles at the first byte, if it is no question mark."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if data != b"?":
            self.guest.settle()
        self.transport.write(b"extra" if self.guest.is_extra else b"plain")

    def connection_lost(self, error: Exception | None) -> None:
        self.guest.leave()


def end(protocol: asyncio.BaseProtocol) -> None:
    assert isinstance(protocol, Echo)
    if protocol.transport is not None:
        protocol.transport.abort()


@asynccontextmanager
async def door(
    most: int, most_of_address: int, extra: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Listener, tuple[str, int]]]:
    listener = Listener(Echo, end, most=most, most_of_address=most_of_address, extra=extra, name="echo")
    sockets = await bound_sockets("127.0.0.1", 0)
    listener.listen(sockets, tls)
    try:
        yield listener, sockets[0].getsockname()
    finally:
        listener.close()


class Visitor:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def come(cls, address: tuple[str, int], local: str = "127.0.0.1") -> Visitor:
        return cls(*await open_connection(*address, local_addr=(local, 0)))

    async def say(self, words: bytes = b"!") -> bytes:
        """The answer; b"" if it has no place, or lost it."""
        try:
            self.writer.write(words)
            return await asyncio.wait_for(self.reader.read(5), 60)
        except ConnectionError:
            return b""


async def until(count: int, listener: Listener) -> None:
    async with asyncio.timeout(60):
        while len(listener.guests) != count:  # noqa: ASYNC110 - it is looked at from outside
            await asyncio.sleep(0.001)


async def test_who_says_nothing_goes_for_who_comes() -> None:
    async with door(3, 3) as (listener, address):
        quiet = [await Visitor.come(address) for _ in range(3)]
        await until(3, listener)
        comes = await Visitor.come(address)
        assert await comes.say() == b"plain"
        assert await quiet[0].say() == b"", "who was quiet longest went"
        assert await quiet[1].say() == b"plain"
        assert (len(listener.guests), listener.ended, listener.refused) == (3, 1, 0)


async def test_who_has_settled_stays_and_who_leaves_makes_place() -> None:
    async with door(2, 2) as (listener, address):
        here = [await Visitor.come(address) for _ in range(2)]
        assert [await one.say() for one in here] == [b"plain"] * 2
        assert await (await Visitor.come(address)).say() == b""
        assert [await one.say() for one in here] == [b"plain"] * 2
        here.pop().writer.close()
        await until(1, listener)
        assert await (await Visitor.come(address)).say() == b"plain"
        assert (listener.refused, listener.ended) == (1, 0)


async def test_who_goes_before_he_is_let_in_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many are accepted in one turn, and most must go in it for those behind them."""
    accepted: list[socket.socket] = []
    admit = Listener._admit

    def noted(self: Listener, one: socket.socket, address: str) -> None:
        accepted.append(one)
        admit(self, one, address)

    monkeypatch.setattr(Listener, "_admit", noted)
    async with door(1, 1) as (listener, address):
        crowd = [socket.create_connection(address) for _ in range(5)]
        async with asyncio.timeout(60):
            while listener.ended < 4 or any(one.fileno() != -1 for one in accepted[:-1]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for one in crowd:
            one.close()


async def test_one_address_does_not_take_the_places_of_others() -> None:
    async with door(10, 2) as (listener, address):
        crowd = [await Visitor.come(address) for _ in range(2)]
        assert [await one.say() for one in crowd] == [b"plain"] * 2
        assert await (await Visitor.come(address)).say() == b""
        other = await Visitor.come(address, "127.0.0.2")
        assert await other.say() == b"plain"
        waits = await Visitor.come(address, "127.0.0.3")  # and who waits elsewhere does not go for the crowd
        await until(4, listener)
        assert await (await Visitor.come(address)).say() == b""
        assert await waits.say() == b"plain"


async def test_extra_places_are_for_short_questions() -> None:
    async with door(2, 2, extra=1) as (listener, address):
        here = [await Visitor.come(address) for _ in range(2)]
        assert [await one.say() for one in here] == [b"plain"] * 2
        first = await Visitor.come(address)
        assert await first.say(b"?") == b"extra"
        second = await Visitor.come(address)
        assert await second.say(b"?") == b"extra"  # in the place of the first
        assert await first.say(b"?") == b""
        assert len(listener.guests) == 3


async def test_half_a_handshake_has_a_place_and_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "TLS_HANDSHAKE_S", 60.0)
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    trusting = ssl.create_default_context(cafile=str(files.authority))

    async with door(2, 2, tls=context) as (listener, address):
        halves = [await Visitor.come(address) for _ in range(2)]
        await until(2, listener)
        whole = Visitor(*await open_connection(*address, ssl=trusting, server_hostname="localhost"))
        assert await whole.say() == b"plain"
        assert await asyncio.wait_for(halves[0].reader.read(), 20) == b"", "it went for one who came"
        monkeypatch.setattr(listening, "TLS_HANDSHAKE_S", 0.3)
        half = await Visitor.come(address)
        assert await asyncio.wait_for(halves[1].reader.read(), 20) == b"", "it went for one who came"
        assert await asyncio.wait_for(half.reader.read(), 20) == b"", "it was too slow"
        await until(1, listener)
        assert await whole.say() == b"plain"


@pytest.mark.parametrize("first_bytes", [0, 3, 100])
def test_few_handshakes_begin_in_a_turn(tmp_path: Path, first_bytes: int) -> None:
    """A crowd's hellos, the last bytes of which come at once; with RSA each costs the loop some milliseconds."""
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    trusting = ssl.create_default_context(cafile=str(files.authority))
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()

    async def main() -> None:
        async with door(500, 500, tls=context) as (listener, address):
            crowd = [socket.create_connection(address) for _ in range(150)]
            await until(len(crowd), listener)
            for one in crowd:
                one.sendall(hello[:first_bytes])
            for _ in range(50):
                await _cpu_of_a_turn()
            for one in crowd:
                one.sendall(hello[first_bytes:])
                one.setblocking(False)
            turns, answered = [], 0
            while answered < len(crowd):
                turns.append(await _cpu_of_a_turn())
                answered = sum(_is_answered(one) for one in crowd) if len(turns) % 50 == 0 else answered
            longest, whole_s = max(turns), sum(turns)
            assert longest < whole_s / 4, f"a turn took {longest * 1e3:.0f} of {whole_s * 1e3:.0f} ms of processor time"
            whole = Visitor(*await open_connection(*address, ssl=trusting, server_hostname="localhost"))
            assert await whole.say() == b"plain"
            for one in crowd:
                one.close()

    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()


async def _cpu_of_a_turn() -> float:
    before = time.thread_time()
    await asyncio.sleep(0)
    return time.thread_time() - before


def _is_answered(one: socket.socket) -> bool:
    try:
        return one.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return False


def test_doors_leave_files_for_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert files_left(10) == 10
    assert 3 * files_left(10_000) + FILES_FOR_STORAGE <= 1024
