"""The append stream: the commands that carry one append's bytes, and how those are put together."""

from __future__ import annotations

import struct

from nadi.errors import ProtocolError
from nadi.wire.commands import AppendBlock, AppendBlockEnd, ConditionalAppend
from nadi.wire.fields import Buffer

BEFORE_DATA = struct.Struct(">ii16sii")  # the frame's head, and what an AppendBlockEnd has before its data
AFTER_DATA = struct.Struct(">iqq")
APPEND_BYTES = BEFORE_DATA.size + AFTER_DATA.size  # of an append's frame, beside its data
_TRAILER = _HEADER = struct.Struct(">ii")
_PADDING, _PARTIAL_EVENT = -1, -2


def append_frame(
    writer_id: bytes, parts: list[Buffer], size: int, events: int, last: int, request_id: int
) -> list[Buffer]:
    """The frame of an append whose `size` bytes are `parts`: what `codec` makes of the AppendBlockEnd, but
    faster, as there may be one for each event.

    >>> len(b"".join(append_frame(bytes(16), [b"event"], 5, 1, 7, 3)))
    57
    """
    before = BEFORE_DATA.pack(AppendBlockEnd.code, APPEND_BYTES - 8 + size, writer_id, size, size)
    return [before, *parts, AFTER_DATA.pack(events, last, request_id)]


def append_parts(block: AppendBlock | None, end: AppendBlockEnd) -> list[Buffer]:
    """The buffers that, one after another, are the append's bytes.

    Without a block the whole append is the end's data (Rust, Python and nadi's own client). With
    one, the block's area holds whole appends, then either padding, or the head of an event whose
    rest is the end's data.
    """
    if block is None:
        return [end.data]
    if block.writer_id != end.writer_id:
        raise ProtocolError("an AppendBlockEnd of another writer follows an AppendBlock")
    area, whole = block.data, end.size_of_whole_events
    if not 0 <= whole <= len(area):
        raise ProtocolError(f"AppendBlockEnd speaks of {whole} bytes, its AppendBlock has {len(area)}")
    parts: list[Buffer] = [area[:whole]]
    if whole < len(area):
        if len(area) - whole < _TRAILER.size:
            raise ProtocolError("an AppendBlock ends within its trailer")
        kind, size = _TRAILER.unpack_from(area, whole)
        if size != len(area) - whole - _TRAILER.size or kind not in (_PADDING, _PARTIAL_EVENT):
            raise ProtocolError(f"an AppendBlock has a trailer of type {kind} and {size} bytes")
        if kind == _PARTIAL_EVENT:
            parts.append(area[whole + _TRAILER.size :])
    parts.append(end.data)
    return [part for part in parts if len(part)]


def event_parts(append: ConditionalAppend) -> list[Buffer]:
    """The buffers of an append that is one event, which comes without its header."""
    return [_HEADER.pack(append.event_type, len(append.data)), append.data]
