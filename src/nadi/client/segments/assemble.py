"""Assemble read replies into whole events; only an event that spans several replies is copied."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nadi.errors import DamagedDataError, InvalidStreamCutError, ProtocolError
from nadi.model.event import EventBlock, whole_events
from nadi.model.framing import HEADER_BYTES

_LENGTH = struct.Struct(">4xi")


class EventAssembler:
    """Assembler of whole events from a segment's consecutive bytes, starting at an event boundary."""

    def __init__(self, offset: int) -> None:
        self._head = bytearray()  # the start of an incomplete event
        self._offset = offset  # offset of the first byte in `_head`, or of the next data

    @property
    def offset(self) -> int:
        """Offset of the first event that was not returned yet."""
        return self._offset

    @property
    def is_within_event(self) -> bool:
        return bool(self._head)

    def next_event_after(self, offset: int) -> int:
        """Return where to resume if the bytes up to `offset` can't be read: after the event that has started, if that
        ends later. A server only knows where appends start, and an event of several appends contains such offsets.
        """
        if len(self._head) < HEADER_BYTES:
            return offset
        size: int = _LENGTH.unpack_from(self._head)[0]
        return max(offset, self._offset + HEADER_BYTES + max(size, 0))

    def feed(self, data: memoryview) -> list[EventBlock]:
        blocks = []
        if self._head:
            data = self._fill(data, HEADER_BYTES)
            if len(self._head) < HEADER_BYTES:
                return []
            size = HEADER_BYTES + max(_LENGTH.unpack_from(self._head)[0], 0)
            data = self._fill(data, size)
            if len(self._head) < size:
                return []
            blocks.append(self._take(memoryview(bytes(self._head))))
            self._head.clear()
        if len(data):
            block = self._take(data)
            if len(block):
                blocks.append(block)
            self._head += data[block.size_bytes :]
        return blocks

    def _take(self, data: memoryview) -> EventBlock:
        block, size = whole_events(data, self._offset)
        self._offset += size
        return block

    def _fill(self, data: memoryview, size: int) -> memoryview:
        missing = max(size - len(self._head), 0)
        self._head += data[:missing]
        return data[missing:]


async def events_in(
    pieces: AsyncGenerator[memoryview, None], segment: str, start: int, end: int | None
) -> AsyncGenerator[EventBlock, None]:
    """Yield the events in a segment's bytes from one event boundary to another, or to the segment's end.

    Raises the errors of `pieces`, with a DamagedDataError widened to event boundaries, and InvalidStreamCutError if
    `end` is within an event.
    """
    assembler = EventAssembler(start)
    try:
        async with aclosing(pieces):
            async for data in pieces:
                for block in assembler.feed(data):
                    yield block
    except DamagedDataError as error:
        resume_at = assembler.next_event_after(error.end_offset)
        raise DamagedDataError(segment, assembler.offset, resume_at, error.reason) from error
    if assembler.is_within_event and end is None:
        raise ProtocolError(f"segment {segment} ends within an event")
    if assembler.is_within_event:
        raise InvalidStreamCutError(f"offset {end:,} of segment {segment} is not an event boundary, or is past its end")
