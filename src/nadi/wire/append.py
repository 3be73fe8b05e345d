"""Encoding and reassembly of appends, whose bytes one or two commands carry."""

from __future__ import annotations

import struct

from nadi.errors import ProtocolError
from nadi.wire.commands import AppendBlock, AppendBlockEnd, ConditionalAppend
from nadi.wire.fields import Buffer

BEFORE_DATA = struct.Struct(">ii16sii")  # the frame's head, and the fields of an AppendBlockEnd before its data
AFTER_DATA = struct.Struct(">iqq")
APPEND_BYTES = BEFORE_DATA.size + AFTER_DATA.size  # of an append's frame, without its data
_TRAILER = _HEADER = struct.Struct(">ii")
_PADDING, _PARTIAL_EVENT = -1, -2


def append_frame(
    writer_id: bytes, parts: list[Buffer], size: int, events: int, last: int, request_id: int
) -> list[Buffer]:
    """Encode an append of `size` bytes in `parts` as an AppendBlockEnd, faster than `codec`: there may be one for each
    event.

    >>> len(b"".join(append_frame(bytes(16), [b"event"], 5, 1, 7, 3)))
    57
    """
    before = BEFORE_DATA.pack(AppendBlockEnd.code, APPEND_BYTES - 8 + size, writer_id, size, size)
    return [before, *parts, AFTER_DATA.pack(events, last, request_id)]


def append_parts(block: AppendBlock | None, end: AppendBlockEnd) -> list[Buffer]:
    """Return the buffers that together are the append's bytes.

    Without a block the append is the end's data (Rust, Python and nadi's clients). Otherwise the block's area holds
    complete appends, then either padding, or the head of an event whose remaining bytes are the end's data.
    """
    if block is None:
        return [end.data]
    if block.writer_id != end.writer_id:
        raise ProtocolError("an AppendBlockEnd of another writer follows an AppendBlock")
    area, complete_bytes = block.data, end.size_of_whole_events
    if not 0 <= complete_bytes <= len(area):
        raise ProtocolError(f"AppendBlockEnd announces {complete_bytes} bytes, its AppendBlock has {len(area)}")
    parts: list[Buffer] = [area[:complete_bytes]]
    if complete_bytes < len(area):
        if len(area) - complete_bytes < _TRAILER.size:
            raise ProtocolError("an AppendBlock ends within its trailer")
        kind, size = _TRAILER.unpack_from(area, complete_bytes)
        if size != len(area) - complete_bytes - _TRAILER.size or kind not in (_PADDING, _PARTIAL_EVENT):
            raise ProtocolError(f"an AppendBlock has a trailer of type {kind} and {size} bytes")
        if kind == _PARTIAL_EVENT:
            parts.append(area[complete_bytes + _TRAILER.size :])
    parts.append(end.data)
    return [part for part in parts if len(part)]


def event_parts(append: ConditionalAppend) -> list[Buffer]:
    """Return the buffers of a one-event append, which is sent without the event's header."""
    return [_HEADER.pack(append.event_type, len(append.data)), append.data]
