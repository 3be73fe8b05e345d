"""Commands on their way to a transport: what one turn of the loop sends goes out in one write.

A write to a socket costs more than most commands do, and each write may wake the peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nadi.limits import KIB
from nadi.wire.codec import encode_alike, encode_parts
from nadi.wire.commands import Command
from nadi.wire.fields import Buffer

_LARGE_PART_BYTES = 64 * KIB  # is not copied to be joined with others
_BUFFERS_MAX = 64  # past it one joined write is faster than that many buffers


class Outgoing:
    """For one transport and its loop's thread. `flushed` is told how many bytes the transport was given.

    `queued_bytes` of it wait for the end of this turn.
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
        """Queue a command; none of it if this raises, such as ProtocolError for one that is too large."""
        self.send_parts(*encode_parts(command))

    def send_all(self, commands: Sequence[Command]) -> None:
        """Queue commands of one kind that is of fixed size."""
        frames = encode_alike(commands)
        self.send_parts([frames], len(frames))

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        """Queue a frame of so many bytes."""
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
        """Forget what is queued: the transport is no longer usable, and may not say so (uvloop's raises)."""
        self._buffers, self._is_large, self.queued_bytes = [], False, 0

    def flush(self) -> None:
        """Hand what is queued to the transport now."""
        buffers, is_large, size = self._buffers, self._is_large, self.queued_bytes
        self._buffers, self._is_large, self._is_due, self.queued_bytes = [], False, False, 0
        if not buffers or self._transport.is_closing():
            return
        try:
            if is_large and len(buffers) < _BUFFERS_MAX:
                self._transport.writelines(buffers)
            else:
                self._transport.write(b"".join(buffers))
        except BaseException:  # half a frame may be out, and others with it: nobody may wait for their answers
            self._transport.abort()
            raise
        if self._flushed is not None:
            self._flushed(size)
