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
from nadi.client.segments.connection import Connections, Endpoint, SegmentStoreConnection
from nadi.errors import InvalidArgumentError, NotOwnerError, ProtocolError
from nadi.limits import APPEND_SESSIONS_KEPT, LOAD_PAGE_SEGMENTS, PEER_ANSWER_S, PEER_CONNECT_S, PEER_SILENCE_S
from nadi.model.load import SegmentLoad
from nadi.segmentstore.container_registry import is_record
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.load_reports import packed_loads, unpacked_loads

_TRIES = 3  # for one command, each at another place


@dataclass(slots=True, eq=False)
class _RoutedWriter:
    """A writer, and where it was set up last: at the store in this process or over a connection to another; None:
    it has to be set up again."""

    setup: wire.SetupAppend
    at: SegmentStore | SegmentStoreConnection | None


class SegmentRouter:
    """Call it with a command. ClosedError once it is closed. store: the one in this process. address: its own,
    "host:port", as `owner_of` and `stores` tell it. owner_of: returns the address of the store that has a segment's
    container now; "" if that isn't known. stores: returns the addresses of all stores that have containers. tls: for
    connections to the others."""

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
        self._connections = Connections(PEER_CONNECT_S, tls, "this server is being stopped")
        self._writers: LRUCache[bytes, _RoutedWriter] = LRUCache(APPEND_SESSIONS_KEPT)

    async def __call__(self, command: Command) -> Command:
        """Return the reply, which may be an error. NotOwnerError: nobody is known to have the segment; nothing was
        done. UnavailableError: its store can't be reached or didn't answer; the command may have been carried out."""
        match command:
            case wire.ConditionalAppend():
                if (known := self._writers.get(command.writer_id)) is None:
                    raise ProtocolError("an append without SetupAppend")
                return await self._where_it_is(known.setup.segment, partial(self._append_at, known, command))
            case wire.GetSegmentLoads():
                return await self._loads(command)
            case wire.SetupAppend():
                writer = _RoutedWriter(command, None)
                reply = await self._where_it_is(command.segment, partial(self._set_up, writer))
                if writer.at is not None:
                    self._writers[command.writer_id] = writer
                return reply
        segment = acts_of(command)[0][0]
        return await self._where_it_is(segment, partial(self._ask, command))

    def place_of(self, command: Command) -> str:
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
        self._connections.close()

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
        return await self._ask_over(await self._at(address), command)

    async def _at(self, address: str | None) -> SegmentStore | SegmentStoreConnection:
        return self._store if address is None else await self._connections.at(endpoint_of(address), PEER_SILENCE_S)

    async def _ask_over(self, at: SegmentStore | SegmentStoreConnection, command: Command) -> Command:
        if not isinstance(at, SegmentStoreConnection):
            return await at.exchange(command)
        reply = await at.ask(command, wire.Command, timeout_s=PEER_ANSWER_S)
        return replace(reply, request_id=command.request_id)  # type: ignore[attr-defined]

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

    async def _set_up(self, writer: _RoutedWriter, address: str | None) -> Command:
        at = await self._at(address)
        reply = await self._ask_over(at, writer.setup)
        writer.at = at if isinstance(reply, wire.AppendSetup) else None
        return reply

    async def _append_at(self, writer: _RoutedWriter, command: wire.ConditionalAppend, address: str | None) -> Command:
        if writer.at is not await self._at(address):
            reply = await self._set_up(writer, address)
            if not isinstance(reply, wire.AppendSetup):
                return replace(reply, request_id=command.request_id)
            if command.event_number <= reply.last_event_number:
                return wire.InvalidEventNumber(command.writer_id, command.request_id, "", command.event_number)
        assert writer.at is not None, "it is set up"
        reply = await self._ask_over(writer.at, command)
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
