"""Syslog over UDP, TCP and TLS, to a real server: what is too much, what is none, and who goes first."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import nadi
from nadi.errors import StreamSealedError
from nadi.ingest.syslog import connections
from nadi.ingest.syslog import receiver as receivers
from nadi.ingest.syslog.choices import Form
from nadi.limits import SYSLOG_MESSAGE_BYTES
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import RestartableServer
from nadi.throttled_log import SeldomWarning
from tests.access.support import certificate
from tests.ingest.syslog.receiving import LINES, MESSAGES, receiving, stored
from tests.support.waiting import until_async

pytestmark = [pytest.mark.uvloop, pytest.mark.timeout(180)]
ANY = ("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not stored within this is left behind."""
    monkeypatch.setattr(receivers, "SYSLOG_CLOSING_S", 60.0)


@pytest.fixture
def told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told at most once a second is told once: the clock stands still."""
    for module in (connections, receivers):
        monkeypatch.setattr(module, "SeldomWarning", partial(SeldomWarning, clock=lambda: 0.0))


@pytest.fixture
def uri(server: EmbeddedServer) -> str:
    return server.controller_uri


@pytest.fixture
def stream(uri: str, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).replace("_", "-").partition("[")[0]
    with nadi.StreamManager(uri) as manager:
        manager.create_stream("in", name, 2)
    return name


async def _send(address: tuple[str, int], data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What the receiver answers until it ends the connection; which is nothing."""
    async with _peer(address, tls) as (reader, writer):
        writer.write(data)
        if tls is None:
            writer.write_eof()
        return await reader.read()


@asynccontextmanager
async def _peer(
    address: tuple[str, int], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def _cut_off(address: tuple[str, int], data: bytes, tls: ssl.SSLContext | None = None) -> None:
    """Send what the receiver ends the connection for, whenever the sender learns that."""
    with suppress(OSError):
        assert await _send(address, data, tls) == b""


async def test_over_tcp_in_either_framing(uri: str, stream: str) -> None:
    counted = b"".join(b"%d %s" % (len(one), one) for one in MESSAGES)
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY)
        for number, data in enumerate((LINES, counted, LINES.replace(b"\n", b"\0")[:-1])):
            assert await _send(receiver.addresses["TCP"], data) == b""
            assert receiver.count.stored == (number + 1) * len(MESSAGES)  # by the time that it ends the connection
    assert stored(uri, stream) == MESSAGES * 3  # one host's, in order


async def test_what_an_event_says(uri: str, stream: str) -> None:
    async with receiving(uri, stream, Form.JSON) as receiver:
        await receiver.listen_tcp(ANY)
        await _send(receiver.addresses["TCP"], MESSAGES[0])
    [event] = map(json.loads, stored(uri, stream))
    assert event.pop("received") > "2026-"
    assert event == {
        "time": "2026-10-11T22:14:15.003Z",
        "from": "127.0.0.1",
        "facility": "auth",
        "severity": "crit",
        "host": "kitchen",
        "app": "su",
        "msgid": "ID47",
        "message": "number 0",
    }


