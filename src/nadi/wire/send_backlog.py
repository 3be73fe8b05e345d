"""What was sent to one peer but is still in this process, and how long the peer has taken none of it."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

from nadi.limits import READ_REPLY_MAX_BYTES, SEND_HIGH_WATER_BYTES, SEND_LOW_WATER_BYTES, SEND_PROGRESS_BYTES

_BYTES_ACKED = struct.Struct("=120xQ")  # in Linux's tcp_info
_TLS_MOST_BYTES = READ_REPLY_MAX_BYTES + SEND_HIGH_WATER_BYTES  # what a TLS transport may have handed on


class Unsent:
    """Of one transport. Call `flushed` after writing to it, `stalled_s` now and then."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._below = 0  # at most so much is in the transport below a TLS one, which does not tell
        self._acknowledged = 0
        self._since = 0.0  # when it took something last; 0 where nothing waits

    @property
    def size_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + self._below

    def flushed(self, size_bytes: int) -> int:
        """What is not sent after so much more was written; 0 bytes more is to ask again."""
        if self._is_tls:
            self._below = min(self._below + size_bytes, _TLS_MOST_BYTES)
            if self._below > SEND_LOW_WATER_BYTES and self._system_takes_more():
                self._below = 0
        return self._transport.get_write_buffer_size() + self._below

    def stalled_s(self, now_s: float) -> float:
        """How long the peer has taken none, or almost none, of what waits for it; 0 if nothing waits."""
        if self._below and self._system_takes_more():
            self._below = 0
        if not self.size_bytes:
            self._since = 0.0
            return 0.0
        acknowledged = self._taken()
        if not self._since or acknowledged - self._acknowledged >= SEND_PROGRESS_BYTES:
            self._since, self._acknowledged = now_s, acknowledged
        return now_s - self._since

    def _system_takes_more(self) -> bool:
        """Its buffer is far from full: so nothing waits for it in this process, below TLS or elsewhere."""
        if self._socket is None or self._socket.fileno() < 0:
            return True
        waiting: int = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return 4 * waiting < self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def _taken(self) -> int:
        """Bytes that the peer's system acknowledged since the connection began."""
        if self._socket is None or self._socket.fileno() < 0:
            return 0
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
        except OSError:
            return 0
        taken: int = _BYTES_ACKED.unpack(info)[0]
        return taken
