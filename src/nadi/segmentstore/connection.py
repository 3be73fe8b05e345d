"""One client's connection: commands in, replies out, each append acknowledged in order.

Appends are put into the container's queue as they are decoded, without a task or a future for each;
reads go past it (`connection_reads`), for they may wait at the tail; other commands are handled one after another.
A peer that breaks the protocol loses this connection, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

from nadi.errors import (
    NadiError,
    ProtocolError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    UnavailableError,
)
from nadi.limits import (
    APPEND_SESSION_GONE_S,
    APPEND_SESSION_IDLE_S,
    APPEND_SESSIONS_KEPT,
    CONNECTION_SEND_HIGH_WATER_BYTES,
)
from nadi.naming import TRANSIENT_DELIMITER
from nadi.segmentstore.connection_reads import ConnectionReads
from nadi.segmentstore.container import Container
from nadi.segmentstore.frame import FrameBuilder
from nadi.segmentstore.reads import SegmentReader
from nadi.segmentstore.records import Kind
from nadi.segmentstore.service import SegmentService, error_reply, find
from nadi.wire import commands as wire
from nadi.wire.append import append_parts
from nadi.wire.decoder import Decoder
from nadi.wire.fields import NO_VERSION, Buffer
from nadi.wire.outgoing import Outgoing

log = logging.getLogger(__name__)

HELLO = wire.Hello(17, 5)
_COMMANDS_WAITING = 1_000


class _Session:
    """One writer on one segment on this connection."""

    __slots__ = (
        "acknowledged", "container", "ends_at", "error", "is_used", "looked_at", "parent", "segment", "stored"
    )  # fmt: skip

    def __init__(self, segment: str, container: Container, ends_at: float) -> None:
        self.segment = segment
        parent, transient, _ = segment.partition(TRANSIENT_DELIMITER)
        self.parent = parent if transient else None  # into which the segment will be merged
        self.ends_at = ends_at  # of its token, in seconds since 1970
        self.container = container
        self.stored = NO_VERSION  # the writer's number once everything before is written
        self.acknowledged = NO_VERSION
        self.error: Exception | None = None  # what ended the session
        self.is_used = False  # since it was looked at
        self.looked_at = time.monotonic()

    def is_over(self) -> bool:
        """Whether it had nothing to do for long, or for a while after its end."""
        now = time.monotonic()
        if self.is_used:
            self.is_used, self.looked_at = False, now
            return False
        idle_s = now - self.looked_at
        return idle_s > APPEND_SESSION_IDLE_S or (idle_s > APPEND_SESSION_GONE_S and self._has_ended())

    def _has_ended(self) -> bool:
        container = self.container
        return self.error is not None or (
            container.failure is None and not container.state.residents.exists(self.segment)
        )


class WriterConflictError(NadiError):
    """Another connection writes with the same writer id."""


class ConditionError(NadiError):
    """A conditional append did not meet the offset, or the append before it, that it expected."""


class _Setup:
    """SetupAppend in the container's turn: every earlier append of the writer is settled then."""

    __slots__ = ("command", "connection", "session", "size_bytes")

    def __init__(self, connection: Connection, session: _Session, command: wire.SetupAppend) -> None:
        self.connection, self.session, self.command = connection, session, command
        self.size_bytes = 64

    def prepare(self, frame: FrameBuilder) -> int:
        state = self.session.container.state
        value = state.attribute(find(state, self.session.segment, Kind.STREAM), self.command.writer_id)
        self.session.stored = self.session.acknowledged = NO_VERSION if value is None else value
        return self.session.stored

    def done(self, result: int) -> None:
        command = self.command
        self.connection.send(wire.AppendSetup(command.request_id, command.segment, command.writer_id, result))

    def failed(self, error: Exception) -> None:
        self.session.error = error
        self.connection.fail(error, self.command.request_id, self.command.segment)


class _Expired:
    """An append whose session's token has ended: said in its turn, then the connection ends.

    It must end, for the Rust client takes no notice of the reply alone.
    """

    __slots__ = ("connection", "request_id", "session", "size_bytes")

    def __init__(self, connection: Connection, session: _Session, request_id: int) -> None:
        self.connection, self.session, self.request_id = connection, session, request_id
        self.size_bytes = 64

    def prepare(self, frame: FrameBuilder) -> int:
        self.session.error = self.session.error or TokenExpiredError("the session's delegation token has expired")
        raise self.session.error.with_traceback(None)

    def done(self, result: int) -> None:
        raise AssertionError("it always fails")

    def failed(self, error: Exception) -> None:
        self.connection.fail(error, self.request_id, self.session.segment)
        self.connection.close()


