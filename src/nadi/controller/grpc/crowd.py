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
from collections.abc import Iterable, Iterator

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
        silent = {number: self._is_silent(one) for number, one, _ in self._connections(numbers)}
        if len(silent) < self._crowded:
            return []
        gone = []
        for _, one, address in self._connections([number for number in silent if silent[number]]):
            if self._is_silent(one):
                with contextlib.suppress(OSError):  # it has just ended
                    one.shutdown(socket.SHUT_RDWR)
                gone.append(address)
        return gone

    def _connections(self, numbers: Iterable[str]) -> Iterator[tuple[str, socket.socket, str]]:
        """Those of this door, and their peers' addresses. Each by a descriptor of our own, for gRPC may close its own
        at any moment, and another file have its number; and one at a time, for there may be no more."""
        for number in numbers:
            try:
                copy = os.dup(int(number))
            except OSError:  # not open any more
                continue
            try:
                one = socket.socket(fileno=copy)
            except OSError:  # no socket
                os.close(copy)
                continue
            with one:
                try:
                    is_ours = one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == self._port
                    peer = one.getpeername() if is_ours else None
                except OSError:  # the door itself has no peer
                    continue
                if peer is not None:
                    yield number, one, str(peer[0])

    def _is_silent(self, one: socket.socket) -> bool:
        try:
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:
            return False
        if len(told) < _INFO_BYTES:
            return False
        (received,), (since_ms,) = _RECEIVED.unpack_from(told), _SINCE_DATA.unpack_from(told)
        return bool(received <= self._hello_bytes and since_ms >= RPC_SILENT_S * 1000)
