"""The other segment stores: one connection to each, over which any number of commands are on their way.

If a store can't be reached, or says nothing for some seconds, what was sent to it fails with UnavailableError, and the
next command tries to connect again.
"""

from __future__ import annotations

import asyncio
import ssl

from msgspec.structs import replace

from nadi.client.control.patience import is_cancelled
from nadi.client.segments.connection import Endpoint, SegmentStoreConnection
from nadi.errors import ClosedError, InvalidArgumentError, UnavailableError
from nadi.limits import PEER_ANSWER_S, PEER_COMMANDS_AT_ONCE, PEER_CONNECT_S, PEER_PLACE_S, PEER_SILENCE_S
from nadi.wire import commands as wire


def endpoint_of(address: str) -> Endpoint:
    """The endpoint that "host:port" names; InvalidArgumentError if it isn't one.

    >>> endpoint_of("[::1]:12345")
    Endpoint(host='::1', port=12345)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgumentError(f"{address!r} is not the address of a server: it is to be host:port")
    return Endpoint(host.strip("[]"), int(port))


class Peer:
    """One other store."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self._endpoint, self._tls = endpoint_of(address), tls
        self._opening: asyncio.Task[SegmentStoreConnection] | None = None
        self._places = asyncio.Semaphore(PEER_COMMANDS_AT_ONCE)
        self._under_way = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a connection nor anybody who needs one."""
        return not self._under_way and (
            self._opening is None or (self._opening.done() and not _is_usable(self._opening))
        )

    async def connection(self) -> SegmentStoreConnection:
        """The open connection, or a new one; UnavailableError if there is none now."""
        task = self._opening
        if task is None or (task.done() and not _is_usable(task)):
            opened = SegmentStoreConnection.open(self._endpoint, PEER_CONNECT_S, self._tls, PEER_SILENCE_S)
            task = self._opening = asyncio.create_task(opened)
            task.add_done_callback(_seen)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise ClosedError("this server is being stopped") from None

    async def ask(self, command: wire.Command, over: SegmentStoreConnection | None = None) -> wire.Command:
        """Return the reply, which may be an error; UnavailableError if none came: it may have been carried out all the
        same. over: the only connection that it may go over; None is the current one."""
        self._under_way += 1
        try:
            await self._place()
            try:
                connection = over or await self.connection()
                reply = await connection.ask(command, wire.Command, timeout_s=PEER_ANSWER_S)
            finally:
                self._places.release()
        finally:
            self._under_way -= 1
        return replace(reply, request_id=command.request_id)  # type: ignore[attr-defined]

    async def _place(self) -> None:
        try:
            async with asyncio.timeout(PEER_PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            raise UnavailableError(
                f"segment store {self._endpoint} has {PEER_COMMANDS_AT_ONCE} commands to answer: try again"
            ) from None

    def close(self) -> None:
        if self._opening is not None:
            if self._opening.done() and _is_usable(self._opening):
                self._opening.result().close()
            self._opening.cancel()


class Peers:
    """All other stores. tls: for connections to them; None is without TLS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        self._is_closed = False

    def at(self, address: str) -> Peer:
        """The store at "host:port"."""
        if self._is_closed:
            raise ClosedError("this server is being stopped")
        peer = self._peers.get(address)
        if peer is None:
            for old in [old for old, one in self._peers.items() if one.is_idle]:  # servers that left don't add up
                del self._peers[old]
            peer = self._peers[address] = Peer(address, self._tls)
        return peer

    def close(self) -> None:
        """End all connections; whoever waits for an answer gets ClosedError or UnavailableError."""
        self._is_closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


def _is_usable(task: asyncio.Task[SegmentStoreConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open


def _seen(task: asyncio.Task[SegmentStoreConnection]) -> None:
    if not task.cancelled():
        task.exception()  # who waited has it; nobody may be waiting any more