class _Append:
    """One append, atomic with its writer's event number."""

    __slots__ = (
        "after", "connection", "events", "expected_offset", "last", "parts", "request_id", "session", "size_bytes",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        session: _Session,
        writer: bytes,
        parts: list[Buffer],
        events: int,
        last: int,
        request_id: int,
        expected_offset: int | None = None,
        after: int = NO_VERSION,
    ) -> None:
        self.connection, self.session, self.writer, self.parts = connection, session, writer, parts
        self.events, self.last, self.request_id = events, last, request_id
        self.expected_offset, self.after = expected_offset, after
        self.size_bytes = sum(map(len, parts))

    def prepare(self, frame: FrameBuilder) -> int:
        try:
            return self._add(frame)
        except ConditionError:
            raise
        except NadiError as error:
            self.session.error = error  # at once: nothing later of this writer may be stored without this
            raise

    def _add(self, frame: FrameBuilder) -> int:
        session = self.session
        if session.error is not None:
            raise session.error.with_traceback(None)  # else it would hold on to every append that met it
        if session.container.log_full:
            raise StorageFullError("tier 2 takes no data and the log is full: free space, or repair tier 2")
        state = session.container.state
        record = find(state, session.segment, Kind.STREAM)
        if record.sealed:
            raise StreamSealedError(session.segment)
        if session.parent is not None and find(state, session.parent).sealed:
            # said now: the Rust client looks for it here, and would repeat a refused merge for ever
            raise StreamSealedError(session.parent)
        stored = state.attribute(record, self.writer)
        if (NO_VERSION if stored is None else stored) != session.stored or self.last < session.stored:
            raise WriterConflictError(f"another connection writes with the id {self.writer.hex()}")
        if self.after not in (NO_VERSION, session.stored):
            raise ConditionError(f"the append {self.after} before it was not stored")
        if self.expected_offset is not None and self.expected_offset != record.length:
            raise ConditionError(f"the segment has {record.length} bytes")
        length = frame.append(record, self.parts, self.size_bytes, self.events, self.writer, self.last)
        session.stored = self.last
        return length

    def done(self, result: int) -> None:
        session = self.session
        self.connection.send(wire.DataAppended(self.writer, self.last, session.acknowledged, self.request_id, result))
        session.acknowledged = self.last

    def failed(self, error: Exception) -> None:
        connection = self.connection
        if isinstance(error, ConditionError):
            connection.send(wire.ConditionalCheckFailed(self.writer, self.last, self.request_id))
        elif isinstance(error, WriterConflictError):
            connection.send(wire.InvalidEventNumber(self.writer, self.request_id, "", self.last))
            connection.close()
        else:
            self.session.error = error  # also where the container failed after `prepare`
            offset = self.last if isinstance(error, StreamSealedError) else -1
            connection.fail(error, self.request_id, self.session.segment, offset)


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(
        self,
        container_of: Callable[[str], Container],
        service: SegmentService,
        reader: SegmentReader,
        connections: set[Connection],
        report: Callable[[object, object], None],
    ) -> None:
        """`report` is told whose connection was ended, and why: anybody can cause that, at any rate."""
        self._container_of = container_of
        self._service = service
        self._access = service.access
        self._connections = connections
        self._report = report
        self._decoder = Decoder()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._block: wire.AppendBlock | None = None
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._reads = ConnectionReads(self, container_of, reader, service.access)
        self._commands: asyncio.Queue[wire.Command] = asyncio.Queue(_COMMANDS_WAITING)
        self._worker: asyncio.Task[None] | None = None
        self._throttle: asyncio.Task[None] | None = None
        self._transients: list[str] = []
        self.writable = asyncio.Event()
        self.writable.set()

    # --- transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by form, not by class
        self._transport.set_write_buffer_limits(high=CONNECTION_SEND_HIGH_WATER_BYTES)
        self._outgoing = Outgoing(self._transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._outgoing = None
        self._connections.discard(self)
        self.writable.set()
        self._reads.close()
        for task in (self._worker, self._throttle):
            if task is not None:
                task.cancel()
        if self._transients:
            names, self._transients = self._transients, []
            task = asyncio.create_task(self._drop_transients(names))
            _background.add(task)
            task.add_done_callback(_background.discard)

    async def _drop_transients(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._service.delete(name)
            except SegmentNotFoundError:
                pass  # it was merged
            except UnavailableError as error:
                log.warning("transient segment %s stays for now: %s", name, error)

    def pause_writing(self) -> None:
        self.writable.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable.set()
        if self._transport is not None and self._throttle is None:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for command in self._decoder.buffer_updated(nbytes):
                self._receive(command)
        except ProtocolError as error:
            self._refuse(error)
        except Exception as error:
            log.error("a connection ends by an unexpected error", exc_info=error)
            self.close()

    def _refuse(self, reason: object) -> None:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        self._report(peer, reason)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    # --- replies -----------------------------------------------------------------------------------------

    def send(self, command: wire.Command) -> None:
        """Queue a reply, unless the connection is lost."""
        if self._outgoing is not None:
            self._outgoing.send(command)

    def flush(self) -> None:
        if self._outgoing is not None:
            self._outgoing.flush()

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None:
        """Say the error on the wire; what the protocol has no word for ends the connection."""
        try:
            self.send(error_reply(error, request_id, segment, offset))
        except UnavailableError:
            self.close()
        except NadiError as unexpected:
            self._refuse(unexpected)
        if isinstance(error, StorageFullError):
            self.close()

    # --- commands ----------------------------------------------------------------------------------------

    def _receive(self, command: wire.Command) -> None:
        if self._worker is None or isinstance(command, wire.KeepAlive):
            self._dispatch(command)
        else:
            self._enqueue_command(command)  # not before what came before it

    def _dispatch(self, command: wire.Command) -> None:
        kind = type(command)
        if self._block is not None and kind is not wire.AppendBlockEnd:
            raise ProtocolError(f"a {kind.__name__} between an AppendBlock and its AppendBlockEnd")
        if kind is wire.AppendBlockEnd:
            self._append(command)  # type: ignore[arg-type]
        elif kind is wire.AppendBlock:
            self._block = command  # type: ignore[assignment]
        elif kind is wire.ReadSegment:
            self._reads.start(command)  # type: ignore[arg-type]
        elif kind is wire.SetupAppend:
            self._setup(command)  # type: ignore[arg-type]
        elif isinstance(command, wire.ConditionalAppend):
            header = command.event_type.to_bytes(4, "big", signed=True) + len(command.data).to_bytes(4, "big")
            parts: list[Buffer] = [header, command.data]
            self._enqueue(
                command.writer_id, parts, 1, command.event_number, command.request_id, command.expected_offset
            )
        elif isinstance(command, wire.ConditionalBlockEnd):
            self._enqueue(
                command.writer_id,
                [command.data],
                1,
                command.event_number,
                command.request_id,
                command.expected_offset,
                command.after_event_number,
            )
        elif isinstance(command, wire.KeepAlive):
            self.send(command)
        elif isinstance(command, wire.Hello):
            self._hello(command)
        elif self._service.handles(command):
            self._enqueue_command(command)
        else:
            raise ProtocolError(f"a client can't send {kind.__name__}")

    def _hello(self, command: wire.Hello) -> None:
        self.send(HELLO)
        if command.low_version > HELLO.high_version or command.high_version < HELLO.low_version:
            self._refuse(f"its versions {command.low_version} to {command.high_version} are not ours")

    def _setup(self, command: wire.SetupAppend) -> None:
        try:
            ends_at = self._access.check(command)
        except NadiError as error:
            self._sessions.pop(command.writer_id, None)
            self.fail(error, command.request_id, command.segment)
            return
        session = _Session(command.segment, self._container_of(command.segment), ends_at)
        self._sessions[command.writer_id] = session
        if len(self._sessions) > APPEND_SESSIONS_KEPT:
            self._look_at_sessions()
        session.container.submit(_Setup(self, session, command))

    def _look_at_sessions(self) -> None:
        """Drop those that are over: four looks for each new one, which needs two, so that none gather."""
        for _ in range(4):
            writer, session = self._sessions.popitem(last=False)
            if not session.is_over():
                self._sessions[writer] = session

    def _append(self, end: wire.AppendBlockEnd) -> None:
        block, self._block = self._block, None
        if end.num_events <= 0:
            raise ProtocolError(f"an append of {end.num_events} events")
        parts = append_parts(block, end)
        self._enqueue(end.writer_id, parts, end.num_events, end.last_event_number, end.request_id)

    def _enqueue(
        self,
        writer: bytes,
        parts: list[Buffer],
        events: int,
        last: int,
        request_id: int,
        expected: int | None = None,
        after: int = NO_VERSION,
    ) -> None:
        session = self._sessions.get(writer)
        if session is None:
            raise ProtocolError("an append without SetupAppend")
        session.is_used = True
        container = session.container
        if self._access.has_ended(session.ends_at):
            container.submit(_Expired(self, session, request_id))
            return
        container.submit(_Append(self, session, writer, parts, events, last, request_id, expected, after))
        if container.full and self._throttle is None and self._transport is not None:
            self._transport.pause_reading()
            self._throttle = asyncio.create_task(self._resume_when_room(container))

    async def _resume_when_room(self, container: Container) -> None:
        await container.room()
        self._throttle = None
        if self._transport is not None and self.writable.is_set():
            self._transport.resume_reading()

    def _enqueue_command(self, command: wire.Command) -> None:
        try:
            self._commands.put_nowait(command)
        except asyncio.QueueFull:
            raise ProtocolError(f"more than {_COMMANDS_WAITING} commands wait on one connection") from None
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Handle commands in order; the task ends when none wait."""
        while not self._commands.empty():
            command: Any = self._commands.get_nowait()
            try:
                if not self._service.handles(command):
                    self._dispatch(command)
                    continue
                reply = await self._service.handle(command)
                if isinstance(command, wire.CreateTransientSegment) and isinstance(reply, wire.SegmentCreated):
                    self._transients.append(reply.segment)
                self.send(reply)  # in here too: a reply that the protocol can't hold ends the connection
            except UnavailableError as error:
                log.info("a connection ends: %s", error)
                self.close()
                return
            except ProtocolError as error:
                self._refuse(error)
                return
            except Exception as error:
                log.error("%s failed", type(command).__name__, exc_info=error)
                self.close()
                return
        self._worker = None


_background: set[asyncio.Task[None]] = set()
