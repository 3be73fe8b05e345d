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
from collections.abc import Callable
from typing import Any

from nadi.access.budget import Account
from nadi.errors import NotOwnerError, ProtocolError, SegmentNotFoundError, UnavailableError
from nadi.limits import COMMANDS_UNDER_WAY, CONNECTION_COMMANDS_AT_ONCE, CONNECTION_COMMANDS_WAITING
from nadi.segmentstore.doors.replies import Replies
from nadi.segmentstore.doors.service import SegmentService
from nadi.segmentstore.rota import Rota
from nadi.wire import commands as wire

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


_background: set[asyncio.Task[None]] = set()  # deletions of transient segments


class CommandQueue:
    """Those of one connection.

    received: what is held for what it received. dispatch: handles a command that isn't the service's. resume: called
    when more may be taken.
    """

    def __init__(
        self,
        replies: Replies,
        received: Account,
        service: SegmentService,
        rota: Rota,
        dispatch: Callable[[wire.Command], None],
        resume: Callable[[], None],
    ) -> None:
        self._replies, self._received, self._service, self._rota = replies, received, service, rota
        self._dispatch, self._resume = dispatch, resume
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
        """Have it handled in its turn; so much is held for it until then."""
        self._received.take(size_bytes)
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
            self._received.give(size)
        self._waiting.clear()
        self._transients.drop()

    def _may_start(self, command: wire.Command) -> bool:
        """Whether it may be handled beside those that are: there is room for its reply, too."""
        replies, running = self._replies, len(self._running)
        return (
            type(command) in _AT_ONE_TIME
            and (not running or (running < CONNECTION_COMMANDS_AT_ONCE and self._rota.under_way < COMMANDS_UNDER_WAY))
            and replies.writable.is_set()
            and replies.held.room_bytes > 0
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
            self._resume()

    async def _work(self) -> None:
        """Begin commands in order; the task ends when none wait and none is under way."""
        while (self._waiting or self._running) and not self._is_over:
            if not self._waiting or (self._running and not self._may_start(self._waiting[0][0])):
                self._change.clear()
                await self._change.wait()
                continue
            await self._replies.may_reply()
            command, size = self._waiting.popleft()
            if self._may_start(command):
                self._start(command, size)
                self._rota.count(1)
                if self._rota.is_spent:
                    await asyncio.sleep(0)
            else:
                await self._done(command, size)
            if len(self._waiting) == CONNECTION_COMMANDS_WAITING // 2:
                self._resume()
        if not self._is_over:
            self._worker = None
            self._resume()

    async def _done(self, command: wire.Command, size_bytes: int) -> None:
        try:
            await self._handle(command)
        finally:
            self._received.give(size_bytes)

    async def _handle(self, command: Any) -> None:
        replies = self._replies
        try:
            if not self._service.handles(command):
                self._dispatch(command)
                return
            reply = await self._service.handle(command)
            self._transients.note(command, reply)
            replies.send(reply)  # inside the try too: a reply that the protocol can't hold ends the connection
            if type(command) not in _AT_ONE_TIME:
                replies.flush()  # so that the next one knows whether there is room
            return
        except UnavailableError as error:
            log.info("a connection ends: %s", error)
            replies.close()
        except ProtocolError as error:
            replies.refuse(error)
        except Exception as error:
            log.error("%s failed", type(command).__name__, exc_info=error)
            replies.close()
        self._is_over = True
        self._change.set()


class Transients:
    """The transient segments of a connection, which end with it: a writer of large events creates and merges each."""

    def __init__(self, service: SegmentService) -> None:
        self._service = service
        self._names: set[str] = set()

    def note(self, command: wire.Command, reply: wire.Command) -> None:
        if isinstance(command, wire.CreateTransientSegment) and isinstance(reply, wire.SegmentCreated):
            self._names.add(reply.segment)
        elif not self._names:
            return
        elif isinstance(reply, wire.SegmentsMerged):
            self._names.discard(reply.source)
        elif isinstance(command, wire.MergeSegmentsBatch) and isinstance(reply, wire.SegmentsBatchMerged):
            self._names.difference_update(command.sources)
        elif isinstance(reply, wire.SegmentDeleted):
            self._names.discard(reply.segment)

    def drop(self) -> None:
        """Delete them: the connection is gone."""
        if self._names:
            names, self._names = self._names, set()
            task = asyncio.create_task(self._delete(names))
            _background.add(task)
            task.add_done_callback(_background.discard)

    async def _delete(self, names: set[str]) -> None:
        for name in sorted(names):
            try:
                await self._service.delete(name)
            except (SegmentNotFoundError, NotOwnerError):
                pass  # it was merged, or whoever takes over its container ends it
            except UnavailableError as error:
                log.warning("transient segment %s stays for now: %s", name, error, extra={"segment": name})
