"""The door to the segment store for whoever lives in the same process: one command in, its reply out.

It takes what the service handles, and beyond that reads and conditional appends, whose writer is set up first as
over a connection. A read at a segment's end waits there, so callers ask for the length before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from nadi.errors import InvalidArgumentError, NadiError, StorageFullError, StreamSealedError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.doors.reads import reply_to
from nadi.segmentstore.doors.service import SegmentService, error_reply, find
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.state.records import Kind
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION

_HEADER = struct.Struct(">ii")


class InnerDoor:
    """`container_of` gives the container of a segment's name, `reader` its bytes."""

    def __init__(
        self, container_of: Callable[[str], Container], reader: SegmentReader, service: SegmentService
    ) -> None:
        self._container_of = container_of
        self._reader = reader
        self._service = service
        self._segments: dict[bytes, str] = {}  # by writer: the one it was set up for last

    async def exchange(self, command: wire.Command) -> wire.Command:
        """The reply, which may say what is wrong; raises UnavailableError when the store can't say."""
        match command:
            case wire.SetupAppend() | wire.ReadSegment():
                segment = command.segment
            case wire.ConditionalAppend():
                segment = self._segments.get(command.writer_id, "")
            case _:
                return await self._service.handle(command)
        try:
            if isinstance(command, wire.SetupAppend):
                return await self._set_up(command)
            if isinstance(command, wire.ReadSegment):
                return await self._read(command)
            return await self._append(command, segment)
        except NadiError as error:
            return error_reply(error, command.request_id, segment)

    async def _set_up(self, command: wire.SetupAppend) -> wire.Command:
        self._service.access.check(command)
        container = self._container_of(command.segment)

        def look(_: FrameBuilder) -> int:
            value = container.state.attribute(find(container.state, command.segment, Kind.STREAM), command.writer_id)
            return NO_VERSION if value is None else value

        last = await container.call(look)
        self._segments[command.writer_id] = command.segment
        return wire.AppendSetup(command.request_id, command.segment, command.writer_id, last)

    async def _append(self, command: wire.ConditionalAppend, segment: str) -> wire.Command:
        if not segment:
            raise InvalidArgumentError("an append without SetupAppend")
        container = self._container_of(segment)
        writer, number = command.writer_id, command.event_number
        parts = [_HEADER.pack(command.event_type, len(command.data)), command.data]
        size = sum(map(len, parts))

        def add(frame: FrameBuilder) -> wire.Command:
            if container.log_full:
                raise StorageFullError("tier 2 takes no data and the log is full: free space, or repair tier 2")
            record = find(container.state, segment, Kind.STREAM)
            if record.sealed:
                raise StreamSealedError(segment)
            stored = container.state.attribute(record, writer)
            last = NO_VERSION if stored is None else stored
            if stored is not None and number <= stored:
                return wire.InvalidEventNumber(writer, command.request_id, "", number)
            if record.length != command.expected_offset:
                return wire.ConditionalCheckFailed(writer, number, command.request_id)
            length = frame.append(record, parts, size, 1, writer, number)
            return wire.DataAppended(writer, number, last, command.request_id, length)

        reply: wire.Command = await container.call(add, size)
        return reply

    async def _read(self, command: wire.ReadSegment) -> wire.Command:
        self._service.access.check(command)
        container = self._container_of(command.segment)
        record, data = await self._reader.read(container, command.segment, command.offset, command.suggested_length)
        return reply_to(command, record, data)
