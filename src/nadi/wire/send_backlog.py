"""Unsent bytes of a connection, and detection of stalled peers."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

from nadi.limits import READ_REPLY_MAX_BYTES, SEND_HIGH_WATER_BYTES, SEND_LOW_WATER_BYTES, SEND_PROGRESS_BYTES

_BYTES_ACKED = struct.Struct("=120xQ")  # in Linux's tcp_info
_TLS_MOST_BYTES = READ_REPLY_MAX_BYTES + SEND_HIGH_WATER_BYTES  # maximum that a TLS transport has passed on


class SendBacklog:
    """The send backlog of one transport. Call `flushed` after each write, and `stalled_s` periodically."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._below = 0  # upper bound of the bytes in the transport below TLS, which can't be queried
        self._acknowledged = 0
        self._since = 0.0  # time of the last progress; 0 without a backlog

    @property
    def size_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + self._below

    def flushed(self, size_bytes: int) -> int:
        """Record `size_bytes` written, and return the backlog in bytes; pass 0 to update it."""
        if self._is_tls:
            self._below = min(self._below + size_bytes, _TLS_MOST_BYTES)
            if self._below > SEND_LOW_WATER_BYTES and self._system_takes_more():
                self._below = 0
        return self._transport.get_write_buffer_size() + self._below

    def stalled_s(self, now_s: float) -> float:
        """Return how long the peer has accepted almost nothing; 0 without a backlog."""
        if self._below and self._system_takes_more():
            self._below = 0
        if not self.size_bytes:
            self._since = 0.0
            return 0.0
        acknowledged = self._acknowledged_bytes()
        if not self._since or acknowledged - self._acknowledged >= SEND_PROGRESS_BYTES:
            self._since, self._acknowledged = now_s, acknowledged
        return now_s - self._since

    def _system_takes_more(self) -> bool:
        """Return whether the socket's buffer is far from full, so that nothing waits in this process."""
        if self._socket is None or self._socket.fileno() < 0:
            return True
        waiting: int = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return 4 * waiting < self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def _acknowledged_bytes(self) -> int:
        """Return the bytes that the peer's system has acknowledged since the start of the connection."""
        if self._socket is None or self._socket.fileno() < 0:
            return 0
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
        except OSError:
            return 0
        acknowledged: int = _BYTES_ACKED.unpack(info)[0]
        return acknowledged
