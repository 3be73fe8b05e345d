"""Connect to a segment store: send commands and dispatch the replies.

A request carries a fresh request id and its reply resolves a future, so any number may be outstanding; an append
session (one writer on one segment) uses one request id for all its appends and gets each reply through a callback. When
the connection is lost, every waiter and every session is notified once, with UnavailableError, and the object can't be
used any more.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from nadi.client.control.time_limit import TimeLimit, is_cancelled
from nadi.client.segments.tracing import read_span
from nadi.errors import ClosedError, NadiError, ProtocolError, UnavailableError
from nadi.limits import READ_REPLY_MAX_BYTES, RECEIVE_BUFFER_BYTES
from nadi.observe import traces
from nadi.wire import commands as wire
from nadi.wire.decoder import Decoder
from nadi.wire.errors import error_of
from nadi.wire.fields import Buffer
from nadi.wire.outgoing import Outgoing

_Answer = TypeVar("_Answer", bound=wire.Command)
TWO_WRITERS = "writer with the same id has started: stop one of them, or give each a different id"
_KEEP_ALIVE_S = 10.0
_SILENCE_S = 50.0  # seconds without any reply after which the peer is considered lost
_NO_LINGER = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: the system resends nothing after close
_FREED_BYTES = 4 * READ_REPLY_MAX_BYTES
_QUIET_TICKS = 4  # timer ticks until a silent peer is considered lost; all but the first send a keep-alive


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a segment store."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class AppendGroup(Protocol):
    """The owner of several sessions, which handles their acknowledgements together."""

    def acknowledged(self, acknowledged: list[tuple[Any, wire.DataAppended]]) -> None:
        """Handle consecutive acknowledgements, in order; each comes with its session's `member`."""


@dataclass(frozen=True, slots=True)
class AppendSession:
    """Callbacks of one writer on one segment: for its replies and for the loss of the connection. group: gets the
    acknowledgements instead, with `member`."""

    on_reply: Callable[[wire.Command], None]
    on_lost: Callable[[NadiError], None]
    group: AppendGroup | None = None
    member: Any = None


class _PendingRequest(NamedTuple):
    """A request in flight and the expected kinds of its reply."""

    kind: type[wire.Command]
    answers: tuple[type[wire.Command], ...]
    future: asyncio.Future[Any]


