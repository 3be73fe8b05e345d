"""The commands of a connection that wait to be handled one after another: all but appends and reads, and what of these
came after one of them.

A task handles them while there are any, and waits whenever the peer takes no replies or there is no room for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from nadi.errors import ProtocolError, UnavailableError
from nadi.limits import CONNECTION_COMMANDS_WAITING
from nadi.segmentstore.doors.service import SegmentService
from nadi.segmentstore.doors.transients import Transients
from nadi.wire import commands as wire

if TYPE_CHECKING:
    from nadi.segmentstore.doors.connection import Connection

log = logging.getLogger(__name__)


class CommandQueue:
    """Those of one connection. worker: the task, while it has any."""

    def __init__(self, connection: Connection, service: SegmentService) -> None:
        self.worker: asyncio.Task[None] | None = None
        self._connection, self._service = connection, service
        self._waiting: deque[tuple[wire.Command, int]] = deque()  # and how many bytes each counts for
        self._transients = Transients(service)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= CONNECTION_COMMANDS_WAITING

    def add(self, command: wire.Command, size_bytes: int) -> None:
        """Have it handled in its turn; `done_with` its size is called then."""
        self._waiting.append((command, size_bytes))
        if self.worker is None:
            self.worker = asyncio.create_task(self._work())

    def close(self) -> None:
        """The connection is gone: drop what waits, and its transient segments."""
        if self.worker is not None:
            self.worker.cancel()
        for _, size in self._waiting:
            self._connection.done_with(size)
        self._waiting.clear()
        self._transients.drop()

    async def _work(self) -> None:
        """Handle commands in order; the task ends when none wait."""
        connection = self._connection
        while self._waiting:
            await self._may_reply()
            command, size = self._waiting.popleft()
            try:
                if not await self._handle(command):
                    return
            finally:
                connection.done_with(size)
            if len(self._waiting) == CONNECTION_COMMANDS_WAITING // 2:
                connection.go_on()
        self.worker = None
        connection.go_on()

    async def _may_reply(self) -> None:
        """Wait until the peer takes replies, and there is room for one."""
        sending, writable = self._connection.sending, self._connection.writable
        await writable.wait()
        while not sending.room_bytes:
            await sending.room()
            await writable.wait()

    async def _handle(self, command: Any) -> bool:
        """Handle a command; return whether the connection continues after it."""
        connection = self._connection
        try:
            if not self._service.handles(command):
                connection.dispatch(command)
                connection.taken()
                return True
            reply = await self._service.handle(command)
            self._transients.note(command, reply)
            connection.send(reply)  # inside the try too: a reply that the protocol can't hold ends the connection
            connection.flush()  # so that the next one knows whether there is room
            return True
        except UnavailableError as error:
            log.info("a connection ends: %s", error)
            connection.close()
        except ProtocolError as error:
            connection.refuse(error)
        except Exception as error:
            log.error("%s failed", type(command).__name__, exc_info=error)
            connection.close()
        return False
