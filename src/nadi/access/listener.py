"""A port that accepts a limited number of connections, in all and from one address, counted as soon as they connect.

A connection is a guest. It is loose if its peer hasn't yet shown what it wants, or has sent half of something. When
the door is full, the guest that has been loose longest makes way for the next. So a peer that says at once what it
wants finds a place, however many silent ones connect. TLS handshakes count, and have a deadline.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial

from nadi.access.fair_shares import LoopTurns
from nadi.limits import ACCEPTS_A_TURN, FILES_FOR_STORAGE, TLS_HANDSHAKE_S, TLS_HANDSHAKES_A_TURN
from nadi.throttled_log import SeldomWarning

log = logging.getLogger(__name__)

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_DOORS = 3  # that accept connections: the segment store's, gRPC's and REST's
_RECORD_HEAD_BYTES = 5  # of TLS: type, version, length
_RECORD_BYTES = 1 << 14  # at most, after that
_HANDSHAKE = 22  # the type of the record that a hello comes in
_PAUSE_S = 0.1  # when the system has no room for a connection


async def bound_sockets(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets at all addresses that `host` stands for, to `listen` with; OSError if one is unavailable. shared: other
    processes may listen at that port, too."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port or made[0].getsockname()[1], *address[2:]))
    except OSError:
        for one in made:
            one.close()
        raise
    return made


def files_left(most: int) -> int:
    """Return `most` connections, or fewer if the process may not open that many files besides those storage needs."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if allowed == resource.RLIM_INFINITY else max(1, min(most, (allowed - FILES_FOR_STORAGE) // _DOORS))