class SegmentStoreConnection(asyncio.BufferedProtocol):
    """A connection made by `SegmentStoreConnection.open`, for use on its loop's thread only."""

    def __init__(self, endpoint: Endpoint, silence_s: float = _SILENCE_S) -> None:
        """silence_s: seconds without any reply after which the peer is considered lost."""
        self.endpoint = endpoint
        self._tick_s = min(_KEEP_ALIVE_S, silence_s / (_QUIET_TICKS + 1))
        self._loop = asyncio.get_running_loop()
        # enough for a whole read reply and the head of the next, so that big frames are not moved
        self._decoder = Decoder(READ_REPLY_MAX_BYTES + RECEIVE_BUFFER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ids = itertools.count(
            1 if traces.active is None else secrets.randbits(48)
        )  # they identify the traces of reads
        self._requests: dict[int, _PendingRequest] = {}
        self._sessions: dict[int, AppendSession] = {}
        self._session_of: dict[bytes, int] = {}  # writer id -> its newest session
        self._error: NadiError | None = None
        self.takes_reports = False  # whether the server accepts reports of routing keys
        self.locates_chunks = self.lists_moments = self.lists_event_sizes = False
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None = None, silence_s: float = _SILENCE_S
    ) -> SegmentStoreConnection:
        """Connect and exchange Hello; raise UnavailableError if that fails or takes longer than `timeout_s`."""
        loop = asyncio.get_running_loop()
        protocol = cls(endpoint, silence_s)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: protocol, endpoint.host, endpoint.port, ssl=tls)
                await protocol._hello
        except BaseException as error:  # also when cancelled: the loop closes the socket without notifying the protocol
            protocol.lose(UnavailableError("the connection was abandoned before its handshake"))
            if isinstance(error, TimeoutError):
                raise UnavailableError(f"segment store {endpoint} did not answer within {timeout_s} s") from None
            if isinstance(error, OSError):
                raise UnavailableError(f"segment store {endpoint} can't be reached: {error}") from None
            raise
        return protocol

    @property
    def is_open(self) -> bool:
        return self._error is None

    # --- called by the transport ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the methods without the base class
        self._outgoing = Outgoing(self._transport)
        _keep_freed_memory()
        self.send(wire.OWN_HELLO)
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet = 0
        decoder = self._decoder
        decoder.filled(nbytes)
        commands = decoder.commands()
        while True:
            if acknowledged := decoder.acknowledgements():
                self._acknowledge(acknowledged)
            try:
                command = next(commands, None)
            except ProtocolError as error:
                self.lose(UnavailableError(f"segment store {self.endpoint} broke the protocol: {error}"))
                return
            if command is None:
                return
            self._receive(command)

    def connection_lost(self, exc: Exception | None) -> None:
        transport = self._transport if not self._hello.done() else None
        refused = transport is not None and transport.get_extra_info("ssl_object") is not None
        hint = " at its start: pass a valid client certificate if it requires one" if refused else ""
        self.lose(UnavailableError(f"the connection to segment store {self.endpoint} was lost{hint}"))

    # --- called by users --------------------------------------------------------------------

    def send(self, command: wire.Command) -> None:
        self._ready().send(command)

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        """Send a frame of `size` bytes."""
        self._ready().send_parts(parts, size)

    def submit(self, command: wire.Command, *answers: type[_Answer]) -> asyncio.Future[_Answer]:
        """Send a request under a new request id; return a future of its reply, which fails with the error that the
        reply represents, or with ProtocolError if the reply isn't one of the `answers`."""
        request_id = next(self._ids)
        future: asyncio.Future[_Answer] = self._loop.create_future()
        if self._error is not None:
            future.set_exception(self._error)
            return future
        self._requests[request_id] = _PendingRequest(type(command), answers, future)
        if traces.active is not None and isinstance(command, wire.ReadSegment):
            future.add_done_callback(read_span(traces.active, request_id, command.segment, command.offset))
        try:
            self.send(replace(command, request_id=request_id))
        except BaseException as error:
            self._requests.pop(request_id, None)
            if not isinstance(error, ProtocolError):
                raise
            future.set_exception(error)
        return future

    async def ask(self, command: wire.Command, *answers: type[_Answer], timeout_s: float | None) -> _Answer:
        """Send a request like `submit` and wait for its reply."""
        name = type(command).__name__
        async with TimeLimit(
            timeout_s, lambda: f"segment store {self.endpoint} did not answer {name} within {timeout_s} s"
        ):
            return await self.submit(command, *answers)

    def add_session(self, session: AppendSession, writer_id: bytes) -> int:
        """Add a session; return its id, the request id of its appends. It replaces the writer's session on this
        connection, because the server could not distinguish the two and would store the appends of both twice."""
        old_id = self._session_of.get(writer_id)
        session_id = self._session_of[writer_id] = next(self._ids)
        self._sessions[session_id] = session
        if old_id is not None and (replaced := self._sessions.pop(old_id, None)) is not None:
            replaced.on_lost(UnavailableError(f"another {TWO_WRITERS}"))
        return session_id

    def has_session(self, session_id: int) -> bool:
        return session_id in self._sessions

    def remove_session(self, session_id: int, writer_id: bytes) -> None:
        """Drop replies that still arrive for the session."""
        self._sessions.pop(session_id, None)
        if self._session_of.get(writer_id) == session_id:
            del self._session_of[writer_id]

    def close(self) -> None:
        self.lose(UnavailableError("the connection was closed"))

    # --- inside -----------------------------------------------------------------------------

    def _ready(self) -> Outgoing:
        """Return the outgoing side, or raise the error that ended the connection."""
        if self._error is not None:
            raise self._error
        assert self._outgoing is not None
        return self._outgoing

    def _acknowledge(self, acknowledged: list[wire.DataAppended]) -> None:
        """Handle consecutive acknowledgements; there may be one for each event."""
        sessions = self._sessions
        last: AppendGroup | None = None
        of_group: list[tuple[Any, wire.DataAppended]] = []
        for command in acknowledged:
            session = sessions.get(command.request_id)
            group = session.group if session is not None else None
            if group is not last:
                if last is not None:
                    last.acknowledged(of_group)
                last, of_group = group, []
            if session is None or group is None:
                self._receive(command)
            else:
                of_group.append((session.member, command))
        if last is not None:
            last.acknowledged(of_group)

    def _receive(self, command: wire.Command) -> None:
        request_id: int = getattr(command, "request_id", -1)
        session = self._sessions.get(request_id)
        if session is not None:
            session.on_reply(command)
            return
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._answer(request, command)
        elif isinstance(command, wire.Hello):
            self._greeted(command)

    def _answer(self, request: _PendingRequest, reply: wire.Command) -> None:
        if request.future.done():
            return
        if isinstance(reply, request.answers):
            request.future.set_result(reply)
        else:
            unexpected = f"unexpected reply of segment store {self.endpoint} to {request.kind.__name__}"
            request.future.set_exception(error_of(reply) or ProtocolError(f"{unexpected}: {str(reply)[:200]}"))

    def _greeted(self, hello: wire.Hello) -> None:
        if hello.low_version > wire.HELLO.high_version or hello.high_version < wire.HELLO.low_version:
            self.lose(
                UnavailableError(
                    f"segment store {self.endpoint} supports wire versions {hello.low_version} to "
                    f"{hello.high_version}, this client {wire.HELLO.low_version} to {wire.HELLO.high_version}: "
                    "upgrade the older of the two"
                )
            )
        elif not self._hello.done():
            self.takes_reports = wire.knows(hello, wire.ReportKeys)
            self.locates_chunks = wire.knows(hello, wire.LocateChunks)
            self.lists_moments = wire.knows(hello, wire.ListMoments)
            self.lists_event_sizes = wire.knows(hello, wire.ListEventSizes)
            self._hello.set_result(None)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        self._quiet += 1
        if self._quiet > _QUIET_TICKS:
            self.lose(UnavailableError(f"segment store {self.endpoint} stopped responding"))
        elif self._quiet > 1:
            self.send(wire.KeepAlive())

    def lose(self, error: NadiError) -> None:
        """End the connection, once; all waiters and sessions get `error`."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._outgoing is not None:
            self._outgoing.drop()
        if self._transport is not None:
            if self._requests:
                _disable_resending(self._transport)
            self._transport.abort()
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()  # retrieved, so that asyncio doesn't complain if nothing waits
        for request in list(self._requests.values()):
            if not request.future.done():
                request.future.set_exception(error)
        self._requests.clear()
        sessions, self._sessions, self._session_of = self._sessions, {}, {}
        for session in sessions.values():
            session.on_lost(error)


class Connections:
    """Connections by store and purpose, opened on demand. tls: returns the context of the next one. closed: the message
    of ClosedError after `close`."""

    def __init__(self, timeout_s: float, tls: Callable[[], ssl.SSLContext | None], closed: str) -> None:
        self._timeout_s, self._tls, self._closed = timeout_s, tls, closed
        self._opening: dict[tuple[Endpoint, str], asyncio.Task[SegmentStoreConnection]] = {}
        self.is_closed = False

    async def at(self, endpoint: Endpoint, silence_s: float, purpose: str = "") -> SegmentStoreConnection:
        """Return the open connection, or a new one; raise UnavailableError if it can't be opened."""
        self._check()
        slot = endpoint, purpose
        task = self._opening.get(slot)
        if task is None or _is_over(task):
            for ended in [key for key, opened in self._opening.items() if _is_over(opened)]:  # also of removed stores
                del self._opening[ended]
            task = asyncio.create_task(SegmentStoreConnection.open(endpoint, self._timeout_s, self._tls(), silence_s))
            task.add_done_callback(_retrieve_error)
            self._opening[slot] = task
        try:
            connection = await asyncio.shield(task)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise ClosedError(self._closed) from None
        self._check()
        return connection

    def _check(self) -> None:
        if self.is_closed:
            raise ClosedError(self._closed)

    def release(self, purpose: str) -> None:
        """Close the connections of one purpose."""
        for slot in [slot for slot in self._opening if slot[1] == purpose]:
            _end(self._opening.pop(slot))

    def close(self) -> None:
        self.is_closed = True
        for task in self._opening.values():
            _end(task)
        self._opening.clear()


def _is_over(task: asyncio.Task[SegmentStoreConnection]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or not task.result().is_open)


def _retrieve_error(task: asyncio.Task[SegmentStoreConnection]) -> None:
    """Mark the error as retrieved, so that asyncio doesn't complain if all waiters were cancelled."""
    if not task.cancelled():
        task.exception()


def _end(task: asyncio.Task[SegmentStoreConnection]) -> None:
    if task.done() and not _is_over(task):
        task.result().close()
    task.cancel()


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc keep freed memory of this process for further replies, as it does up to twice the size of the largest
    block that was freed. Receiving into fresh memory takes twice as long."""
    import numpy as np

    np.empty(_FREED_BYTES, np.uint8)


def _disable_resending(transport: asyncio.Transport) -> None:
    """Keep the system from resending lost packets after the close. It would do so for minutes, while unanswered
    requests are repeated over another connection: a late deletion would then delete a recreated object."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
