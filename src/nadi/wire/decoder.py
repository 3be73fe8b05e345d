"""The receiving half of a connection: a buffer that the transport fills, decoded into commands.

A transport gets a buffer from `get_buffer` and reports the bytes received with `filled`; `commands` yields the complete
commands one by one (`buffer_updated` returns all of them). Views in commands point into the buffer; a buffer with such
views is never written again. Buffers are small at first and grow with the input.
"""

from __future__ import annotations

import struct
import weakref
from array import array
from collections.abc import Iterator
from typing import Any, Protocol

from nadi.errors import ProtocolError
from nadi.limits import KIB, MAX_FRAME_RECEIVED_BYTES, RECEIVE_BUFFER_BYTES
from nadi.wire.append import AFTER_DATA, APPEND_BYTES, BEFORE_DATA
from nadi.wire.codec import decode_payload
from nadi.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    SegmentRead,
)

_FRAME = struct.Struct(">ii")
_ACKNOWLEDGEMENT = struct.Struct(">ii16sqqqq")  # a DataAppended with all its fields
_KEEPS_VIEW = frozenset(
    kind.code for kind in (AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd, SegmentRead)
)
_LEAST_FREE_BYTES = 4096
_ZEROED_BYTES = 64 * KIB
_GROWTH = 4  # size of the next buffer relative to the last one


class MemoryBudget(Protocol):
    """A memory budget that is charged for buffers as long as they are referenced."""

    @property
    def capacity_bytes(self) -> int: ...

    def take(self, size_bytes: int) -> None: ...

    def give(self, size_bytes: int) -> None: ...


class Decoder:
    """A parser of commands from bytes; unusable after a ProtocolError.

    buffer_bytes, least_bytes: size of a buffer, and of the first one; larger frames get a buffer of their size. held:
    the budget charged for every buffer. `max_frame_bytes` limits frames, and may change between two commands.
    """

    def __init__(
        self, buffer_bytes: int = RECEIVE_BUFFER_BYTES, least_bytes: int | None = None, held: MemoryBudget | None = None
    ) -> None:
        self._most = buffer_bytes
        self._least = self._size = min(buffer_bytes, least_bytes or buffer_bytes)
        self._held = held
        self._view = memoryview(b"")  # none yet
        self.current_bytes = 0  # of that buffer
        self._start = 0  # of the first incomplete frame
        self._end = 0  # of the received bytes
        self._shared = False  # commands hold views of this buffer
        self.frame_bytes = 0  # of the last command
        self.max_frame_bytes = MAX_FRAME_RECEIVED_BYTES

    @property
    def pending_bytes(self) -> int:
        """Number of bytes received that aren't part of a returned command yet."""
        return self._end - self._start

    @property
    def wanted_bytes(self) -> int:
        """Size of the incoming frame, with its head; 0 if it isn't known yet, or `commands` will reject the frame."""
        if self._end - self._start < 8:
            return 0
        length: int = _FRAME.unpack_from(self._view, self._start)[1]
        return 8 + length if 0 <= length <= self.max_frame_bytes else 0

    @property
    def head(self) -> tuple[int, int]:
        """Type and size of the incoming frame, or (0, 0) before they have arrived."""
        if self._end - self._start < 8:
            return 0, 0
        code, length = _FRAME.unpack_from(self._view, self._start)
        return code, length

    @property
    def buffer_bytes(self) -> int:
        """Size of the current buffer, if the next one will replace it; else 0."""
        return 0 if self._shared else len(self._view)

    @property
    def next_buffer_bytes(self) -> int:
        """Size of the buffer that `get_buffer` would allocate for the incoming frame; 0 if the current one suffices."""
        frame_bytes = self.wanted_bytes
        return frame_bytes if self._start + frame_bytes > len(self._view) and frame_bytes > self._least else 0

    @property
    def pending(self) -> memoryview:
        """The bytes counted by `pending_bytes`."""
        return self._view[self._start : self._end]

    def get_buffer(self, _hint: int = -1) -> memoryview:
        """Return the buffer for the transport to fill."""
        size = self.current_bytes
        if size - self._end < _LEAST_FREE_BYTES or (self._start < self._end and self._start + self.wanted_bytes > size):
            self._renew()
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """Record that `count` bytes were received."""
        self._end += count

    def commands(self) -> Iterator[Command]:
        """Yield and remove the complete commands. Don't call `get_buffer` during the iteration."""
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
        """Return and remove the next appends, at most `most`, stopping at any frame that `commands` must handle.

        A fast path with the results of `commands`: there may be one append for each event.
        """
        view, end, start, limit = self._view, self._end, self._start, self.max_frame_bytes
        begins, ends, code = BEFORE_DATA.unpack_from, AFTER_DATA.unpack_from, AppendBlockEnd.code
        appends_found: list[AppendBlockEnd] = []
        while len(appends_found) < most and end - start >= APPEND_BYTES:
            kind, length, writer, complete_bytes, size = begins(view, start)
            stop = start + 8 + length
            if kind != code or length > limit or size < 0 or stop > end or length != size + APPEND_BYTES - 8:
                break
            place = start + BEFORE_DATA.size
            after = place + size
            appends_found.append(AppendBlockEnd(writer, complete_bytes, view[place:after], *ends(view, after)))
            start = stop
        if appends_found:
            self._shared = True
            self._start = start
            self.frame_bytes = APPEND_BYTES + len(appends_found[-1].data)
        return appends_found

    def acknowledgements(self) -> list[DataAppended]:
        """Return and remove the next acknowledgements of appends, for the same reason as `appends`."""
        view, start, size = self._view, self._start, _ACKNOWLEDGEMENT.size
        found: list[DataAppended] = []
        for kind, length, writer, number, before, request_id, end in _ACKNOWLEDGEMENT.iter_unpack(
            view[start : self._end - (self._end - start) % size]
        ):
            if kind != DataAppended.code or length != size - _FRAME.size:
                break
            found.append(DataAppended(writer, number, before, request_id, end))
        if found:
            self._start = start + size * len(found)
            self.frame_bytes = size
        return found

    def buffer_updated(self, count: int) -> list[Command]:
        """Record `count` received bytes; return all complete commands."""
        self._end += count
        return list(self.commands())

    def release_idle(self) -> None:
        """Release the buffer of an idle connection."""
        if self._start == self._end:
            self.close()

    def close(self) -> None:
        """Release the buffer and any incomplete frame."""
        self._view, self._start, self._end, self._shared = memoryview(b""), 0, 0, False
        self.current_bytes = 0
        self._size = self._least

    def _renew(self) -> None:
        """Move the incomplete frame to the head of a new buffer that can hold all of it."""
        pending = self._end - self._start
        size = self._size if self._held is None else max(self._least, min(self._size, self._held.capacity_bytes))
        fresh = self._buffer(max(size, self.wanted_bytes, pending + _LEAST_FREE_BYTES))
        fresh[:pending] = self._view[self._start : self._end]
        self._view, self._start, self._end, self._shared = fresh, 0, pending, False
        self.current_bytes = len(fresh)
        self._size = min(self._size * _GROWTH, self._most)

    def _buffer(self, size: int) -> memoryview:
        """Allocate writable memory; much of it without zeroing it first, for which numpy is imported."""
        memory: Any
        if size <= _ZEROED_BYTES:
            memory = array("B", bytes(size))
        else:
            import numpy as np

            memory = np.empty(size, np.uint8)
        if self._held is not None:
            self._held.take(size)
            weakref.finalize(memory, self._held.give, size).atexit = False
        return memoryview(memory)
