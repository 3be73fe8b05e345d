"""The commands of a connection other than appends and reads, and what of these came after one of them.

Those with small replies are handled at one time, so that what they change in a container shares a frame of its log, and
none waits for another's container. They are begun in order, so two on one segment take effect in order; each is
answered once it is done. Others are handled one after another, once all before them are done. A task does that while
there are any, and waits whenever the peer takes no replies or there is no room for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from nadi.errors import ProtocolError, UnavailableError
from nadi.limits import COMMANDS_UNDER_WAY, CONNECTION_COMMANDS_AT_ONCE, CONNECTION_COMMANDS_WAITING
from nadi.segmentstore.doors.service import SegmentService
from nadi.segmentstore.doors.transients import Transients
from nadi.segmentstore.rota import Rota
from nadi.wire import commands as wire

if TYPE_CHECKING:
    from nadi.segmentstore.doors.connection import Connection

log = logging.getLogger(__name__)

_AT_ONE_TIME = {  # what changes something, and is answered with no more than was sent
    wire.CreateSegment,
    wire.CreateTableSegment,
    wire.DeleteSegment,
    wire.DeleteTableSegment,
    wire.MergeSegments,
    wire.MergeSegmentsBatch,
    wire.RemoveTableKeys,
    wire.SealSegment,
    wire.TruncateSegment,
    wire.UpdateSegmentAttribute,
    wire.UpdateSegmentPolicy,
    wire.UpdateTableEntries,
}


class CommandQueue:
    """Those of one connection."""

    def __init__(self, connection: Connection, service: SegmentService, rota: Rota) -> None:
        self._connection, self._service, self._rota = connection, service, rota
        self._worker: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[wire.Command, int]] = deque()  # and how many bytes each counts for
        self._running: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()  # something came, or has ended
        self._is_over = False  # one has ended the connection: nothing more is begun
        self._transients = Transients(service)

    @property
    def is_busy(self) -> bool:
        """Whether something isn't done yet: what may not go past it is to be added."""
        return self._worker is not None or bool(self._running)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= CONNECTION_COMMANDS_WAITING

    def add(self, command: wire.Command, size_bytes: int) -> None:
        """Have it handled in its turn; `done_with` its size is called then."""
        if self._worker is None and self._may_start(command) and not (self._rota.is_spent or self._is_over):
            self._start(command, size_bytes)
            return
        self._waiting.append((command, size_bytes))
        self._change.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def close(self) -> None:
        """The connection is gone: drop what waits, and its transient segments."""
        for task in (self._worker, *self._running):
            if task is not None:
                task.cancel()
        for _, size in self._waiting:
            self._connection.done_with(size)
        self._waiting.clear()
        self._transients.drop()

    def _may_start(self, command: wire.Command) -> bool:
        """Whether it may be handled beside those that are: there is room for its reply, too."""
        connection, running = self._connection, len(self._running)
        return (
            type(command) in _AT_ONE_TIME
            and (not running or (running < CONNECTION_COMMANDS_AT_ONCE and self._rota.under_way < COMMANDS_UNDER_WAY))
            and connection.writable.is_set()
            and connection.sending.room_bytes > 0
        )

    def _start(self, command: wire.Command, size_bytes: int) -> None:
        task = asyncio.create_task(self._done(command, size_bytes))
        self._running.add(task)
        self._rota.under_way += 1
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._rota.under_way -= 1
        self._change.set()
        if self._worker is None and not self._running:
            self._connection.go_on()

    async def _work(self) -> None:
        """Begin commands in order; the task ends when none wait and none is under way."""
        connection = self._connection
        while (self._waiting or self._running) and not self._is_over:
            if not self._waiting or (self._running and not self._may_start(self._waiting[0][0])):
                self._change.clear()
                await self._change.wait()
                continue
            await self._may_reply()
            command, size = self._waiting.popleft()
            if self._may_start(command):
                self._start(command, size)
                self._rota.count(1)
                if self._rota.is_spent:
                    await asyncio.sleep(0)
            else:
                await self._done(command, size)
            if len(self._waiting) == CONNECTION_COMMANDS_WAITING // 2:
                connection.go_on()
        if not self._is_over:
            self._worker = None
            connection.go_on()

    async def _may_reply(self) -> None:
        """Wait until the peer takes replies, and there is room for one."""
        sending, writable = self._connection.sending, self._connection.writable
        await writable.wait()
        while not sending.room_bytes:
            await sending.room()
            await writable.wait()

    async def _done(self, command: wire.Command, size_bytes: int) -> None:
        try:
            await self._handle(command)
        finally:
            self._connection.done_with(size_bytes)

    async def _handle(self, command: Any) -> None:
        connection = self._connection
        try:
            if not self._service.handles(command):
                connection.dispatch(command)
                connection.taken()
                return
            reply = await self._service.handle(command)
            self._transients.note(command, reply)
            connection.send(reply)  # inside the try too: a reply that the protocol can't hold ends the connection
            if type(command) not in _AT_ONE_TIME:
                connection.flush()  # so that the next one knows whether there is room
            return
        except UnavailableError as error:
            log.info("a connection ends: %s", error)
            connection.close()
        except ProtocolError as error:
            connection.refuse(error)
        except Exception as error:
            log.error("%s failed", type(command).__name__, exc_info=error)
            connection.close()
        self._is_over = True
        self._change.set()
