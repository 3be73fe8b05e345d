"""The door to the segment store for callers in the same process: one command in, its reply out. Nothing waits here for
data still to come: a read at a segment's end is answered with no data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nadi.errors import InvalidArgumentError, NadiError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.server.appends import Append, Appends, Session, Setup
from nadi.segmentstore.server.reads import reply_to
from nadi.segmentstore.server.service import SegmentService
from nadi.wire import commands as wire
from nadi.wire.append import event_parts
from nadi.wire.errors import error_reply


class InnerDoor:
    """`container_of` returns the container of a segment's name, `reader` its bytes."""

    def __init__(
        self, container_of: Callable[[str], Container], reader: SegmentReader, service: SegmentService
    ) -> None:
        self._container_of = container_of
        self._reader = reader
        self._service = service
        self._sessions: dict[bytes, Session] = {}  # by writer: for the segment it was last set up for

    async def exchange(self, command: wire.Command) -> wire.Command:
        """Return the reply, which may be an error; raise UnavailableError if the store can't answer."""
        offset = -1
        match command:
            case wire.SetupAppend():
                segment, work = command.segment, self._set_up(command)
            case wire.ReadSegment():
                segment, work, offset = command.segment, self._read(command), command.offset
            case wire.ConditionalAppend():
                session = self._sessions.get(command.writer_id)
                segment, work = session.segment if session is not None else "", self._append(command, session)
            case _:
                return await self._service.handle(command)
        try:
            return await work
        except NadiError as error:
            return error_reply(error, command.request_id, segment, offset)

    async def _set_up(self, command: wire.SetupAppend) -> wire.Command:
        ends_at = self._service.access.check(command)
        session = Session(command.segment, self._container_of(command.segment), ends_at, command.request_id)
        caller = _Caller()
        session.container.submit(Setup(caller, session, command))
        reply = await caller.reply
        self._sessions[command.writer_id] = session
        return reply

    async def _append(self, command: wire.ConditionalAppend, session: Session | None) -> wire.Command:
        if session is None:
            raise InvalidArgumentError("an append without SetupAppend")
        writer, number = command.writer_id, command.event_number
        if number <= session.stored:
            return wire.InvalidEventNumber(writer, command.request_id, "", number)
        caller, parts = _Caller(), event_parts(command)
        appends = Appends(caller, session.container.monotonic())
        size, expected = sum(map(len, parts)), command.expected_offset
        appends.appends.append(Append(session, writer, parts, size, 1, number, command.request_id, expected))
        session.container.submit(appends)
        return await caller.reply

    async def _read(self, command: wire.ReadSegment) -> wire.Command:
        self._service.access.check(command)
        container = self._container_of(command.segment)
        record, data = await self._reader.read(container, command.segment, command.offset, command.suggested_length)
        return reply_to(command, record, data)


class _Caller:
    """The caller that waits for the one reply to an append, or to its setup; a `Peer` for as long as that takes."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[wire.Command] = asyncio.get_running_loop().create_future()

    def settled(self, count: int) -> None:
        """Nothing waits for that."""

    def send_all(self, commands: list[wire.DataAppended]) -> None:
        for command in commands:
            self.send(command)

    def send(self, command: wire.Command) -> None:
        if not self.reply.done():  # else its wait was cancelled
            self.reply.set_result(command)

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def end(self) -> None:
        """It has no connection to lose."""
