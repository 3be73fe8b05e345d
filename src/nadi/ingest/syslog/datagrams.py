"""Datagrams of syslog (RFC 5426): nobody waits on the other side, so what finds no room is lost, and counted.

There are two places where that happens. Here: no more is held than a limit, and half of it of one address, so that one
host that says too much doesn't cost the others their messages. And in the system, where the socket's buffer is full.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter, deque
from datetime import UTC, datetime

from nadi.errors import NadiError
from nadi.ingest.syslog.connections import plain
from nadi.ingest.syslog.framing import packed
from nadi.ingest.syslog.storing import Arrived, Storing
from nadi.limits import SYSLOG_BATCH, SYSLOG_MESSAGE_BYTES, SYSLOG_QUEUE_BYTES, SYSLOG_SOCKET_BYTES
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
