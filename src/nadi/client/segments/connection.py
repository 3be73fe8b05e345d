"""One connection to a segment store: commands out, replies back to whoever waits for them.

A request carries a fresh request id and its reply resolves a future, so any number may be
outstanding; an append session (one writer on one segment) keeps one request id for all its appends
and is told of each reply through a callback. When the connection is lost every waiter and every
session hears of it once, with UnavailableError, and the object is of no more use.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    NotEmptyError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import READ_REPLY_MAX_BYTES, RECEIVE_BUFFER_BYTES
from nadi.wire import commands as wire
from nadi.wire.damage import damage_of
from nadi.wire.decoder import Decoder
from nadi.wire.outgoing import Outgoing

HIGH_VERSION, LOW_VERSION = 17, 5
TOKEN_EXPIRED = 1  # in AuthTokenCheckFailed
_KEEP_ALIVE_S = 10.0
_SILENCE_S = 50.0  # without any answer, after which the peer counts as gone
_QUIET_TICKS = 4  # of the timer in that time, but for the first keep-alives are sent


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a segment store listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AppendSession:
    """One writer on one segment over one connection: who is told of its replies and of its end."""

    session_id: int
    on_reply: Callable[[wire.Command], None]
    on_lost: Callable[[NadiError], None]


def error_of(reply: wire.Command) -> NadiError | None:
    """The error that a reply stands for, or None if it is an answer; the only such mapping."""
    match reply:
        case wire.SegmentIsSealed(segment=name):
            return StreamSealedError(name)
        case wire.NoSuchSegment(segment=name):
            return SegmentNotFoundError(name)
        case wire.SegmentIsTruncated(segment=name, offset=offset, start_offset=start):
            return TruncatedError(name, offset, start)
        case wire.SegmentAlreadyExists(segment=name):
            return AlreadyExistsError("segment", name)
        case wire.WrongHost(segment=name):
            return UnavailableError(f"segment {name} has moved to another segment store")
        case wire.TableSegmentNotEmpty(segment=name):
            return NotEmptyError(f"table {name} is not empty")
        case wire.TableKeyBadVersion(segment=name):
            return ConditionFailedError(f"a key of table {name} has another version than expected")
        case wire.TableKeyDoesNotExist(segment=name):
            return ConditionFailedError(f"a key of table {name} was expected and is not there")
        case wire.ConditionalCheckFailed():
            return ConditionFailedError("the segment has another length than expected")
        case wire.InvalidEventNumber(event_number=number):
            return UnavailableError(f"the writer's event number {number} is not the next one")
        case wire.OperationUnsupported(operation_name=name):
            return InvalidArgumentError(f"the segment does not support {name}")
        case wire.AuthTokenCheckFailed(error_code=code):
            if code == TOKEN_EXPIRED:
                return TokenExpiredError("the delegation token has expired")
            return PermissionDeniedError("the segment store refused the delegation token: it is not for this")
        case wire.ErrorMessage(error_code=wire.DAMAGED_DATA):
            return damage_of(reply)
        case wire.ErrorMessage(error_code=code, segment=name, message=message):
            if code == wire.STORAGE_FULL:
                return StorageFullError(f"segment {name}: {message}")
            if code == 0:
                return InvalidArgumentError(f"segment {name}: {message}")
            return UnavailableError(f"segment {name}: {message}")
    return None


class SegmentStoreConnection(asyncio.BufferedProtocol):
    """Open with `SegmentStoreConnection.open`; not for use from other threads than its loop's."""

    def __init__(self, endpoint: Endpoint, silence_s: float = _SILENCE_S) -> None:
        """silence_s: after so long without a word the peer counts as gone."""
        self.endpoint = endpoint
        self._tick_s = min(_KEEP_ALIVE_S, silence_s / (_QUIET_TICKS + 1))
        self._loop = asyncio.get_running_loop()
        # room for one whole read reply and the head of the next, so that big frames are not moved
        self._decoder = Decoder(READ_REPLY_MAX_BYTES + RECEIVE_BUFFER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[wire.Command]] = {}
        self._sessions: dict[int, AppendSession] = {}
        self._error: NadiError | None = None
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None = None, silence_s: float = _SILENCE_S
    ) -> SegmentStoreConnection:
        """Connect and shake hands; UnavailableError if that fails or takes too long."""
        loop = asyncio.get_running_loop()
        protocol = cls(endpoint, silence_s)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: protocol, endpoint.host, endpoint.port, ssl=tls)
                await protocol._hello
        except BaseException as error:  # cancelled, too: the loop closes the socket, and does not tell the protocol
            protocol.lose(UnavailableError("the connection was given up before its handshake"))
            if isinstance(error, TimeoutError):
                raise UnavailableError(f"segment store {endpoint} did not answer within {timeout_s} s") from None
            if isinstance(error, OSError):
                raise UnavailableError(f"segment store {endpoint} can't be reached: {error}") from error
            raise
        return protocol

    @property
    def is_open(self) -> bool:
        return self._error is None

    # --- what the transport calls -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods alone
        self._outgoing = Outgoing(self._transport)
        self.send(wire.Hello(HIGH_VERSION, LOW_VERSION))
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet = 0
        try:
            commands = self._decoder.buffer_updated(nbytes)
        except ProtocolError as error:
            self.lose(UnavailableError(f"segment store {self.endpoint} broke the protocol: {error}"))
            return
        for command in commands:
            self._receive(command)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(UnavailableError(f"the connection to segment store {self.endpoint} was lost"))

    # --- what users call --------------------------------------------------------------------

    def send(self, command: wire.Command) -> None:
        if self._error is not None:
            raise self._error
        assert self._outgoing is not None
        self._outgoing.send(command)

    def submit(self, kind: type[wire.Command], **fields: Any) -> asyncio.Future[wire.Command]:
        """Send a request; the future holds its reply, or the error that the reply stands for."""
        request_id = next(self._ids)
        future: asyncio.Future[wire.Command] = self._loop.create_future()
        if self._error is not None:
            future.set_exception(self._error)
            return future
        self._replies[request_id] = future  # until the reply comes, also if nobody waits for it any more
        try:
            self.send(kind(request_id=request_id, **fields))
        except BaseException as error:
            self._replies.pop(request_id, None)
            if not isinstance(error, ProtocolError):
                raise
            future.set_exception(error)
        return future

    async def call(self, kind: type[wire.Command], timeout_s: float | None, **fields: Any) -> wire.Command:
        """Send a request and wait for its reply."""
        future = self.submit(kind, **fields)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeoutError(
                f"segment store {self.endpoint} did not answer {kind.__name__} within {timeout_s} s"
            ) from None

    def add_session(
        self, on_reply: Callable[[wire.Command], None], on_lost: Callable[[NadiError], None]
    ) -> AppendSession:
        session = AppendSession(next(self._ids), on_reply, on_lost)
        self._sessions[session.session_id] = session
        return session

    def remove_session(self, session: AppendSession) -> None:
        """Replies that still come for the session are dropped."""
        self._sessions.pop(session.session_id, None)

    def close(self) -> None:
        self.lose(UnavailableError("the connection was closed"))

    # --- inside -----------------------------------------------------------------------------

    def _receive(self, command: wire.Command) -> None:
        if isinstance(command, wire.Hello):
            self._greeted(command)
            return
        request_id: int = getattr(command, "request_id", -1)
        future = self._replies.pop(request_id, None)
        if future is not None:
            if not future.done():
                error = error_of(command)
                if error is None:
                    future.set_result(command)
                else:
                    future.set_exception(error)
            return
        session = self._sessions.get(request_id)
        if session is not None:
            session.on_reply(command)

    def _greeted(self, hello: wire.Hello) -> None:
        if hello.low_version > HIGH_VERSION or hello.high_version < LOW_VERSION:
            self.lose(
                UnavailableError(
                    f"segment store {self.endpoint} speaks wire versions {hello.low_version} to "
                    f"{hello.high_version}, this client {LOW_VERSION} to {HIGH_VERSION}"
                )
            )
        elif not self._hello.done():
            self._hello.set_result(None)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        self._quiet += 1
        if self._quiet > _QUIET_TICKS:
            self.lose(UnavailableError(f"segment store {self.endpoint} has gone silent"))
        elif self._quiet > 1:
            self.send(wire.KeepAlive())

    def lose(self, error: NadiError) -> None:
        """End the connection, once; everybody who waits hears `error`."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._outgoing is not None:
            self._outgoing.drop()
        if self._transport is not None:
            self._transport.abort()
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()  # nobody may be waiting: no complaint then
        for future in list(self._replies.values()):
            if not future.done():
                future.set_exception(error)
        self._replies.clear()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.on_lost(error)
