"""Receiver: listens for syslog, and writes each message as an event.

`connections` and `Datagrams` read, `framing` finds the messages in what a connection sent, `events` makes events of
them, and `storing` has them written.

Datagrams of syslog (RFC 5426): nobody waits on the other side, so what finds no room is lost, and counted.

There are two places where that happens. Here: no more is held than a limit, and half of it of one address, so that one
host that says too much doesn't cost the others their messages. And in the system, where the socket's buffer is full.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime

from nadi.client.aio import EventWriter
from nadi.errors import NadiError
from nadi.ingest.syslog.connections import Connections, plain
from nadi.ingest.syslog.events import Making
from nadi.ingest.syslog.framing import packed
from nadi.ingest.syslog.storing import Arrived, Count, Storing
from nadi.limits import SYSLOG_BATCH, SYSLOG_CLOSING_S, SYSLOG_MESSAGE_BYTES, SYSLOG_QUEUE_BYTES, SYSLOG_SOCKET_BYTES
from nadi.throttled_log import SeldomWarning

_log = logging.getLogger("nadi.ingest")
_IN_MEMORY_BYTES = 256  # of a message, beside its own
_LAST = 100_000  # datagrams that are read from the system's buffer at the end


class Datagrams:
    """What comes to a socket, bound and not blocking, from the moment when there is this."""

    def __init__(self, opened: socket.socket, storing: Storing) -> None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SYSLOG_SOCKET_BYTES)  # or what the system allows
        self._opened = opened
        self._inode = os.fstat(opened.fileno()).st_ino
        self._storing = storing
        self._waiting: deque[Arrived] = deque()
        self._held: Counter[str] = Counter()  # bytes by address, until they are stored
        self._held_bytes = 0
        self._news = asyncio.Event()
        self._is_over = False
        self._lost_by_system = 0
        self._lost = SeldomWarning(
            _log, "%d datagrams lost, the last from %s: messages come faster than they are stored"
        )
        self._unreadable = SeldomWarning(_log, "%d datagrams refused, the last from %s: %s")
        self._writing = asyncio.create_task(self._write())
        asyncio.get_running_loop().add_reader(opened, self._read)

    def lost_by_system(self) -> int:
        """Those that came while the socket's buffer was full."""
        if not self._is_over:
            self._lost_by_system = _drops(self._inode)
        return self._lost_by_system

    async def close(self) -> None:
        """Return once all that came is given to the writer."""
        asyncio.get_running_loop().remove_reader(self._opened)
        for _ in range(_LAST // SYSLOG_BATCH):
            if not self._read():
                break
        self.lost_by_system()
        self._is_over = True
        self._opened.close()
        self._news.set()
        try:
            await self._writing
        finally:
            self._writing.cancel()

    def _read(self) -> bool:
        """Some of what is there. Whether there may be more."""
        now = datetime.now(UTC)
        for _ in range(SYSLOG_BATCH):
            try:
                data, where = self._opened.recvfrom(SYSLOG_MESSAGE_BYTES)
            except BlockingIOError:
                return False
            except OSError:  # of something that was sent before: it says nothing about what comes
                continue
            address = plain(str(where[0]))
            if (reason := packed(data)) is not None:
                self._storing.count.unreadable += 1
                self._unreadable(address, reason)
            elif message := data.rstrip(b"\r\n\0"):
                self._take(message, address, now)
        return True

    def _take(self, message: bytes, address: str, now: datetime) -> None:
        size = len(message) + _IN_MEMORY_BYTES
        if self._held_bytes + size > SYSLOG_QUEUE_BYTES or self._held[address] + size > SYSLOG_QUEUE_BYTES // 2:
            self._storing.count.lost += 1
            self._lost(address)
            return
        self._held[address] += size
        self._held_bytes += size
        self._waiting.append((message, address, now))
        self._news.set()

    async def _write(self) -> None:
        while True:
            if not self._waiting:
                if self._is_over:
                    return
                self._news.clear()
                await self._news.wait()
                continue
            batch = [self._waiting.popleft() for _ in range(min(SYSLOG_BATCH, len(self._waiting)))]
            try:
                ack = await self._storing.write(lambda taken=batch: taken)  # type: ignore[misc]
            except NadiError:
                return  # whoever runs the receiver is told
            if ack is not None:
                ack.add_done_callback(lambda _, stored=batch: self._forget(stored))  # type: ignore[misc]

    def _forget(self, stored: list[Arrived]) -> None:
        for message, address, _ in stored:
            size = len(message) + _IN_MEMORY_BYTES
            self._held_bytes -= size
            self._held[address] -= size
            if not self._held[address]:
                del self._held[address]


def _drops(inode: int) -> int:
    """What the system says of a socket: its last column counts datagrams for which there was no room."""
    for path in ("/proc/net/udp", "/proc/net/udp6"):
        try:
            with open(path) as lines:
                rows = [line.split() for line in lines]
        except OSError:
            continue
        for row in rows[1:]:
            if len(row) > 12 and row[9] == str(inode):
                return int(row[12])
    return 0


Address = tuple[str, int]
_WAITING = 100  # connections that the system holds until they are accepted


class Receiver:
    """`listen` on what is wanted, then `run` until something fails or it is cancelled; `close` what is open."""

    def __init__(self, writer: EventWriter, making: Making | None = None) -> None:
        self.addresses: dict[str, Address] = {}
        self._storing = Storing(writer, making or Making())
        self._connections = Connections(self._storing)
        self._datagrams: Datagrams | None = None

    @property
    def count(self) -> Count:
        return self._storing.count

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def lost_by_system(self) -> int:
        """Datagrams that came while the socket's buffer was full."""
        return self._datagrams.lost_by_system() if self._datagrams is not None else 0

    async def listen_udp(self, address: Address) -> None:
        """OSError if it can't listen there."""
        opened = await _bound(address, socket.SOCK_DGRAM)
        self.addresses["UDP"] = opened.getsockname()[:2]
        self._datagrams = Datagrams(opened, self._storing)

    async def listen_tcp(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        """Likewise."""
        opened = await _bound(address, socket.SOCK_STREAM)
        self.addresses["TCP" if tls is None else "TLS"] = opened.getsockname()[:2]
        self._connections.listen(opened, tls)

    async def run(self) -> None:
        """Until it is cancelled; raises what keeps events from being stored."""
        await self._storing.failed.wait()
        assert self._storing.error is not None
        raise self._storing.error

    async def close(self) -> None:
        """Read no more; return once what was read is with the writer, or can't be within some seconds."""
        with suppress(TimeoutError, NadiError):
            async with asyncio.timeout(SYSLOG_CLOSING_S):
                closing = [self._connections.close()]
                if self._datagrams is not None:
                    closing.append(self._datagrams.close())
                await asyncio.gather(*closing)


async def _bound(address: Address, kind: socket.SocketKind) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, _, _, _, where = (await loop.getaddrinfo(*address, type=kind))[0]
    opened = socket.socket(family, kind)
    try:
        opened.setblocking(False)
        if kind is socket.SOCK_STREAM:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
        if kind is socket.SOCK_STREAM:
            opened.listen(_WAITING)
    except OSError:
        opened.close()
        raise
    return opened
