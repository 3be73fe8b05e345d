"""A listener's limits in total and per address, and the eviction of idle connections for new ones."""

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
from nadi.access.listener import AcceptedConnection, Listener, available_files, bound_sockets
from nadi.limits import FILES_FOR_STORAGE
from tests.access.support import certificate
from tests.support.peers import open_connection

pytestmark = pytest.mark.uvloop


class Echo(asyncio.Protocol):
    """Settles at the first byte, unless it is a question mark."""

    def __init__(self, accepted: AcceptedConnection) -> None:
        self.accepted = accepted
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if data != b"?":
            self.accepted.mark_busy()
        self.transport.write(b"extra" if self.accepted.is_extra else b"plain")

    def connection_lost(self, error: Exception | None) -> None:
        self.accepted.leave()


def end(protocol: asyncio.BaseProtocol) -> None:
    assert isinstance(protocol, Echo)
    if protocol.transport is not None:
        protocol.transport.abort()


@asynccontextmanager
async def echo_server(
    most: int, most_of_address: int, extra: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Listener, tuple[str, int]]]:
    listener = Listener(Echo, end, most=most, most_of_address=most_of_address, extra=extra, name="echo")
    sockets = await bound_sockets("127.0.0.1", 0)
    listener.listen(sockets, None if tls is None else lambda: tls)
    try:
        yield listener, sockets[0].getsockname()
    finally:
        listener.close()


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: tuple[str, int], local: str = "127.0.0.1") -> Peer:
        return cls(*await open_connection(*address, local_addr=(local, 0)))

    async def send(self, data: bytes = b"!") -> bytes:
        """Send data; return the answer, or b"" if the connection was rejected or evicted."""
        try:
            self.writer.write(data)
            return await asyncio.wait_for(self.reader.read(5), 60)
        except ConnectionError:
            return b""


async def until(count: int, listener: Listener) -> None:
    async with asyncio.timeout(60):
        while len(listener.connections) != count:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.001)


async def test_longest_idle_connection_is_evicted_for_a_new_one() -> None:
    async with echo_server(3, 3) as (listener, address):
        quiet = [await Peer.connect(address) for _ in range(3)]
        await until(3, listener)
        new = await Peer.connect(address)
        assert await new.send() == b"plain"
        assert await quiet[0].send() == b"", "the longest idle one was evicted"
        assert await quiet[1].send() == b"plain"
        assert (len(listener.connections), listener.ended, listener.refused) == (3, 1, 0)


async def test_settled_connection_is_not_evicted_and_a_closed_one_frees_its_place() -> None:
    async with echo_server(2, 2) as (listener, address):
        settled = [await Peer.connect(address) for _ in range(2)]
        assert [await peer.send() for peer in settled] == [b"plain"] * 2
        assert await (await Peer.connect(address)).send() == b""
        assert [await peer.send() for peer in settled] == [b"plain"] * 2
        settled.pop().writer.close()
        await until(1, listener)
        assert await (await Peer.connect(address)).send() == b"plain"
        assert (listener.refused, listener.ended) == (1, 0)


async def test_connection_evicted_before_its_protocol_started_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections are accepted in one loop iteration, and most are evicted in it for later ones."""
    accepted: list[socket.socket] = []
    admit = Listener._admit

    def noted(self: Listener, connection: socket.socket, address: str) -> None:
        accepted.append(connection)
        admit(self, connection, address)

    monkeypatch.setattr(Listener, "_admit", noted)
    async with echo_server(1, 1) as (listener, address):
        crowd = [socket.create_connection(address) for _ in range(5)]
        async with asyncio.timeout(60):
            while listener.ended < 4 or any(connection.fileno() != -1 for connection in accepted[:-1]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for connection in crowd:
            connection.close()


async def test_full_address_does_not_evict_connections_of_others() -> None:
    async with echo_server(10, 2) as (listener, address):
        crowd = [await Peer.connect(address) for _ in range(2)]
        assert [await peer.send() for peer in crowd] == [b"plain"] * 2
        assert await (await Peer.connect(address)).send() == b""
        other = await Peer.connect(address, "127.0.0.2")
        assert await other.send() == b"plain"
        idle = await Peer.connect(address, "127.0.0.3")  # an idle connection of another address
        await until(4, listener)
        assert await (await Peer.connect(address)).send() == b""
        assert await idle.send() == b"plain"


async def test_extra_places_are_for_short_requests() -> None:
    async with echo_server(2, 2, extra=1) as (listener, address):
        settled = [await Peer.connect(address) for _ in range(2)]
        assert [await peer.send() for peer in settled] == [b"plain"] * 2
        first = await Peer.connect(address)
        assert await first.send(b"?") == b"extra"
        second = await Peer.connect(address)
        assert await second.send(b"?") == b"extra"  # in the place of the first
        assert await first.send(b"?") == b""
        assert len(listener.connections) == 3


async def test_unfinished_handshake_counts_and_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "TLS_HANDSHAKE_S", 60.0)
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    trusting = ssl.create_default_context(cafile=str(files.authority))

    async with echo_server(2, 2, tls=context) as (listener, address):
        halves = [await Peer.connect(address) for _ in range(2)]
        await until(2, listener)
        complete = Peer(*await open_connection(*address, ssl=trusting, server_hostname="localhost"))
        assert await complete.send() == b"plain"
        assert await asyncio.wait_for(halves[0].reader.read(), 20) == b"", "it was evicted"
        monkeypatch.setattr(listening, "TLS_HANDSHAKE_S", 0.3)
        half = await Peer.connect(address)
        assert await asyncio.wait_for(halves[1].reader.read(), 20) == b"", "it was evicted"
        assert await asyncio.wait_for(half.reader.read(), 20) == b"", "it missed its deadline"
        await until(1, listener)
        assert await complete.send() == b"plain"


@pytest.mark.parametrize("first_bytes", [0, 3, 100])
def test_handshakes_per_loop_iteration_are_limited(tmp_path: Path, first_bytes: int) -> None:
    """Many ClientHellos end at the same time; with RSA each costs the loop a few milliseconds."""
    files = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    trusting = ssl.create_default_context(cafile=str(files.authority))
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()

    async def main() -> None:
        async with echo_server(500, 500, tls=context) as (listener, address):
            crowd = [socket.create_connection(address) for _ in range(150)]
            await until(len(crowd), listener)
            for connection in crowd:
                connection.sendall(hello[:first_bytes])
            for _ in range(50):
                await _cpu_of_an_iteration()
            for connection in crowd:
                connection.sendall(hello[first_bytes:])
                connection.setblocking(False)
            turns, answered = [], 0
            while answered < len(crowd):
                turns.append(await _cpu_of_an_iteration())
                answered = sum(map(_is_answered, crowd)) if len(turns) % 50 == 0 else answered
            longest, total_s = max(turns), sum(turns)
            assert longest < total_s / 4, f"an iteration took {longest * 1e3:.0f} of {total_s * 1e3:.0f} ms of CPU time"
            complete = Peer(*await open_connection(*address, ssl=trusting, server_hostname="localhost"))
            assert await complete.send() == b"plain"
            for connection in crowd:
                connection.close()

    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()


async def _cpu_of_an_iteration() -> float:
    before = time.thread_time()
    await asyncio.sleep(0)
    return time.thread_time() - before


def _is_answered(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return False


def test_listeners_leave_open_files_for_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert available_files(10) == 10
    assert 3 * available_files(10_000) + FILES_FOR_STORAGE <= 1024
