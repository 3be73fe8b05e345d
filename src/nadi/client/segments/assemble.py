"""Turns read replies into whole events: an event that straddles replies is put together, nothing else is copied."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nadi.errors import DamagedDataError, InvalidStreamCutError, ProtocolError
from nadi.model.event import EventBlock, whole_events
from nadi.model.framing import HEADER_BYTES

_LENGTH = struct.Struct(">4xi")


class EventAssembler:
    """Takes consecutive bytes of one segment from an event boundary on, and returns whole events."""

    def __init__(self, offset: int) -> None:
        self._head = bytearray()  # of an event whose rest is still to come
        self._offset = offset  # of the first byte in `_head`, or of what comes next

    @property
    def offset(self) -> int:
        """Where the first event starts that was not returned yet."""
        return self._offset

    @property
    def is_within_event(self) -> bool:
        return bool(self._head)

    def next_event_after(self, offset: int) -> int:
        """Where to continue if nothing up to `offset` can be read: after the event that has started, if that is later.

        A server knows where appends start, and an event of several appends has such places within it.
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
    """The events in a segment's bytes from one event boundary to another, or to its end.

    Raises what `pieces` does, DamagedDataError from the first event that can't be read to the next that may be;
    InvalidStreamCutError if `end` lies within an event.
    """
    assembler = EventAssembler(start)
    try:
        async with aclosing(pieces):
            async for data in pieces:
                for block in assembler.feed(data):
                    yield block
    except DamagedDataError as error:
        go_on_at = assembler.next_event_after(error.end_offset)
        raise DamagedDataError(segment, assembler.offset, go_on_at, error.reason) from error
    if assembler.is_within_event and end is None:
        raise ProtocolError(f"segment {segment} ends within an event")
    if assembler.is_within_event:
        raise InvalidStreamCutError(f"{end:,} is not an event boundary of segment {segment}, or lies past its end")
