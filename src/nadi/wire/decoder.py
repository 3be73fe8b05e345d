"""The receiving half of a connection: a buffer that the transport fills, and the commands in it.

A transport asks for room with `get_buffer` and reports how much it filled with `filled`; `commands` yields the complete
ones one by one (`buffer_updated` returns all of them). Views in commands point into the buffer; a buffer with views
handed out is never written again but left to them. Buffers are small at first and grow with the input.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator
from typing import Protocol

from nadi.errors import ProtocolError
from nadi.limits import MAX_FRAME_RECEIVED_BYTES, RECEIVE_BUFFER_BYTES
from nadi.wire.append import AFTER_DATA, APPEND_BYTES, BEFORE_DATA
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
_GROWTH = 4  # times as large as the last buffer is the next one


class Held(Protocol):
    """Who counts the memory of buffers, as long as anybody holds one."""

    @property
    def room_bytes(self) -> int: ...

    def take(self, size_bytes: int) -> None: ...

    def give(self, size_bytes: int) -> None: ...


class Decoder:
    """Bytes in, commands out; after a ProtocolError it must not be used again.

    buffer_bytes: size of a buffer, and least_bytes of the first one; a larger frame gets its own. held: is notified of
    every buffer. `max_frame_bytes` is the most a frame may announce, and may be changed between two commands.
    """

    def __init__(
        self, buffer_bytes: int = RECEIVE_BUFFER_BYTES, least_bytes: int | None = None, held: Held | None = None
    ) -> None:
        self._most = buffer_bytes
        self._least = self._size = min(buffer_bytes, least_bytes or buffer_bytes)
        self._held = held
        self._view = memoryview(b"")  # none yet
        self.current_bytes = 0  # of that buffer
        self._start = 0  # of the first frame that is not whole yet
        self._end = 0  # of what was received
        self._shared = False  # commands hold views of this buffer
        self.frame_bytes = 0  # of the command that came last
        self.max_frame_bytes = MAX_FRAME_RECEIVED_BYTES

    @property
    def pending_bytes(self) -> int:
        """Bytes received but in no command yet."""
        return self._end - self._start

    @property
    def wanted_bytes(self) -> int:
        """Size of the incoming frame, with its head; 0 if it isn't known yet, or if `commands` will refuse it."""
        if self._end - self._start < 8:
            return 0
        length: int = _FRAME.unpack_from(self._view, self._start)[1]
        return 8 + length if 0 <= length <= self.max_frame_bytes else 0

    @property
    def head(self) -> tuple[int, int]:
        """Type and size of the incoming frame; (0, 0) if they haven't arrived."""
        if self._end - self._start < 8:
            return 0, 0
        code, length = _FRAME.unpack_from(self._view, self._start)
        return code, length

    @property
    def buffer_bytes(self) -> int:
        """Size of the current buffer, as far as the next one replaces it."""
        return 0 if self._shared else len(self._view)

    @property
    def next_buffer_bytes(self) -> int:
        """Size of the buffer that `get_buffer` would make for the incoming frame; 0 if no other is needed."""
        wanted = self.wanted_bytes
        return wanted if self._start + wanted > len(self._view) and wanted > self._least else 0

    @property
    def pending(self) -> memoryview:
        """What `pending_bytes` counts."""
        return self._view[self._start : self._end]

    def get_buffer(self, _hint: int = -1) -> memoryview:
        """Room for the transport to fill."""
        size = self.current_bytes
        if size - self._end < _LEAST_ROOM or (self._start < self._end and self._start + self.wanted_bytes > size):
            self._renew()
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """Note that `count` bytes of the room were filled."""
        self._end += count

    def commands(self) -> Iterator[Command]:
        """The complete commands, each removed as it is yielded. Don't ask for room meanwhile."""
        view, end = self._view, self._end
        while end - self._start >= 8:
            start = self._start
            code, length = _FRAME.unpack_from(view, start)
            if not 0 <= length <= self.max_frame_bytes:
                raise ProtocolError(f"a frame of type {code} announces {length:,} bytes")
            stop = start + 8 + length
            if stop > end:
                return
            command = decode_payload(code, view, start + 8, stop)
            if code in _KEEPS_VIEW:
                self._shared = True
            self._start = stop
            self.frame_bytes = 8 + length
            yield command
        if self._start == self._end and not self._shared:
            self._start = self._end = 0

    def appends(self, most: int) -> list[AppendBlockEnd]:
        """The appends that are next, at most so many, up to any other command and to what `commands` must look at.

        There may be one for each event, so they are taken in one loop; what comes out is the same.
        """
        view, end, start, limit = self._view, self._end, self._start, self.max_frame_bytes
        begins, ends, code = BEFORE_DATA.unpack_from, AFTER_DATA.unpack_from, AppendBlockEnd.code
        found: list[AppendBlockEnd] = []
        while len(found) < most and end - start >= APPEND_BYTES:
            kind, length, writer, whole, size = begins(view, start)
            stop = start + 8 + length
            if kind != code or length > limit or size < 0 or stop > end or length != size + APPEND_BYTES - 8:
                break
            place = start + BEFORE_DATA.size
            after = place + size
            found.append(AppendBlockEnd(writer, whole, view[place:after], *ends(view, after)))
            start = stop
        if found:
            self._shared = True
            self._start = start
            self.frame_bytes = APPEND_BYTES + len(found[-1].data)
        return found

    def buffer_updated(self, count: int) -> list[Command]:
        """All commands completed by the `count` bytes just received."""
        self._end += count
        return list(self.commands())

    def rest(self) -> None:
        """Keep no buffer while nothing comes."""
        if self._start == self._end:
            self.close()

    def close(self) -> None:
        """Let go of the buffer, and of what came of a frame."""
        self._view, self._start, self._end, self._shared = memoryview(b""), 0, 0, False
        self.current_bytes = 0
        self._size = self._least

    def _renew(self) -> None:
        """Move the unfinished frame to the head of a fresh buffer that can hold it whole."""
        pending = self._end - self._start
        size = self._size if self._held is None else max(self._least, min(self._size, self._held.room_bytes))
        fresh = self._buffer(max(size, self.wanted_bytes, pending + _LEAST_ROOM))
        fresh[:pending] = self._view[self._start : self._end]
        self._view, self._start, self._end, self._shared = fresh, 0, pending, False
        self.current_bytes = len(fresh)
        self._size = min(self._size * _GROWTH, self._most)

    def _buffer(self, size: int) -> memoryview:
        """Writable memory that, unlike a bytearray's, is not zeroed first."""
        import numpy as np

        array = np.empty(size, np.uint8)
        if self._held is not None:
            self._held.take(size)
            weakref.finalize(array, self._held.give, size).atexit = False
        return array.data
