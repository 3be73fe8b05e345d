"""The process's side of a connection: asyncio's transport interface over an `End`.

Its protocol is called within its process, so not while that is frozen.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .sockets import End

_READ_BYTES = 256 * 1024
_HIGH_BYTES = 64 * 1024


class SimulatedTransport(asyncio.Transport):
    """A transport whose protocol already has it; it reads from now on. end: the source of its bytes."""

    def __init__(self, end: End, protocol: Any, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self._end, self._protocol = end, protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._buffer = bytearray()
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._is_reading = True
        self._is_due = False  # for reading
        self._is_paused = False  # the protocol's writing
        self._is_closing = self._is_lost = False
        end.reader = self
        protocol.connection_made(self)
        self.readable()

    # --- reading ----------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.readable()

    def readable(self) -> None:
        """Read if something has arrived and is wanted."""
        if not self._is_due and self.is_reading() and self._end.unread:
            self._is_due = True
            self._end.process.call_soon(self._read)

    def _read(self) -> None:
        self._is_due = False
        if not self.is_reading() or not self._end.unread:
            return
        if self._end.unread[0] is None:
            self._lose(ConnectionResetError("the peer has reset the connection"))
        elif not self._end.unread[0]:
            self._end.unread.popleft()
            if not self._protocol.eof_received():
                self.close()
        elif self._is_buffered:
            room = self._protocol.get_buffer(-1)
            piece = self._end.read(len(room))
            assert piece
            room[: len(piece)] = piece
            self._protocol.buffer_updated(len(piece))
        else:
            self._protocol.data_received(self._end.read(_READ_BYTES))
        self.readable()

    # --- writing ----------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        view = memoryview(data).cast("B")
        taken = 0 if self._buffer else self._end.send(view)
        self._buffer += view[taken:]
        if len(self._buffer) > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writable(self) -> None:
        """Continue writing."""
        if self._is_lost:
            return
        if self._buffer:
            with memoryview(self._buffer) as view:
                taken = self._end.send(view)
            del self._buffer[:taken]
        if self._is_paused and len(self._buffer) <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._buffer:
            self._lose(None)

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else _HIGH_BYTES
        self._low = low if low is not None else self._high // 4

    def can_write_eof(self) -> bool:
        return False

    # --- the end ----------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._buffer:
                self._end.process.call_soon(self._lose, None)

    def take_back(self) -> None:
        """Abort without retransmission, like SO_LINGER with a zero timeout."""
        self._end.sends_again = False

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._buffer.clear()
            self._end.reset()
            self._end.process.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._buffer.clear()
        self._end.close()
        self._protocol.connection_lost(error)
