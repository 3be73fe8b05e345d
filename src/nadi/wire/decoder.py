"""The receiving half of a connection: a buffer that the transport fills, and the commands in it.

A transport asks for room with `get_buffer`, fills some of it and says how much with
`buffer_updated`, which gives the commands that became whole. Views in commands point into the
buffer; a buffer with views handed out is never written again but left to them.
"""

from __future__ import annotations

import struct

import numpy as np

from nadi.errors import ProtocolError
from nadi.limits import MAX_FRAME_RECEIVED_BYTES, RECEIVE_BUFFER_BYTES
from nadi.wire.codec import decode_payload
from nadi.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    SegmentRead,
)

_FRAME = struct.Struct(">ii")
_KEEPS_VIEW = frozenset(
    kind.code for kind in (AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd, SegmentRead)
)
_LEAST_ROOM = 4096


def _buffer(size: int) -> memoryview:
    """Writable memory that, unlike a bytearray's, is not zeroed first."""
    return np.empty(size, np.uint8).data


class Decoder:
    """Bytes in, commands out; after a ProtocolError it must not be used again."""

    def __init__(self, buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> None:
        self._size = buffer_bytes
        self._view = _buffer(buffer_bytes)
        self._start = 0  # of the first frame that is not whole yet
        self._end = 0  # of what was received
        self._shared = False  # commands hold views of this buffer

    def get_buffer(self, _hint: int = -1) -> memoryview:
        """Room for the transport to fill."""
        if len(self._view) - self._end < _LEAST_ROOM:
            self._renew()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> list[Command]:
        """The commands that became whole with the `count` bytes just received."""
        self._end += count
        commands: list[Command] = []
        view, start, end = self._view, self._start, self._end
        while end - start >= 8:
            code, length = _FRAME.unpack_from(view, start)
            if not 0 <= length <= MAX_FRAME_RECEIVED_BYTES:
                raise ProtocolError(f"a frame of type {code} announces {length:,} bytes")
            stop = start + 8 + length
            if stop > end:
                break
            commands.append(decode_payload(code, view, start + 8, stop))
            self._shared = self._shared or code in _KEEPS_VIEW
            start = stop
        self._start = start
        if start == end and not self._shared:
            self._start = self._end = 0
        elif end - start >= 8 and start + 8 + _FRAME.unpack_from(view, start)[1] > len(view):
            self._renew()
        return commands

    def receive(self, data: bytes | memoryview) -> list[Command]:
        """The same for bytes that arrive in a buffer of somebody else's: they are copied."""
        commands: list[Command] = []
        data = memoryview(data)
        while data:
            room = self.get_buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            commands += self.buffer_updated(count)
            data = data[count:]
        return commands

    def _renew(self) -> None:
        """Move the unfinished frame to the head of a fresh buffer that can hold it whole."""
        pending = self._end - self._start
        needed = 0
        if pending >= 8:
            needed = 8 + _FRAME.unpack_from(self._view, self._start)[1]
        fresh = _buffer(max(self._size, needed, pending + _LEAST_ROOM))
        fresh[:pending] = self._view[self._start : self._end]
        self._view, self._start, self._end, self._shared = fresh, 0, pending, False
