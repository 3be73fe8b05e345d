"""Receiver: listens for syslog, and writes each message as an event.

`connections` and `datagrams` read, `framing` finds the messages in what a connection sent, `events` makes events of
them, and `storing` has them written.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from nadi.client.aio import EventWriter
from nadi.errors import NadiError
from nadi.ingest.syslog.connections import Connections
from nadi.ingest.syslog.datagrams import Datagrams
from nadi.ingest.syslog.events import Making
from nadi.ingest.syslog.storing import Count, Storing
from nadi.limits import SYSLOG_CLOSING_S

Address = tuple[str, int]
_WAITING = 100  # connections that the system holds until they are accepted


class Receiver:
    """`listen` on what is wanted, then `run` until something fails or it is cancelled; `close` what is open."""

    def __init__(self, writer: EventWriter, making: Making | None = None) -> None:
        self.addresses: dict[str, Address] = {}
        self._storing = Storing(writer, making or Making())
        self._connections = Connections(self._storing)
        self._datagrams: Datagrams | None = None

    @property
    def count(self) -> Count:
        return self._storing.count

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def lost_by_system(self) -> int:
        """Datagrams that came while the socket's buffer was full."""
        return self._datagrams.lost_by_system() if self._datagrams is not None else 0

    async def listen_udp(self, address: Address) -> None:
        """OSError if it can't listen there."""
        opened = await _bound(address, socket.SOCK_DGRAM)
        self.addresses["UDP"] = opened.getsockname()[:2]
        self._datagrams = Datagrams(opened, self._storing)

    async def listen_tcp(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        """Likewise."""
        opened = await _bound(address, socket.SOCK_STREAM)
        self.addresses["TCP" if tls is None else "TLS"] = opened.getsockname()[:2]
        self._connections.listen(opened, tls)

    async def run(self) -> None:
        """Until it is cancelled; raises what keeps events from being stored."""
        await self._storing.failed.wait()
        assert self._storing.error is not None
        raise self._storing.error

    async def close(self) -> None:
        """Read no more; return once what was read is with the writer, or can't be within some seconds."""
        with suppress(TimeoutError, NadiError):
            async with asyncio.timeout(SYSLOG_CLOSING_S):
                closing = [self._connections.close()]
                if self._datagrams is not None:
                    closing.append(self._datagrams.close())
                await asyncio.gather(*closing)


async def _bound(address: Address, kind: socket.SocketKind) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, _, _, _, where = (await loop.getaddrinfo(*address, type=kind))[0]
    opened = socket.socket(family, kind)
    try:
        opened.setblocking(False)
        if kind is socket.SOCK_STREAM:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
        if kind is socket.SOCK_STREAM:
            opened.listen(_WAITING)
    except OSError:
        opened.close()
        raise
    return opened
