"""A stream's mark stream, as the controller reads and writes it: one watermark per event, the newest last.

Its attribute says where to start reading: at the entry before the newest, so finding the newest takes one read
however many there are. An entry is added only where the stream was believed to end, so if two are computed from the
same newest entry, as in a retry, only one is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from uuid import UUID

from nadi.controller.state.segments import Segments
from nadi.errors import ProtocolError, SegmentNotFoundError
from nadi.limits import KIB, READ_REPLY_MAX_BYTES
from nadi.model.framing import HEADER, HEADER_BYTES
from nadi.model.watermark import Watermark, decode_watermark, encode_watermark
from nadi.naming import REVISION_MARK
from nadi.wire import commands as wire

_WRITER = UUID("6e616469-2d77-8174-8572-6d61726b7321").bytes  # of all controllers: one attribute for each mark stream
_FEW_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class Entry:
    """A watermark and where in the mark stream it begins and ends."""

    start: int
    end: int
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the entries begin and end, what the attribute says (NO_VERSION: nothing), and the newest entry."""

    start: int
    end: int
    mark: int
    newest: Entry | None


class MarkStream:
    """segment: the name of its only segment."""

    def __init__(self, segments: Segments, segment: str) -> None:
        self._segments = segments
        self._segment = segment

    async def extent(self) -> Extent:
        command = wire.GetStreamSegmentInfo(self._segments.request_id(), self._segment, "")
        info = await self._segments.ask(command, wire.StreamSegmentInfo)
        if not info.exists:
            raise SegmentNotFoundError(self._segment)
        asked = wire.GetSegmentAttribute(self._segments.request_id(), self._segment, REVISION_MARK, "")
        mark = (await self._segments.ask(asked, wire.SegmentAttribute)).value
        start, end = info.start_offset, info.write_offset
        newest = None
        async for entry in self.entries(mark if start <= mark < end else start, end):
            newest = entry
        return Extent(start, end, mark, newest)

    async def entries(self, start: int, end: int) -> AsyncGenerator[Entry, None]:
        """The entries between two offsets at which entries start; ProtocolError if anything else is there."""
        held = bytearray()
        at = offset = start
        while offset < end:
            count = min(end - offset, _FEW_BYTES if offset == start else READ_REPLY_MAX_BYTES)
            command = wire.ReadSegment(self._segment, offset, count, "", self._segments.request_id())
            data = (await self._segments.ask(command, wire.SegmentRead)).data
            if not data:
                raise ProtocolError(f"{self._segment} has no bytes at offset {offset:,}: it ends before {end:,}")
            held += data
            offset += len(data)
            while len(held) >= HEADER_BYTES:
                kind, length = HEADER.unpack_from(held)
                if kind != 0 or length < 0:
                    raise ProtocolError(f"no entry begins at offset {at:,} of {self._segment}")
                size = HEADER_BYTES + length
                if len(held) < size:
                    break
                yield Entry(at, at + size, decode_watermark(bytes(held[HEADER_BYTES:size])))
                at += size
                del held[:size]

    async def add(self, watermark: Watermark, extent: Extent) -> Extent | None:
        """Store the watermark after the newest known one; return None if another was stored there meanwhile."""
        setup = wire.SetupAppend(self._segments.request_id(), _WRITER, self._segment, "")
        last = (await self._segments.ask(setup, wire.AppendSetup)).last_event_number
        data = memoryview(encode_watermark(watermark))
        append = wire.ConditionalAppend(_WRITER, max(last, 0) + 1, extent.end, 0, data, self._segments.request_id())
        reply = await self._segments.ask(
            append, wire.DataAppended, wire.ConditionalCheckFailed, wire.InvalidEventNumber
        )
        if not isinstance(reply, wire.DataAppended):
            return None
        before = extent.newest.start if extent.newest is not None else extent.start
        if before != extent.mark:
            change = wire.UpdateSegmentAttribute(
                self._segments.request_id(), self._segment, REVISION_MARK, before, extent.mark, ""
            )
            await self._segments.ask(change, wire.SegmentAttributeUpdated)
        entry = Entry(extent.end, extent.end + HEADER_BYTES + len(data), watermark)
        return Extent(extent.start, entry.end, before, entry)
