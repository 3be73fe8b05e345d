"""Room at gRPC's door for who has something to ask. gRPC takes as many connections as it may, and closes all others at
once, whoever they are of: so a thousand that say nothing would keep everybody out for as long as they may be silent.

So each half second, if few places are left, those that have said no more than a hello go: their clients, if they are
any, connect again when they have something to ask. gRPC tells nothing of its connections, but they are sockets of this
process, and the system knows how much has come over each, and when (`tcp(7)`, TCP_INFO).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
from collections import Counter

from nadi.limits import (
    RPC_CONNECTIONS_MAX,
    RPC_CROWD_LOOK_S,
    RPC_CROWDED_TIMES,
    RPC_HELLO_BYTES,
    RPC_HELLO_TLS_BYTES,
    RPC_SILENT_S,
)
from nadi.runtime import REAL, Runtime
from nadi.throttled_log import SeldomWarning

log = logging.getLogger(__name__)
_FOLDER = "/proc/self/fd"
_INFO_BYTES = 136  # up to the field of received bytes, which Linux has since 4.6
_SINCE_DATA = struct.Struct("=52xI")  # tcpi_last_data_recv: milliseconds
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received


class Crowd:
    """Of the door at that port; `start`, then `close`. has_tls: a hello is longer then."""

    def __init__(self, port: int, *, has_tls: bool, runtime: Runtime = REAL) -> None:
        self._runtime = runtime
        self._port, self._hello_bytes = port, RPC_HELLO_TLS_BYTES if has_tls else RPC_HELLO_BYTES
        self._crowded = round(RPC_CROWDED_TIMES * RPC_CONNECTIONS_MAX)
        self._task: asyncio.Task[None] | None = None
        self._report = SeldomWarning(
            log, "gRPC: %d times few places were left; lastly %d connections that asked nothing had to go, from %s"
        )

    def start(self) -> None:
        if sys.platform == "linux":
            self._task = asyncio.create_task(self._look_for_ever(), name="gRPC's crowd")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look_for_ever(self) -> None:
        while True:
            await self._runtime.sleep(RPC_CROWD_LOOK_S)
            try:
                gone = Counter(await self._runtime.in_thread(self.make_room))
            except OSError as error:  # this process can open no more files now
                log.debug("gRPC's connections can't be looked at: %s", error)
                continue
            if gone:
                most, count = gone.most_common(1)[0]
                self._report(gone.total(), most if count == gone.total() else f"{most} and others")

    def make_room(self) -> list[str]:
        """If few places are left, end the connections that say nothing; return where they came from. Blocking."""
        numbers = os.listdir(_FOLDER)
        if len(numbers) < self._crowded:
            return []
        silent = {number: is_silent for number in numbers if (is_silent := self._look(number)) is not None}
        if len(silent) < self._crowded:
            return []
        return [address for number in silent if silent[number] and (address := self._end(number))]

    def _look(self, number: str) -> bool | None:
        """`_is_silent`, of the descriptor itself, not of a copy: whoever closes a copy of a file lets go of the locks
        that this process has on that (`fcntl(2)`), and the files of containers' states have some."""
        try:
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, int(number))
        except OSError:  # no socket, or not open any more
            return None
        try:
            return self._is_silent(one)
        finally:
            one.detach()  # it is gRPC's

    def _end(self, number: str) -> str:
        """End the connection with that descriptor if it still says nothing; return where it came from. By a copy, for
        gRPC may close its own at any moment, and another connection have its number."""
        if not self._look(number):
            return ""
        try:
            copy = socket.socket(fileno=os.dup(int(number)))
        except OSError:  # it has just ended, or there may be no more
            return ""
        with copy, contextlib.suppress(OSError):  # likewise
            if self._is_silent(copy):
                address = str(copy.getpeername()[0])
                copy.shutdown(socket.SHUT_RDWR)
                return address
        return ""

    def _is_silent(self, one: socket.socket) -> bool | None:
        """Whether it has said no more than a hello; None if it isn't a connection of this door."""
        try:
            if not _is_at(one.getsockname(), self._port) or not one.getpeername():
                return None
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:  # it has ended, or is the door itself, which has no peer
            return None
        if len(told) < _INFO_BYTES:
            return False
        (received,), (since_ms,) = _RECEIVED.unpack_from(told), _SINCE_DATA.unpack_from(told)
        return bool(received <= self._hello_bytes and since_ms >= RPC_SILENT_S * 1000)


def _is_at(address: object, port: int) -> bool:
    """Whether a socket's address is one with that port; those within a machine have paths, or nothing."""
    return isinstance(address, tuple) and address[1] == port
