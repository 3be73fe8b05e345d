"""How the controller of a cluster reaches segments: an `Exchange` over all stores.

What lies in the store in this process is asked at its inner door, all else over the wire. The controller's own records
are asked at the inner door alone: if their container is no longer here, this controller is no longer the active one.

A conditional append names its writer only, whose segment was named when the writer was set up. So it is remembered
where that was; if the segment is elsewhere by then, or its connection was lost, the writer is set up there first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from cachetools import LRUCache
from msgspec.structs import replace

from nadi.access.commands import acts_of
from nadi.client.control.patience import is_cancelled
from nadi.client.segments.connection import Endpoint, SegmentStoreConnection
from nadi.errors import ClosedError, InvalidArgumentError, NotOwnerError, ProtocolError, UnavailableError
from nadi.limits import (
    APPEND_SESSIONS_KEPT,
    LOAD_PAGE_SEGMENTS,
    PEER_ANSWER_S,
    PEER_COMMANDS_AT_ONCE,
    PEER_CONNECT_S,
    PEER_PLACE_S,
    PEER_SILENCE_S,
)
from nadi.model.load import SegmentLoad
from nadi.segmentstore.hosted import is_record
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.loads import packed_loads, unpacked_loads

_TRIES = 3  # for one command, each at another place


@dataclass(slots=True, eq=False)
class _Writer:
    """A writer, and where it was set up last: at the store in this process or over a connection to another; None:
    it has to be set up again."""

    setup: wire.SetupAppend
    at: SegmentStore | SegmentStoreConnection | None


class SegmentRouter:
    """Call it with a command. ClosedError once it is closed.

    store: the one in this process. address: its own, "host:port", as `owner_of` and `stores` tell it. owner_of: returns
    the address of the store that has a segment's container now; "" if that isn't known. stores: returns the addresses
    of all stores that have containers. tls: for connections to the others.
    """

    def __init__(
        self,
        store: SegmentStore,
        address: str,
        owner_of: Callable[[str], str],
        stores: Callable[[], Collection[str]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._store, self._address = store, address
        self._owner_of, self._stores = owner_of, stores
        self._peers = Peers(tls)
        self._writers: LRUCache[bytes, _Writer] = LRUCache(APPEND_SESSIONS_KEPT)

    async def __call__(self, command: Command) -> Command:
        """Return the reply, which may be an error. NotOwnerError: nobody is known to have the segment; nothing was
        done. UnavailableError: its store can't be reached or didn't answer; the command may have been carried out."""
        match command:
            case wire.ConditionalAppend():
                return await self._append(command)
            case wire.GetSegmentLoads():
                return await self._loads(command)
            case wire.SetupAppend():
                writer = _Writer(command, None)
                reply = await self._where_it_is(command.segment, partial(self._set_up, writer))
                if writer.at is not None:
                    self._writers[command.writer_id] = writer
                return reply
        segment = acts_of(command)[0][0]
        return await self._where_it_is(segment, partial(self._ask, command))

    def place_of(self, command: Command) -> str:
        """The address of the store that a command goes to, as far as is known now."""
        match command:
            case wire.ConditionalAppend():
                writer = self._writers.get(command.writer_id)
                segment = writer.setup.segment if writer is not None else ""
            case wire.GetSegmentLoads():
                return "all"
            case _:
                segment = acts_of(command)[0][0]
        return self._address if is_record(segment) or self._store.has(segment) else self._owner_of(segment)

    def close(self) -> None:
        self._peers.close()

    async def _where_it_is(self, segment: str, ask: Callable[[str | None], Awaitable[Command]]) -> Command:
        """What `ask` returns for the place of the segment: an address, or None for the store in this process. If it is
        said there that the segment is elsewhere, and the map says something new, that is tried next."""
        tried: list[str | None] = []
        while len(tried) < _TRIES:
            owner: str | None = None
            if not self._store.has(segment):
                owner = self._owner_of(segment)
                if is_record(segment) or owner in ("", self._address):
                    break
            if tried and tried[-1] == owner:
                break
            tried.append(owner)
            reply = await ask(owner)
            if not isinstance(reply, wire.WrongHost):
                return reply
        raise NotOwnerError(segment, self._owner_of(segment))

    async def _ask(self, command: Command, address: str | None) -> Command:
        if address is None:
            return await self._store.exchange(command)
        return await self._peers.at(address).ask(command)

    async def _loads(self, command: wire.GetSegmentLoads) -> Command:
        """Those of all stores or, if one of them can't say, none: a segment without load counts as idle."""
        others = sorted(set(self._stores()) - {self._address})
        asked = (self._ask(command, address) for address in (None, *others))
        replies = await asyncio.gather(*asked, return_exceptions=True)
        pages: list[wire.SegmentLoads] = []
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            if not isinstance(reply, wire.SegmentLoads):
                return reply
            pages.append(reply)
        return joined(command, pages)

    async def _set_up(self, writer: _Writer, address: str | None) -> Command:
        if address is None:
            at: SegmentStore | SegmentStoreConnection = self._store
            reply = await self._store.exchange(writer.setup)
        else:
            peer = self._peers.at(address)
            at = connection = await peer.connection()
            reply = await peer.ask(writer.setup, connection)
        writer.at = at if isinstance(reply, wire.AppendSetup) else None
        return reply

    async def _append(self, command: wire.ConditionalAppend) -> Command:
        writer = self._writers.get(command.writer_id)
        if writer is None:
            raise ProtocolError("an append without SetupAppend")
        return await self._where_it_is(writer.setup.segment, partial(self._append_at, writer, command))

    async def _append_at(self, writer: _Writer, command: wire.ConditionalAppend, address: str | None) -> Command:
        peer = None if address is None else self._peers.at(address)
        if writer.at is not (self._store if peer is None else await peer.connection()):
            reply = await self._set_up(writer, address)
            if not isinstance(reply, wire.AppendSetup):
                return replace(reply, request_id=command.request_id)
            if command.event_number <= reply.last_event_number:
                return wire.InvalidEventNumber(command.writer_id, command.request_id, "", command.event_number)
        if peer is None:
            reply = await self._store.exchange(command)
        else:
            assert isinstance(writer.at, SegmentStoreConnection)
            reply = await peer.ask(command, writer.at)
        if isinstance(reply, wire.WrongHost):
            writer.at = None
        return reply


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
    """The connection to one other store. If that can't be reached, or says nothing for some seconds, commands fail with
    UnavailableError, and the next one tries to connect again."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self._endpoint, self._tls = endpoint_of(address), tls
        self._opening: asyncio.Task[SegmentStoreConnection] | None = None
        self._places = asyncio.Semaphore(PEER_COMMANDS_AT_ONCE)
        self._under_way = 0

    @property
    def is_idle(self) -> bool:
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
        if self._is_closed:
            raise ClosedError("this server is being stopped")
        peer = self._peers.get(address)
        if peer is None:
            for old in [old for old, one in self._peers.items() if one.is_idle]:  # servers that left don't add up
                del self._peers[old]
            peer = self._peers[address] = Peer(address, self._tls)
        return peer

    def close(self) -> None:
        self._is_closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


def _is_usable(task: asyncio.Task[SegmentStoreConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open


def _seen(task: asyncio.Task[SegmentStoreConnection]) -> None:
    if not task.cancelled():
        task.exception()  # who waited has it; nobody may be waiting any more


def joined(command: wire.GetSegmentLoads, replies: Sequence[wire.SegmentLoads]) -> wire.SegmentLoads:
    """One page of the pages of several stores, each in order of names. It ends where the first of them ends that isn't
    its store's last one: what comes after that isn't known of all. A segment that moved from one to the other meanwhile
    is in it once."""
    pages = [(unpacked_loads(reply.loads), reply.is_last) for reply in replies]
    ends = [page[-1].segment for page, is_last in pages if page and not is_last]
    found: dict[str, SegmentLoad] = {}
    for page, _ in pages:
        for load in page:
            if not ends or load.segment <= min(ends):
                found.setdefault(load.segment, load)
    loads = sorted(found.values(), key=attrgetter("segment"))
    is_last = not ends and len(loads) <= LOAD_PAGE_SEGMENTS
    return wire.SegmentLoads(command.request_id, command.segment, packed_loads(loads[:LOAD_PAGE_SEGMENTS]), is_last)
