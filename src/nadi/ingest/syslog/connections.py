"""Connections of syslog, plain and with TLS (RFC 6587, RFC 5425): each is read only as fast as its messages are stored.

One task a connection: it takes what came, has it written, and lets the peer send on; two portions at most are on their
way to the store. A peer that has nothing to say may stay, as syslog's do; the system asks it whether it is still there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from datetime import UTC, datetime
from typing import cast

from nadi.client.aio import Ack
from nadi.errors import NadiError
from nadi.ingest.syslog.framing import Framing
from nadi.ingest.syslog.storing import Arrived, Storing
from nadi.limits import (
    SYSLOG_CONNECTIONS,
    SYSLOG_CONNECTIONS_OF_ADDRESS,
    SYSLOG_HANDSHAKE_S,
    SYSLOG_MESSAGE_BYTES,
    SYSLOG_SILENT_S,
)
from nadi.throttled_log import SeldomWarning

_log = logging.getLogger("nadi.ingest")
_ACCEPT_AGAIN_S = 1.0


def plain(address: str) -> str:
    """An address of IPv4 that came to a socket of IPv6 is that of IPv4.

    >>> plain("::ffff:10.0.0.1")
    '10.0.0.1'
    """
    return address.removeprefix("::ffff:") if "." in address else address


class Connections:
    """Those of all listeners together."""

    def __init__(self, storing: Storing) -> None:
        self._storing, self._count = storing, storing.count
        self._listening: list[tuple[asyncio.Task[None], socket.socket]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: set[asyncio.Task[None]] = set()  # those in a handshake
        self._opened: set[_Connection] = set()
        self._peers: Counter[str] = Counter()
        self._refused = SeldomWarning(_log, "%d connections refused, the last from %s: %s")
        self._broken = SeldomWarning(_log, "%d connections ended, the last from %s: %s")
        self._unaccepted = SeldomWarning(_log, "accepting connections failed %d times: %s")

    def __len__(self) -> int:
        return self._peers.total()

    def listen(self, opened: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._listening.append((asyncio.create_task(self._accept(opened, tls)), opened))

    async def close(self) -> None:
        """Return once all that was read is given to the writer, and stored."""
        for task, opened in self._listening:
            task.cancel()
            opened.close()
        await asyncio.gather(*(task for task, _ in self._listening), return_exceptions=True)
        for greeting in self._greeting:
            greeting.cancel()
        for connection in self._opened:
            connection.stop()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            for one in self._tasks:
                one.cancel()

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                opened, where = await loop.sock_accept(listening)
            except OSError as error:  # no more files, say
                self._unaccepted(error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            address = plain(str(where[0]))
            if reason := self._full(address):
                self._count.refused += 1
                self._refused(address, reason)
                opened.close()
                continue
            self._peers[address] += 1
            task = asyncio.create_task(self._serve(opened, address, tls))
            for tasks in (self._tasks, self._greeting):
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    def _full(self, address: str) -> str | None:
        if len(self) >= SYSLOG_CONNECTIONS:
            return f"{SYSLOG_CONNECTIONS} are open"
        if self._peers[address] >= SYSLOG_CONNECTIONS_OF_ADDRESS:
            return f"{SYSLOG_CONNECTIONS_OF_ADDRESS} of it are open"
        return None

    async def _serve(self, opened: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        connection = _Connection(has_tls=tls is not None)
        try:
            _keep_alive(opened)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                opened,
                ssl=tls,
                ssl_handshake_timeout=SYSLOG_HANDSHAKE_S if tls is not None else None,
            )
            self._greeting.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            self._opened.add(connection)
            await self._read(connection, address)
        except OSError as error:  # TLS's errors are some
            opened.close()
            self._end(address, str(error) or type(error).__name__)
        except NadiError:
            pass  # nothing can be stored any more: whoever runs the receiver is told
        finally:
            connection.end()
            self._opened.discard(connection)
            self._peers[address] -= 1
            if not self._peers[address]:
                del self._peers[address]

    async def _read(self, connection: _Connection, address: str) -> None:
        framing = Framing(SYSLOG_MESSAGE_BYTES)
        under_way: Ack | None = None
        data, now = b"", datetime.now(UTC)

        def arrived() -> list[Arrived]:
            return [(message, address, now) for message in (framing.feed(data) if data else framing.end())]

        try:
            while data := await connection.more():
                now = datetime.now(UTC)
                ack = await self._storing.write(arrived)
                if under_way is not None:
                    await under_way
                under_way = ack
                if framing.broken is not None:
                    self._end(address, framing.broken)
                    break
            if connection.is_ended_by_peer:
                under_way = await self._storing.write(arrived) or under_way
            if under_way is not None:
                await under_way  # whoever waits for our end knows then that all is stored
        finally:
            self._count.cut += framing.cut

    def _end(self, address: str, reason: str) -> None:
        self._count.broken += 1
        self._broken(address, reason)


class _Connection(asyncio.Protocol):
    """What came and wasn't taken yet: nothing more is read while there is some."""

    def __init__(self, *, has_tls: bool) -> None:
        self.is_ended_by_peer = False
        self._has_tls = has_tls
        self._data = bytearray()
        self._is_over = False
        self._news = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    async def more(self) -> bytes:
        """What came next; nothing at the end."""
        while not self._data and not self._is_over:
            self._news.clear()
            if self._transport is not None:
                self._transport.resume_reading()
            await self._news.wait()
        data = bytes(self._data)
        self._data.clear()
        return data

    def stop(self) -> None:
        """Nothing more is read."""
        if self._transport is not None:
            self._transport.pause_reading()
        self._is_over = True
        self._news.set()

    def end(self) -> None:
        if self._transport is None:
            return
        if self.is_ended_by_peer:
            self._transport.close()
        else:
            self._transport.abort()

    # --- of asyncio --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._transport is not None:
            self._transport.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        self.is_ended_by_peer = self._is_over = True
        self._news.set()
        return not self._has_tls  # plain ones stay open until all of it is stored

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._news.set()


def _keep_alive(opened: socket.socket) -> None:
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SYSLOG_SILENT_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SYSLOG_SILENT_S // 4)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