async def test_over_tls_with_certificates_of_clients(
    uri: str, stream: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = certificate(tmp_path / "ours"), certificate(tmp_path / "theirs", "client.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.certificate, ours.key)
    context.load_verify_locations(theirs.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY, context)
        client = ssl.create_default_context(cafile=ours.authority)
        await _cut_off(receiver.addresses["TLS"], LINES, client)
        await _cut_off(receiver.addresses["TLS"], b"<1>not TLS\n")
        await until_async(lambda: receiver.count.broken == 2)
        assert "connections ended, the last from 127.0.0.1" in caplog.text
        client.load_cert_chain(theirs.certificate, theirs.key)
        async with _peer(receiver.addresses["TLS"], client) as (_, sender):
            sender.write(LINES + MESSAGES[0])
            await until_async(lambda: receiver.count.stored == len(MESSAGES))
            sender.close()
            await until_async(lambda: receiver.connections == 0)
    assert stored(uri, stream)[: len(MESSAGES)] == MESSAGES
    assert receiver.count.messages == len(MESSAGES) + 1  # the last line, at the end of the connection


@pytest.mark.usefixtures("told_once")
async def test_hostile_bytes_harm_nobody_else(uri: str, stream: str, caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY)
        address = receiver.addresses["TCP"]
        async with _peer(address) as (reader, quiet):
            long = b"<13>" + b"x" * SYSLOG_MESSAGE_BYTES
            await _send(address, b"999999999 " + long)
            await _send(address, long + b"yyy\n<13>after\n")
            await _send(address, b"GET / HTTP/1.1\r\n\r\n")
            await _send(address, b"\n\0\r\n  \n")
            await _send(address, b"9 <1>ab")
            for _ in range(3):
                await _cut_off(address, b"5 <1>ab?" + os.urandom(300_000).replace(b" ", b""))
            torn = socket.create_connection(address)
            torn.sendall(b"<13>half a message")
            torn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            torn.close()  # a reset
            await until_async(lambda: receiver.count.broken == 3)
            assert caplog.text.count("has no length before it") == 1
            assert receiver.count.cut == 2
            quiet.write(LINES)
            quiet.write_eof()
            assert await reader.read() == b""
    found = stored(uri, stream)
    assert [one for one in found if one in MESSAGES] == MESSAGES
    cut = long[:SYSLOG_MESSAGE_BYTES]
    assert sorted(one for one in found if one not in MESSAGES) == sorted(
        [cut, cut, b"<13>after", b"GET / HTTP/1.1", b"  ", b"<1>ab", b"<1>ab", b"<1>ab"]
    )


@pytest.mark.usefixtures("told_once")
async def test_connections_beyond_the_limits(
    uri: str, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY)
        for name, reason in (("SYSLOG_CONNECTIONS_OF_ADDRESS", "of it are open"), ("SYSLOG_CONNECTIONS", "1 are open")):
            with monkeypatch.context() as patched:
                patched.setattr(connections, name, 1)
                first = socket.create_connection(receiver.addresses["TCP"])
                await until_async(lambda: receiver.connections == 1)
                refused = receiver.count.refused
                with socket.create_connection(receiver.addresses["TCP"]) as second:
                    await until_async(lambda before=refused: receiver.count.refused == before + 1)  # type: ignore[misc]
                    assert await asyncio.to_thread(second.recv, 1) == b""
                assert (reason in caplog.text) == (refused == 0)  # the second time isn't told
                first.close()
                await until_async(lambda: receiver.connections == 0)
        await _send(receiver.addresses["TCP"], LINES)
    assert stored(uri, stream) == MESSAGES


async def test_a_handshake_that_never_ends(
    uri: str, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SYSLOG_HANDSHAKE_S", 0.2)
    ours = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.certificate, ours.key)
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY, context)
        with socket.create_connection(receiver.addresses["TLS"]):
            await until_async(lambda: receiver.count.broken == 1)
            assert receiver.connections == 0
        monkeypatch.setattr(connections, "SYSLOG_HANDSHAKE_S", 600.0)
        monkeypatch.setattr(receivers, "SYSLOG_CLOSING_S", 600.0)
        with socket.create_connection(receiver.addresses["TLS"]):
            await until_async(lambda: receiver.connections == 1)
            async with asyncio.timeout(60):
                await receiver.close()  # doesn't wait for it


# --- datagrams -------------------------------------------------------------------------------------


async def test_over_udp_and_what_it_loses_is_counted(uri: str, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "SYSLOG_SOCKET_BYTES", 4096)
    async with receiving(uri, stream) as receiver:
        await receiver.listen_udp(ANY)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for message in (MESSAGES[0] + b"\n", b"", b"\n", b"<13>two\nlines", b"\xff" * 60_000):
                sender.sendto(message, receiver.addresses["UDP"])
                await asyncio.sleep(0)
            await until_async(lambda: receiver.count.stored >= 2)
            before = receiver.count.messages
            for message in MESSAGES:  # while the loop doesn't run: the socket's buffer has room for some
                sender.sendto(message, receiver.addresses["UDP"])
            await until_async(lambda: receiver.count.messages + receiver.lost_by_system >= before + len(MESSAGES))
    assert receiver.lost_by_system > 0  # also now that it is closed
    found = stored(uri, stream)
    assert len(found) == receiver.count.stored == receiver.count.messages
    assert {MESSAGES[0], b"<13>two\nlines"} <= set(found)


async def test_what_the_system_has_at_the_end_is_stored_too(uri: str, stream: str) -> None:
    async with receiving(uri, stream) as receiver:
        await receiver.listen_udp(ANY)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for message in MESSAGES[:100]:
                sender.sendto(message, receiver.addresses["UDP"])
    assert stored(uri, stream) == MESSAGES[:100]


@pytest.mark.usefixtures("told_once")
async def test_one_address_has_half_of_the_room_for_datagrams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server is away."""
    monkeypatch.setattr(receivers, "SYSLOG_QUEUE_BYTES", 20_000)
    with RestartableServer(tmp_path) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("in")
            manager.create_stream("in", "udp")
        async with receiving(server.controller_uri, "udp") as receiver:
            await receiver.listen_udp(ANY)
            server.kill()
            with (
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loud,
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
            ):
                other.bind(("127.0.0.2", 0))
                for message in MESSAGES[:100]:
                    loud.sendto(message, receiver.addresses["UDP"])
                await until_async(lambda: receiver.count.lost > 0)
                lost = receiver.count.lost
                other.sendto(b"<13>other", receiver.addresses["UDP"])
                await until_async(lambda: receiver.count.messages == 101 - lost)
                assert receiver.count.lost == lost
            assert caplog.text.count("datagrams lost, the last from 127.0.0.1") == 1
            server.start()
            await until_async(lambda: receiver.count.stored == 101 - lost)
        found = stored(server.controller_uri, "udp")
    assert [one for one in found if one in MESSAGES] == MESSAGES[: 100 - lost]
    assert b"<13>other" in found


# --- the store ------------------------------------------------------------------------------------


async def test_peers_wait_while_the_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RestartableServer(tmp_path) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("in")
            manager.create_stream("in", "tcp", 2)
        async with receiving(server.controller_uri, "tcp") as receiver:
            await receiver.listen_tcp(ANY)
            async with _peer(receiver.addresses["TCP"]) as (reader, writer):
                writer.write(LINES)
                await until_async(lambda: receiver.count.stored == len(MESSAGES))
                server.kill()
                body = b"x" * 10_000
                more = [b"<13>1 - host%d - - - - %06d %s" % (n % 7, n, body) for n in range(4_000)]
                sending = asyncio.create_task(_write_all(writer, more))
                taken = -1
                while taken != receiver.count.bytes_:  # until nothing moves: the peer waits
                    taken = receiver.count.bytes_
                    await asyncio.sleep(0.5)
                assert not sending.done()
                assert 0 < taken < 5_000_000  # two portions, of forty million bytes
                server.start()
                await sending
                writer.write_eof()
                assert await reader.read() == b""
        found = stored(server.controller_uri, "tcp")
    assert sorted(found) == sorted(MESSAGES + more)
    for host in range(7):
        mine = [one for one in found if b" host%d " % host in one]
        assert mine == sorted(mine)


async def _write_all(writer: asyncio.StreamWriter, messages: list[bytes]) -> None:
    for message in messages:
        writer.write(message + b"\n")
        await writer.drain()


async def test_a_stop_stores_what_was_read(uri: str, stream: str) -> None:
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY)
        async with _peer(receiver.addresses["TCP"]) as (_, writer):
            sending = asyncio.create_task(_write_all(writer, MESSAGES * 500))
            await until_async(lambda: receiver.count.messages > 1000)
            await receiver.close()
            assert receiver.count.stored == receiver.count.messages
            assert receiver.connections == 0
            with pytest.raises(OSError, match="refused"):
                await asyncio.open_connection(*receiver.addresses["TCP"])
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.transport.abort()
    found = stored(uri, stream)
    assert len(found) == receiver.count.messages
    assert found == (MESSAGES * 500)[: len(found)]  # nothing is missing within, and no half of one


async def test_a_stream_that_takes_nothing_ends_it(uri: str, stream: str) -> None:
    async with receiving(uri, stream) as receiver:
        await receiver.listen_tcp(ANY)
        with nadi.StreamManager(uri) as manager:
            manager.seal_stream("in", stream)
        running = asyncio.ensure_future(receiver.run())
        await _cut_off(receiver.addresses["TCP"], LINES)
        with pytest.raises(StreamSealedError):
            await asyncio.wait_for(running, 60)


async def test_a_store_that_never_answers_doesnt_hold_up_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "SYSLOG_CLOSING_S", 0.5)
    with RestartableServer(tmp_path) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("in")
            manager.create_stream("in", "tcp")
        async with receiving(server.controller_uri, "tcp") as receiver:
            await receiver.listen_tcp(ANY)
            server.kill()
            async with _peer(receiver.addresses["TCP"]) as (_, writer):
                writer.write(LINES)
                await until_async(lambda: receiver.count.messages == len(MESSAGES))
                async with asyncio.timeout(60):
                    await receiver.close()
                assert receiver.connections == 0
                assert receiver.count.stored == 0
                server.start()  # and the writer stores what it has
        assert stored(server.controller_uri, "tcp") == MESSAGES