def raise_file_limit() -> None:
    """Raise the limit on open files as far as allowed: the default is a tenth of that, or less."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Guest:
    """One connection, as the door sees it; its protocol says `settle`, `loosen` and `leave`."""

    __slots__ = ("_listener", "address", "is_extra", "protocol", "task")

    def __init__(self, listener: Listener, address: str, is_extra: bool) -> None:
        self._listener = listener
        self.address = address
        self.is_extra = is_extra  # above the limit: for short questions only
        self.task: asyncio.Task[None] | None = None  # while it shakes hands
        self.protocol: asyncio.BaseProtocol | None = None

    def settle(self) -> None:
        """Its peer has shown what it wants: it stays."""
        self._listener.loose.pop(self, None)

    def loosen(self) -> None:
        """Nothing is in progress for it: it may be ended to make room."""
        if self in self._listener.guests:
            self._listener.loose[self] = None

    def leave(self) -> None:
        self._listener.left(self)


class Listener:
    """`listen`, then `close`. `make` returns a guest's protocol, `end` ends a guest's connection at once.

    `end` may be called for a protocol that has no transport yet. most: connections in all; most_of_address: from one
    address; extra: beyond these, for guests marked `is_extra`.
    `refused` and `ended` count connections that found no place, and those that had to make way for others.
    """

    def __init__(
        self,
        make: Callable[[Guest], asyncio.BaseProtocol],
        end: Callable[[asyncio.BaseProtocol], None],
        *,
        most: int,
        most_of_address: int,
        extra: int = 0,
        name: str = "",
    ) -> None:
        self._make, self._end = make, end
        self._most, self._most_of_address, self._extra = most, most_of_address, extra
        self._extras = 0
        self.guests: set[Guest] = set()
        self.loose: dict[Guest, None] = {}
        self._of_address: Counter[str] = Counter()
        self.refused = self.ended = 0
        self._report = SeldomWarning(log, f"{name}: %d connections found no place or had to go, the last from %s: %s")
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._handshakes = LoopTurns(TLS_HANDSHAKES_A_TURN)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def listen(self, sockets: list[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on sockets that are already bound."""
        self._sockets, self._tls = sockets, tls
        for one in sockets:
            one.setblocking(False)
            one.listen(1024)
            self._resume(one)

    def close(self) -> None:
        """Accept no more; guests stay."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            asyncio.get_running_loop().remove_reader(one)
            one.close()
        for task in self._tasks:
            task.cancel()

    def left(self, guest: Guest) -> None:
        """The guest is gone."""
        if guest in self.guests:
            self.guests.discard(guest)
            self.loose.pop(guest, None)
            self._extras -= guest.is_extra
            self._of_address[guest.address] -= 1
            if not self._of_address[guest.address]:
                del self._of_address[guest.address]

    # --- inside ----------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._report("the system", error)
                    asyncio.get_running_loop().remove_reader(listening)
                    asyncio.get_running_loop().call_later(_PAUSE_S, self._resume, listening)
                    return
                continue  # it left before it was let in
            self._admit(accepted, str(address[0]))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        is_extra = False
        is_full_of_it = self._of_address[address] >= self._most_of_address
        if is_full_of_it or len(self.guests) - self._extras >= self._most:
            gone = self._make_place(address if is_full_of_it else "")
            is_extra = gone.is_extra if gone is not None else self._extras < self._extra
            if gone is None and not is_extra:
                self.refused += 1
                self._report(address, "no place")
                accepted.close()
                return
        accepted.setblocking(False)
        guest = Guest(self, address, is_extra)
        self.guests.add(guest)
        self.loose[guest] = None
        self._extras += is_extra
        self._of_address[address] += 1
        guest.task = task = asyncio.get_running_loop().create_task(self._let_in(guest, accepted))
        self._tasks[task] = None
        task.add_done_callback(partial(self._let_go, accepted))

    def _let_go(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():  # before its first step, so that nothing in it ran; it never lets a later one through
            accepted.close()

    def _make_place(self, address: str) -> Guest | None:
        """End the guest that has been loose longest, from `address` unless that is empty, and return it."""
        found = next((guest for guest in self.loose if not address or guest.address == address), None)
        if found is None:
            return None
        self.ended += 1
        self._report(found.address, "it had nothing under way, and others came")
        self.left(found)
        if found.protocol is not None:
            self._end(found.protocol)
        elif found.task is not None:
            found.task.cancel()
        return found

    async def _let_in(self, guest: Guest, accepted: socket.socket) -> None:
        made = self._make(guest)
        if self._tls is None:
            guest.protocol = made
        loop = asyncio.get_running_loop()
        timeout_s: float | None = None
        try:
            if self._tls is not None:
                began, timeout_s = loop.time(), TLS_HANDSHAKE_S
                async with asyncio.timeout(timeout_s):
                    await _hello(accepted)
                    await self._handshakes.mine(guest.address)
                timeout_s = max(1.0, timeout_s - (loop.time() - began))
            await loop.connect_accepted_socket(lambda: made, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s)
        except BaseException as error:
            guest.leave()
            self._end(made)
            accepted.close()
            if not isinstance(error, OSError | asyncio.CancelledError):  # those are the peer's doing, or ours
                log.error("a connection could not be taken", exc_info=error)
        else:
            guest.task, guest.protocol = None, made


async def _hello(accepted: socket.socket) -> None:
    """Wait until the first TLS record has fully arrived, or bytes that aren't one; consume nothing."""
    await _arrived(accepted, _RECORD_HEAD_BYTES)
    head = accepted.recv(_RECORD_HEAD_BYTES, socket.MSG_PEEK)
    if len(head) == _RECORD_HEAD_BYTES and head[0] == _HANDSHAKE:
        await _arrived(accepted, _RECORD_HEAD_BYTES + min(int.from_bytes(head[3:]), _RECORD_BYTES))
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def _arrived(accepted: socket.socket, size_bytes: int) -> None:
    """Wait for that many bytes, or the end of input: the system wakes us for no less."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
    loop.add_reader(accepted, lambda: None if came.done() else came.set_result(None))
    try:
        await came
    finally:
        loop.remove_reader(accepted)
