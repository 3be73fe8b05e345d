"""Commands on their way to a transport: what one turn of the loop sends goes out in one write.

A write to a socket costs more than what most commands are, and each one may wake the peer.
"""

from __future__ import annotations

import asyncio

from nadi.limits import KIB
from nadi.wire.codec import encode_parts
from nadi.wire.commands import Command
from nadi.wire.fields import Buffer

_LARGE_PART_BYTES = 64 * KIB  # is not copied to be joined with others
_PARTS_MAX = 64  # past it one joined write is faster than that many buffers


class Outgoing:
    """For one transport and its loop's thread."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[Buffer] = []
        self._is_due = False

    def send(self, command: Command) -> None:
        """Queue a command; ProtocolError for one that is too large."""
        self._parts += encode_parts(command)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand over to the transport what is queued, now."""
        self._is_due = False
        parts, self._parts = self._parts, []
        if not parts or self._transport.is_closing():
            return
        try:
            if len(parts) < _PARTS_MAX and max(map(len, parts)) > _LARGE_PART_BYTES:
                self._transport.writelines(parts)
            else:
                self._transport.write(b"".join(parts))
        except BaseException:  # half a frame may be out, and others with it: nobody may wait for their answers
            self._transport.abort()
            raise
