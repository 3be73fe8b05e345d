"""Output of commands to a transport, with one write for each iteration of the event loop.

A write to a socket costs more than most commands, and each write may wake the peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nadi.limits import KIB
from nadi.wire.codec import encode_alike, encode_parts
from nadi.wire.commands import Command
from nadi.wire.fields import Buffer

_LARGE_PART_BYTES = 64 * KIB  # larger buffers aren't copied to be joined with others
_BUFFERS_MAX = 64  # past it one joined write is faster than that many buffers


class Outgoing:
    """The output of one transport; for its loop's thread only.

    flushed: called with the number of bytes passed to the transport. `queued_bytes` wait for the end of the iteration.
    """

    def __init__(self, transport: asyncio.WriteTransport, flushed: Callable[[int], None] | None = None) -> None:
        self._transport = transport
        self._flushed = flushed
        self._loop = asyncio.get_running_loop()
        self._buffers: list[Buffer] = []
        self._is_large = False
        self._is_due = False
        self.queued_bytes = 0

    def send(self, command: Command) -> None:
        """Queue a command; an error, such as ProtocolError if it is too large, leaves the queue unchanged."""
        self.send_parts(*encode_parts(command))

    def send_all(self, commands: Sequence[Command]) -> None:
        """Queue commands of one class of fixed size."""
        frames = encode_alike(commands)
        self.send_parts([frames], len(frames))

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        """Queue a frame of `size` bytes in total."""
        if size > _LARGE_PART_BYTES and max(map(len, parts)) > _LARGE_PART_BYTES:
            self._buffers += parts
            self._is_large = True
        else:
            self._buffers.append(b"".join(parts))
        self.queued_bytes += size
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def drop(self) -> None:
        """Discard queued commands: the transport is unusable, and may not report it (uvloop's raises)."""
        self._buffers, self._is_large, self.queued_bytes = [], False, 0

    def flush(self) -> None:
        """Pass all queued commands to the transport now."""
        buffers, is_large, size = self._buffers, self._is_large, self.queued_bytes
        self._buffers, self._is_large, self._is_due, self.queued_bytes = [], False, False, 0
        if not buffers or self._transport.is_closing():
            return
        try:
            if is_large and len(buffers) < _BUFFERS_MAX:
                self._transport.writelines(buffers)
            else:
                self._transport.write(b"".join(buffers))
        except BaseException:  # part of a frame may have been sent, so its callers and all others must fail
            self._transport.abort()
            raise
        if self._flushed is not None:
            self._flushed(size)
