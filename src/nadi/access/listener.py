"""Accept a limited number of connections on a port, in total and per address, counted from the moment they connect.

A connection is idle while its peer has not sent a complete request. When the limit is reached, the longest idle
connection is evicted for the next. So a peer that sends a request immediately is accepted,
regardless of the number of silent connections. TLS handshakes count, and have a deadline.
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

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LISTENERS = 3  # per process: for the segment store, gRPC and REST
_RECORD_HEAD_BYTES = 5  # a TLS record's type, version and length
_RECORD_BYTES = 1 << 14  # maximum length of a TLS record's body
_HANDSHAKE = 22  # type of the TLS record that contains a ClientHello
_PAUSE_S = 0.1  # pause after the system ran out of resources


async def bound_sockets(host: str, port: int, *, shared: bool = False, receive_bytes: int = 0) -> list[socket.socket]:
    """Bind sockets at all addresses of `host`, for `listen`; raise OSError if one is unavailable. shared: allow other
    processes to listen at the port, too. receive_bytes: of a connection's buffer, if it isn't the system's default."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sock = socket.socket(family, kind, protocol)
            bound.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if receive_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)  # connections inherit it
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port or bound[0].getsockname()[1], *address[2:]))
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


def uri_of(sockets: list[socket.socket], scheme: str) -> str:
    host, port = sockets[0].getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def available_files(most: int) -> int:
    """Return `most`, or fewer if the limit on open files, minus the files for storage, allows fewer connections."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if allowed == resource.RLIM_INFINITY else max(1, min(most, (allowed - FILES_FOR_STORAGE) // _LISTENERS))


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard limit, which is at least ten times the default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


TlsContexts = Callable[[], ssl.SSLContext]


class AcceptedConnection:
    """An accepted connection; its protocol calls `mark_busy`, `mark_idle` and `leave`."""

    __slots__ = ("_listener", "address", "is_extra", "protocol", "task")

    def __init__(self, listener: Listener, address: str, is_extra: bool) -> None:
        self._listener = listener
        self.address = address
        self.is_extra = is_extra  # above the limit: for short requests only
        self.task: asyncio.Task[None] | None = None  # during the handshake
        self.protocol: asyncio.BaseProtocol | None = None

    def mark_busy(self) -> None:
        """Mark the connection as busy, after a complete request: it isn't evicted."""
        self._listener.idle.pop(self, None)

    def mark_idle(self) -> None:
        """Mark the connection as idle: it may be evicted."""
        if self in self._listener.connections:
            self._listener.idle[self] = None

    def leave(self) -> None:
        self._listener.remove(self)


class Listener:
    """Acceptor of connections: `listen`, then `close`.

    make: returns a connection's protocol. end: closes a connection immediately; the protocol may lack a transport.
    most: limit of connections in total; most_of_address: per address; extra: beyond these, for connections marked
    `is_extra`. `refused` and `ended` count rejected and evicted connections.
    """

    def __init__(
        self,
        make: Callable[[AcceptedConnection], asyncio.BaseProtocol],
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
        self.connections: set[AcceptedConnection] = set()
        self.idle: dict[AcceptedConnection, None] = {}  # longest idle first
        self._of_address: Counter[str] = Counter()
        self.refused = self.ended = 0
        self._report = SeldomWarning(log, f"{name}: connections rejected or evicted: %d, the last from %s: %s")
        self._sockets: list[socket.socket] = []
        self._tls: TlsContexts | None = None
        self._handshakes = LoopTurns(TLS_HANDSHAKES_A_TURN)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def listen(self, sockets: list[socket.socket], tls: TlsContexts | None = None) -> None:
        """Accept connections on sockets that are already bound. tls: returns the context of the next handshake."""
        self._sockets, self._tls = sockets, tls
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(1024)
            self._resume(listening)

    def close(self) -> None:
        """Stop accepting connections; existing ones stay open."""
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        for task in self._tasks:
            task.cancel()

    def remove(self, connection: AcceptedConnection) -> None:
        """Stop counting a closed connection."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.idle.pop(connection, None)
            self._extras -= connection.is_extra
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    # --- inside ----------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._report("the system", error)
                    asyncio.get_running_loop().remove_reader(listening)
                    asyncio.get_running_loop().call_later(_PAUSE_S, self._resume, listening)
                    return
                continue  # the peer closed the connection meanwhile
            self._admit(accepted, str(address[0]))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        is_extra = False
        is_address_full = self._of_address[address] >= self._most_of_address
        if is_address_full or len(self.connections) - self._extras >= self._most:
            evicted = self._evict(address if is_address_full else "")
            is_extra = evicted.is_extra if evicted is not None else self._extras < self._extra
            if evicted is None and not is_extra:
                self.refused += 1
                self._report(address, "the limit is reached and all connections are busy")
                accepted.close()
                return
        accepted.setblocking(False)
        connection = AcceptedConnection(self, address, is_extra)
        self.connections.add(connection)
        self.idle[connection] = None
        self._extras += is_extra
        self._of_address[address] += 1
        connection.task = task = asyncio.get_running_loop().create_task(self._connect(connection, accepted))
        self._tasks[task] = None
        task.add_done_callback(partial(self._connected, accepted))

    def _connected(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():  # before its first step: `_connect` handles later cancellations itself
            accepted.close()

    def _evict(self, address: str) -> AcceptedConnection | None:
        """Close and return the connection that has been idle longest, of `address` unless that is empty."""
        connection = next(
            (connection for connection in self.idle if not address or connection.address == address), None
        )
        if connection is None:
            return None
        self.ended += 1
        self._report(connection.address, "it was idle when the limit was reached")
        self.remove(connection)
        if connection.protocol is not None:
            self._end(connection.protocol)
        elif connection.task is not None:
            connection.task.cancel()
        return connection

    async def _connect(self, connection: AcceptedConnection, accepted: socket.socket) -> None:
        protocol = self._make(connection)
        if self._tls is None:
            connection.protocol = protocol
        loop = asyncio.get_running_loop()
        timeout_s: float | None = None
        context: ssl.SSLContext | None = None
        try:
            if self._tls is not None:
                began, timeout_s = loop.time(), TLS_HANDSHAKE_S
                async with asyncio.timeout(timeout_s):
                    await _hello(accepted)
                    await self._handshakes.wait_for_turn(connection.address)
                timeout_s = max(1.0, timeout_s - (loop.time() - began))
                context = self._tls()
            await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=timeout_s)
        except BaseException as error:
            connection.leave()
            self._end(protocol)
            accepted.close()
            if not isinstance(error, OSError | asyncio.CancelledError):  # expected: caused by the peer, or by us
                log.error("a connection could not be accepted", exc_info=error)
        else:
            connection.task, connection.protocol = None, protocol


async def _hello(accepted: socket.socket) -> None:
    """Wait until the first TLS record has arrived completely, or other bytes; consume nothing."""
    await _arrived(accepted, _RECORD_HEAD_BYTES)
    head = accepted.recv(_RECORD_HEAD_BYTES, socket.MSG_PEEK)
    if len(head) == _RECORD_HEAD_BYTES and head[0] == _HANDSHAKE:
        await _arrived(accepted, _RECORD_HEAD_BYTES + min(int.from_bytes(head[3:]), _RECORD_BYTES))
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def _arrived(accepted: socket.socket, size_bytes: int) -> None:
    """Wait for `size_bytes` bytes or the end of input; SO_RCVLOWAT suppresses earlier wakeups."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
    loop.add_reader(accepted, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(accepted)
