"""One client's connection: commands in, replies out, each append acknowledged in order.

`intake` decides what is taken from the peer, and when. Appends go to the containers' queues together with the others
that came in one go (`writers`); reads go past these (`reads`), for they may wait at the tail; other commands are
begun in order, some beside others (`commands`). No reply is built that can't be sent soon.
A peer that breaks the protocol loses its connection, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from nadi.access.budget import Budget
from nadi.errors import ChunksUnavailableError, NadiError, ProtocolError, StorageFullError, UnavailableError
from nadi.limits import (
    CONNECTION_REPLIES_BYTES,
    CONNECTION_UNSENT_BYTES,
    PEERS_LEAST_BYTES,
    SEND_HIGH_WATER_BYTES,
    SEND_LOW_WATER_BYTES,
    SEND_TIMEOUT_S,
)
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.doors.commands import CommandQueue
from nadi.segmentstore.doors.intake import Intake
from nadi.segmentstore.doors.reads import ConnectionReads
from nadi.segmentstore.doors.service import SegmentService
from nadi.segmentstore.doors.writers import ConnectionWriters
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.rota import Rota
from nadi.wire import commands as wire
from nadi.wire.errors import error_reply
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
        connections: dict[Connection, None],
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
        self.writers = ConnectionWriters(self, container_of, service.access)
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._reads = ConnectionReads(self, container_of, reader, service.access, rota)
        self._commands = CommandQueue(self, service, rota)
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
        self._connections[self] = None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._outgoing = self._unsent = None
        self._connections.pop(self, None)
        if self._intake is not None:
            self._intake.close()
        self._budget.sending.forget(self._room_came)
        self.sending.give(_KEPT * self._unsent_bytes)
        self._unsent_bytes = 0
        self._is_taken = True
        self.writable.set()
        self._reads.close()
        self.writers.close()
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

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def abort(self) -> None:
        """End it now, even if not everything has been sent."""
        if self._transport is not None:
            self._transport.abort()

    # --- replies -----------------------------------------------------------------------------------------

    def send(self, command: wire.Command) -> None:
        """Queue a reply, unless the connection is lost."""
        if self._outgoing is not None:
            self._outgoing.send(command)

    def send_all(self, commands: list[wire.DataAppended]) -> None:
        """Send acknowledgements: at once if no append of the peer waits for its own."""
        if commands and self._outgoing is not None:
            self._outgoing.send_all(commands)
            if not self.writers.waiting:
                self._flush_now()

    def flush(self) -> None:
        if self._outgoing is not None:
            self._outgoing.flush()

    def _flush_now(self) -> None:
        try:
            self.flush()
        except Exception:  # the connection has ended by it; whoever has just stored an append has nothing to do with it
            log.exception("replies could not be sent")

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
        if isinstance(error, (StorageFullError, ChunksUnavailableError)):
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
        return self.writers.is_full or self._unsent_bytes > CONNECTION_UNSENT_BYTES or self._commands.is_full

    def go_on(self) -> None:
        if self._intake is not None:
            self._intake.go_on()

    def settled(self, count: int) -> None:
        """So many of its appends in containers' queues are answered now."""
        self.writers.settled(count)

    def receive(self, command: wire.Command) -> None:
        """Take a command; `taken` must follow before this turn of the loop ends."""
        if not self._commands.is_busy or isinstance(command, wire.KeepAlive):
            self.dispatch(command)
        else:
            self._enqueue_command(command)  # not before what came before it

    def receive_appends(self, appends: list[wire.AppendBlockEnd]) -> None:
        """`receive` for appends that came one after another."""
        if not self._commands.is_busy and not self.writers.in_block:
            self.writers.append_all(appends)
        else:
            for append in appends:
                self.receive(append)

    def taken(self) -> None:
        """No more comes for now: what was appended gets its place in the queues."""
        self.writers.hand_over()

    def dispatch(self, command: wire.Command) -> None:
        kind, writers = type(command), self.writers
        if kind is wire.AppendBlockEnd:
            writers.append(command)  # type: ignore[arg-type]
            return
        if writers.in_block:
            raise ProtocolError(f"a {kind.__name__} between an AppendBlock and its AppendBlockEnd")
        if kind is wire.AppendBlock:
            writers.begin_block(command)  # type: ignore[arg-type]
            return
        writers.hand_over()  # it may ask for what was appended before it
        if kind is wire.ReadSegment:
            self._reads.start(command)  # type: ignore[arg-type]
        elif kind is wire.SetupAppend:
            writers.set_up(command)  # type: ignore[arg-type]
        elif isinstance(command, wire.ConditionalAppend):
            writers.append_event(command)
        elif isinstance(command, wire.ConditionalBlockEnd):
            writers.append_block(command)
        elif isinstance(command, wire.KeepAlive):
            self.send(command)
        elif isinstance(command, wire.ReportKeys):
            writers.report_keys(command)
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

    def _enqueue_command(self, command: wire.Command) -> None:
        assert self._intake is not None
        size = _COMMAND_WEIGHT * self._intake.frame_bytes
        self._intake.held.take(size)
        self._commands.add(command, size)

    def done_with(self, size_bytes: int) -> None:
        """A command is handled."""
        if self._intake is not None:
            self._intake.held.give(size_bytes)
