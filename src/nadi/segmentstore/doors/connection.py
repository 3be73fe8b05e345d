"""One client's connection: commands in, replies out, each append acknowledged in order.

`intake` decides what is taken from the peer, and when. Appends are put into the container's queue as they are
decoded (`appends`), without a task or a future for each; reads go past it (`reads`), for they may wait at the
tail; other commands are handled one after another (`commands`). No reply is built that can't be sent soon.
A peer that breaks the protocol loses its connection, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import cast

from cachetools import FIFOCache

from nadi.access.budget import Budget
from nadi.errors import NadiError, NotOwnerError, ProtocolError, StorageFullError, UnavailableError
from nadi.limits import (
    APPEND_SESSIONS_KEPT,
    CONNECTION_APPENDS_WAITING,
    CONNECTION_REPLIES_BYTES,
    CONNECTION_SESSIONS,
    CONNECTION_UNSENT_BYTES,
    PEERS_LEAST_BYTES,
    SEND_HIGH_WATER_BYTES,
    SEND_LOW_WATER_BYTES,
    SEND_TIMEOUT_S,
)
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.doors.appends import Append, Expired, Session, Setup
from nadi.segmentstore.doors.commands import CommandQueue
from nadi.segmentstore.doors.intake import Intake
from nadi.segmentstore.doors.reads import ConnectionReads
from nadi.segmentstore.doors.service import SegmentService
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.rota import Rota
from nadi.wire import commands as wire
from nadi.wire.append import append_parts, event_parts
from nadi.wire.errors import error_reply
from nadi.wire.fields import NO_VERSION, Buffer
from nadi.wire.loads import positions_of
from nadi.wire.outgoing import Outgoing
from nadi.wire.unsent import Unsent

log = logging.getLogger(__name__)

_COMMAND_WEIGHT = 4  # a command of many small parts takes several times its bytes
_KEPT = 2  # a reply keeps alive the block it was cut from: up to twice its size


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(
        self,
        container_of: Callable[[str], Container],
        service: SegmentService,
        reader: SegmentReader,
        connections: set[Connection],
        report: Callable[[object, object], None],
        budget: Budget,
        rota: Rota,
        known: Callable[[], None] = lambda: None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """report: called with whose connection was ended, and why; anybody can cause that, at any rate.

        known: called when the peer has shown that it may be here. left: when the connection is gone.
        """
        self._container_of = container_of
        self._service = service
        self._access = service.access
        self._connections = connections
        self._report = report
        self._budget = budget
        self._rota = rota
        self.sending = budget.sending.account()  # what is held for replies
        self.known = known
        self._left = left
        self._intake: Intake | None = None
        self._unsent: Unsent | None = None
        self._unsent_bytes = 0
        self._appends = 0  # in containers' queues
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._moved: FIFOCache[bytes, NotOwnerError] = FIFOCache(CONNECTION_SESSIONS)  # by writer: the reply it gets
        self._block: wire.AppendBlock | None = None
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._reads = ConnectionReads(self, container_of, reader, service.access, rota)
        self._commands = CommandQueue(self, service)
        self._throttle: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._is_taken = True  # the peer takes what is sent; as `writable` says

    # --- transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)  # uvloop's has the methods, but isn't a subclass
        made.set_write_buffer_limits(high=SEND_HIGH_WATER_BYTES, low=SEND_LOW_WATER_BYTES)
        self._outgoing = Outgoing(made, self._flushed)
        self._unsent = Unsent(made)
        self._intake = Intake(self, self._budget, self._rota, self._access, made)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._outgoing = self._unsent = None
        self._connections.discard(self)
        if self._intake is not None:
            self._intake.close()
        self._budget.sending.forget(self._room_came)
        self.sending.give(_KEPT * self._unsent_bytes)
        self._unsent_bytes = 0
        self._is_taken = True
        self.writable.set()
        self._reads.close()
        if self._throttle is not None:
            self._throttle.cancel()
        self._commands.close()
        self._left()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._intake is not None
        return self._intake.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        assert self._intake is not None
        self._intake.buffer_updated(nbytes)

    def pause_writing(self) -> None:
        self._is_taken = False
        self.writable.clear()

    def resume_writing(self) -> None:
        self._flushed(0)
        self._is_taken = True
        self.writable.set()
        self._reads.taken()
        self._reads.go_on()
        self.go_on()

    def _flushed(self, size_bytes: int) -> None:
        """That many more bytes were handed to the transport, or it has sent some on."""
        if self._unsent is not None:
            unsent, before = self._unsent.flushed(size_bytes), self._unsent_bytes
            if unsent != before:
                self._unsent_bytes = unsent
                self.sending.take(_KEPT * (unsent - before))

    def look(self, now_s: float) -> bool:
        """End the connection if its peer is too slow to send, or to take what it asked for; return whether it was."""
        if self._transport is None or self._intake is None or self._unsent is None:
            return False
        reason = self._intake.look(now_s)
        if self._unsent.stalled_s(now_s) > SEND_TIMEOUT_S:
            reason = f"it took nothing of {self._unsent.size_bytes:,} bytes for {SEND_TIMEOUT_S:.0f} s"
        if reason:
            self._report(self._peer(), reason)
            self._transport.abort()  # the peer would not take the rest either
            return True
        if self._unsent_bytes:
            self._flushed(0)
        return False

    def broken(self, error: Exception) -> None:
        """End the connection because of what was received, or of an error while handling it."""
        if isinstance(error, ProtocolError):
            self.refuse(error)
        else:
            log.error("a connection ends by an unexpected error", exc_info=error)
            self.close()

    def _peer(self) -> object:
        return self._transport.get_extra_info("peername") if self._transport is not None else None

    def refuse(self, reason: object) -> None:
        self._report(self._peer(), reason)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """End it now, even if not everything has been sent."""
        if self._transport is not None:
            self._transport.abort()

    # --- replies -----------------------------------------------------------------------------------------

    def send(self, command: wire.Command) -> None:
        """Queue a reply, unless the connection is lost."""
        if self._outgoing is not None:
            self._outgoing.send(command)

    def flush(self) -> None:
        if self._outgoing is not None:
            self._outgoing.flush()

    @property
    def room_bytes(self) -> int:
        """How large a reply may be now; 0: none, and reads are resumed when that changes."""
        if not self._is_taken:
            return 0
        pool = self._budget.sending
        share, held = pool.share_bytes, self.sending.held_bytes
        room = ((share if share < CONNECTION_REPLIES_BYTES else CONNECTION_REPLIES_BYTES) - held) // _KEPT
        if self._outgoing is not None:
            room -= self._outgoing.queued_bytes
        if room > 0:
            return room
        pool.wait(self._room_came)
        return 0

    def _room_came(self) -> None:
        self._flushed(0)
        self._reads.go_on()

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None:
        """Send the error to the peer; an error the protocol has no word for ends the connection."""
        try:
            self.send(error_reply(error, request_id, segment, offset))
        except UnavailableError:
            self.close()
        except NadiError as unexpected:
            self.refuse(unexpected)
        if isinstance(error, StorageFullError):
            self.close()

    # --- commands ----------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken from the peer for now; whoever changes that calls `go_on`."""
        intake = self._intake
        if intake is None:
            return True
        if intake.held.held_bytes > PEERS_LEAST_BYTES and intake.is_over_share:
            intake.wait()
            return True
        return (
            self._throttle is not None
            or self._appends >= CONNECTION_APPENDS_WAITING
            or self._unsent_bytes > CONNECTION_UNSENT_BYTES
            or self._commands.is_full
        )

    def go_on(self) -> None:
        if self._intake is not None:
            self._intake.go_on()

    def settled(self) -> None:
        """One of the appends in a container's queue was answered."""
        self._appends -= 1
        if self._appends == CONNECTION_APPENDS_WAITING // 2:
            self.go_on()

    def receive(self, command: wire.Command) -> None:
        if self._commands.worker is None or isinstance(command, wire.KeepAlive):
            self.dispatch(command)
        else:
            self._enqueue_command(command)  # not before what came before it

    def dispatch(self, command: wire.Command) -> None:
        kind = type(command)
        if kind is wire.AppendBlockEnd:
            self._append(command)  # type: ignore[arg-type]
        elif self._block is not None:
            raise ProtocolError(f"a {kind.__name__} between an AppendBlock and its AppendBlockEnd")
        elif kind is wire.AppendBlock:
            self._block = command  # type: ignore[assignment]
        elif kind is wire.ReadSegment:
            self._reads.start(command)  # type: ignore[arg-type]
        elif kind is wire.SetupAppend:
            self._setup(command)  # type: ignore[arg-type]
        elif isinstance(command, wire.ConditionalAppend):
            self._append_if(command, event_parts(command), NO_VERSION)
        elif isinstance(command, wire.ConditionalBlockEnd):
            self._append_if(command, [command.data], command.after_event_number)
        elif isinstance(command, wire.KeepAlive):
            self.send(command)
        elif isinstance(command, wire.ReportKeys):
            self._report_keys(command)
        elif isinstance(command, wire.Hello):
            self._hello(command)
        elif self._service.handles(command):
            self._enqueue_command(command)
        else:
            raise ProtocolError(f"a client can't send {kind.__name__}")

    def _hello(self, command: wire.Hello) -> None:
        self.send(wire.OWN_HELLO if wire.takes_reports(command) else wire.HELLO)
        if command.low_version > wire.HELLO.high_version or command.high_version < wire.HELLO.low_version:
            self.refuse(f"its versions {command.low_version} to {command.high_version} are not ours")

    def _setup(self, command: wire.SetupAppend) -> None:
        try:
            ends_at = self._access.check(command)
            container = self._container_of(command.segment)
        except NadiError as error:
            self._sessions.pop(command.writer_id, None)
            self.fail(error, command.request_id, command.segment)
            return
        session = Session(command.segment, container, ends_at, command.request_id)
        self._sessions[command.writer_id] = session
        if len(self._sessions) > CONNECTION_SESSIONS:
            raise ProtocolError(f"more than {CONNECTION_SESSIONS:,} writers on one connection")
        self._appends += 1
        if len(self._sessions) > APPEND_SESSIONS_KEPT:
            self._look_at_sessions()
        container.submit(Setup(self, session, command))

    def tell_given_up(self, container: Container, owner: str) -> Iterator[None]:
        """Tell its writers there that the store at that address has it, one for each step, except those whose append
        got that answer already; after this, nothing here keeps the container in memory."""
        yield
        for writer, session in list(self._sessions.items()):
            if session.container is container and self._sessions.get(writer) is session:
                del self._sessions[writer]
                self._moved[writer] = error = NotOwnerError(session.segment, owner)
                if session.error is None:
                    self.fail(error, session.request_id, session.segment)
            yield

    def _look_at_sessions(self) -> None:
        """Drop sessions that are over: four looks for each new one, which needs two, so that none pile up."""
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

    def _append_if(
        self, command: wire.ConditionalAppend | wire.ConditionalBlockEnd, parts: list[Buffer], after: int
    ) -> None:
        number, expected = command.event_number, command.expected_offset
        self._enqueue(command.writer_id, parts, 1, number, command.request_id, expected, after)

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
            moved = self._moved.get(writer)
            if moved is None:
                raise ProtocolError("an append without SetupAppend")
            self.fail(moved, request_id, moved.segment)
            return
        session.is_used = True
        container = session.container
        self._appends += 1
        if self._access.has_ended(session.ends_at):
            container.submit(Expired(self, session, request_id))
            return
        container.submit(Append(self, session, writer, parts, events, last, request_id, expected, after))
        if container.full and self._throttle is None and self._transport is not None:
            self._throttle = asyncio.create_task(self._resume_when_room(container))

    def _report_keys(self, command: wire.ReportKeys) -> None:
        positions = positions_of(command)
        session = self._sessions.get(command.writer_id)
        if session is not None:
            if session.error is None and not self._access.has_ended(session.ends_at):
                session.container.load.report(session.segment, positions, command.events)
        elif command.writer_id not in self._moved:
            raise ProtocolError("a report of keys without SetupAppend")

    async def _resume_when_room(self, container: Container) -> None:
        await container.room()
        self._throttle = None
        self.go_on()

    def _enqueue_command(self, command: wire.Command) -> None:
        assert self._intake is not None
        size = _COMMAND_WEIGHT * self._intake.frame_bytes
        self._intake.held.take(size)
        self._commands.add(command, size)

    def done_with(self, size_bytes: int) -> None:
        """A command is handled."""
        if self._intake is not None:
            self._intake.held.give(size_bytes)
