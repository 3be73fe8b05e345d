"""The writers of one connection: their sessions, and what they append, gathered for each container.

Appends are taken one by one as they are decoded; `hand_over` puts what came in one go into the containers' queues,
before anything else of the connection is handled that may depend on it. Nothing is awaited for an append, and no task
or future is made for one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cachetools import FIFOCache

from nadi.errors import NadiError, NotOwnerError, ProtocolError
from nadi.limits import APPEND_SESSIONS_KEPT, CONNECTION_APPENDS_WAITING, CONNECTION_SESSIONS
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.doors.appends import Append, Appends, Expired, Session, Setup
from nadi.segmentstore.doors.token_check import TokenCheck
from nadi.wire import commands as wire
from nadi.wire.append import append_parts, event_parts
from nadi.wire.fields import NO_VERSION, Buffer
from nadi.wire.loads import positions_of

if TYPE_CHECKING:
    from nadi.segmentstore.doors.connection import Connection


class ConnectionWriters:
    """Those of one connection. `sessions` are by writer; `waiting` counts its appends in containers' queues."""

    def __init__(self, connection: Connection, container_of: Callable[[str], Container], access: TokenCheck) -> None:
        self._connection = connection
        self._container_of = container_of
        self._access = access
        self.sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._moved: FIFOCache[bytes, NotOwnerError] = FIFOCache(CONNECTION_SESSIONS)  # by writer: the reply it gets
        self._block: wire.AppendBlock | None = None
        self._gathered: dict[Container, Appends] = {}
        self._throttle: asyncio.Task[None] | None = None
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether no more is taken for now; the connection's `go_on` is called when that changes."""
        return self._throttle is not None or self.waiting >= CONNECTION_APPENDS_WAITING

    def close(self) -> None:
        if self._throttle is not None:
            self._throttle.cancel()

    def set_up(self, command: wire.SetupAppend) -> None:
        try:
            ends_at = self._access.check(command)
            container = self._container_of(command.segment)
        except NadiError as error:
            self.sessions.pop(command.writer_id, None)
            self._connection.fail(error, command.request_id, command.segment)
            return
        session = Session(command.segment, container, ends_at, command.request_id)
        self.sessions[command.writer_id] = session
        if len(self.sessions) > CONNECTION_SESSIONS:
            raise ProtocolError(f"more than {CONNECTION_SESSIONS:,} writers on one connection")
        self.waiting += 1
        if len(self.sessions) > APPEND_SESSIONS_KEPT:
            self._look_at_sessions()
        container.submit(Setup(self._connection, session, command))

    def tell_given_up(self, container: Container, owner: str) -> Iterator[None]:
        """Tell its writers there that the store at that address has it, one for each step, except those whose append
        got that answer already; after this, nothing here keeps the container in memory."""
        yield
        for writer, session in list(self.sessions.items()):
            if session.container is container and self.sessions.get(writer) is session:
                del self.sessions[writer]
                self._moved[writer] = error = NotOwnerError(session.segment, owner)
                if session.error is None:
                    self._connection.fail(error, session.request_id, session.segment)
            yield

    def _look_at_sessions(self) -> None:
        """Drop sessions that are over: four looks for each new one, which needs two, so that none pile up."""
        for _ in range(4):
            writer, session = self.sessions.popitem(last=False)
            if not session.is_over():
                self.sessions[writer] = session

    # --- appends -----------------------------------------------------------------------------------------

    def begin_block(self, block: wire.AppendBlock) -> None:
        """The next command is the block's end."""
        self._block = block

    @property
    def in_block(self) -> bool:
        return self._block is not None

    def append(self, end: wire.AppendBlockEnd) -> None:
        block, events = self._block, end.num_events
        if events <= 0:
            raise ProtocolError(f"an append of {events} events")
        if block is None:
            parts: list[Buffer] = [end.data]
            size = len(end.data)
        else:
            self._block = None
            parts = append_parts(block, end)
            size = sum(map(len, parts))
        self._take(end.writer_id, parts, size, events, end.last_event_number, end.request_id)

    def append_all(self, ends: list[wire.AppendBlockEnd]) -> None:
        """`append` for those that came one after another, none of them after an AppendBlock: mostly small ones."""
        sessions, access = self.sessions, self._access
        gathered: list[Append] = []
        container: Container | None = None
        for end in ends:
            events, session = end.num_events, sessions.get(end.writer_id)
            if session is None or events <= 0 or access.has_ended(session.ends_at):
                self.append(end)
                container = None
                continue
            if session.container is not container:
                container = session.container
                gathered = self._gathered_for(container).appends
            session.is_used = True
            data = end.data
            gathered.append(
                Append(session, end.writer_id, [data], len(data), events, end.last_event_number, end.request_id)
            )
            self.waiting += 1

    def append_event(self, command: wire.ConditionalAppend) -> None:
        parts = event_parts(command)
        number, expected = command.event_number, command.expected_offset
        self._take(command.writer_id, parts, sum(map(len, parts)), 1, number, command.request_id, expected)

    def append_block(self, end: wire.ConditionalBlockEnd) -> None:
        number, expected, after = end.event_number, end.expected_offset, end.after_event_number
        self._take(end.writer_id, [end.data], len(end.data), 1, number, end.request_id, expected, after)

    def _take(
        self,
        writer: bytes,
        parts: list[Buffer],
        size: int,
        events: int,
        last: int,
        request_id: int,
        expected: int | None = None,
        after: int = NO_VERSION,
    ) -> None:
        session = self.sessions.get(writer)
        if session is None:
            moved = self._moved.get(writer)
            if moved is None:
                raise ProtocolError("an append without SetupAppend")
            self._connection.fail(moved, request_id, moved.segment)
            return
        session.is_used = True
        self.waiting += 1
        container = session.container
        if self._access.has_ended(session.ends_at):
            self.hand_over()
            container.submit(Expired(self._connection, session, request_id))
            return
        append = Append(session, writer, parts, size, events, last, request_id, expected, after)
        self._gathered_for(container).appends.append(append)

    def _gathered_for(self, container: Container) -> Appends:
        gathered = self._gathered.get(container)
        if gathered is None:
            gathered = self._gathered[container] = Appends(self._connection, container.monotonic())
        return gathered

    def hand_over(self) -> None:
        """Put what was gathered into the containers' queues."""
        gathered = self._gathered
        if not gathered:
            return
        self._gathered = {}
        for container, appends in gathered.items():
            container.submit(appends)
            if container.queue.is_full and self._throttle is None and self._connection.is_open:
                container.counts.throttles += 1
                self._throttle = asyncio.create_task(self._resume_when_room(container))

    def settled(self, count: int) -> None:
        """So many in containers' queues are answered."""
        before = self.waiting
        self.waiting = before - count
        if before > CONNECTION_APPENDS_WAITING // 2 >= self.waiting:
            self._connection.go_on()

    async def _resume_when_room(self, container: Container) -> None:
        await container.queue.room()
        self._throttle = None
        self._connection.go_on()

    def report_keys(self, command: wire.ReportKeys) -> None:
        positions = positions_of(command)
        session = self.sessions.get(command.writer_id)
        if session is not None:
            if session.error is None and not self._access.has_ended(session.ends_at):
                session.container.load.report(session.segment, positions, command.events)
        elif command.writer_id not in self._moved:
            raise ProtocolError("a report of keys without SetupAppend")
