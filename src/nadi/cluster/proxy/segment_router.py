"""Routes the controller's commands to segments: an `Exchange` over all stores.

Segments in the store of this process are accessed directly, all others over the wire. The controller's own records are
accessed only directly: if their container has left this server, this controller isn't the active one any more.

A conditional append carries only its writer's id; the segment was named when the writer was set up. So the router
remembers each writer's segment and connection; if the segment has moved or the connection was lost, it sets up the
writer again first.
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
from nadi.limits import APPEND_SESSIONS_MAX, LOAD_PAGE_SEGMENTS, PEER_ANSWER_S, PEER_CONNECT_S, PEER_SILENCE_S
from nadi.model.load import SegmentLoad
from nadi.segmentstore.container_registry import is_record
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.load_reports import packed_loads, unpacked_loads

_TRIES = 3  # for one command, each on another store


@dataclass(slots=True, eq=False)
class _RoutedWriter:
    """Writer, and where it was last set up: the local store, or a connection to another one; None: set it up again."""

    setup: wire.SetupAppend
    at: SegmentStore | SegmentStoreConnection | None


class SegmentRouter:
    """Callable that routes a command. ClosedError: the router is closed.

    store: of this process. address: its "host:port", as returned by `owner_of` and `stores`. owner_of: returns the
    address of the store that has a segment's container; "" if unknown. stores: returns the addresses of all stores that
    have containers. tls: returns the context of the next connection to another store.
    """

    def __init__(
        self,
        store: SegmentStore,
        address: str,
        owner_of: Callable[[str], str],
        stores: Callable[[], Collection[str]],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._store, self._address = store, address
        self._owner_of, self._stores = owner_of, stores
        self._connections = Connections(PEER_CONNECT_S, tls, "this server is stopping")
        self._writers: LRUCache[bytes, _RoutedWriter] = LRUCache(APPEND_SESSIONS_MAX)

    async def __call__(self, command: Command) -> Command:
        """Return the reply, which may be an error. NotOwnerError: no store is known to have the segment; nothing was
        done. UnavailableError: the store can't be reached or didn't answer; the command may have been carried out."""
        match command:
            case wire.ConditionalAppend():
                if (known := self._writers.get(command.writer_id)) is None:
                    raise ProtocolError("ConditionalAppend without SetupAppend")
                return await self._route(known.setup.segment, partial(self._append_at, known, command))
            case wire.GetSegmentLoads():
                return await self._loads(command)
            case wire.SetupAppend():
                writer = _RoutedWriter(command, None)
                reply = await self._route(command.segment, partial(self._set_up, writer))
                if writer.at is not None:
                    self._writers[command.writer_id] = writer
                return reply
        segment = acts_of(command)[0][0]
        return await self._route(segment, partial(self._query, command))

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

    async def _route(self, segment: str, ask: Callable[[str | None], Awaitable[Command]]) -> Command:
        """Return the result of `ask` for the segment's store: an address, or None for the local store. If that store
        answers that the segment has moved, and the map knows a new address, try there next."""
        attempts: list[str | None] = []
        while len(attempts) < _TRIES:
            owner: str | None = None
            if not self._store.has(segment):
                owner = self._owner_of(segment)
                if is_record(segment) or owner in ("", self._address):
                    break
            if attempts and attempts[-1] == owner:
                break
            attempts.append(owner)
            reply = await ask(owner)
            if not isinstance(reply, wire.WrongHost):
                return reply
        raise NotOwnerError(segment, self._owner_of(segment))

    async def _query(self, command: Command, address: str | None) -> Command:
        return await self._ask_over(await self._at(address), command)

    async def _at(self, address: str | None) -> SegmentStore | SegmentStoreConnection:
        return self._store if address is None else await self._connections.at(endpoint_of(address), PEER_SILENCE_S)

    async def _ask_over(self, at: SegmentStore | SegmentStoreConnection, command: Command) -> Command:
        if not isinstance(at, SegmentStoreConnection):
            return await at.exchange(command)
        reply = await at.ask(command, wire.Command, timeout_s=PEER_ANSWER_S)
        return replace(reply, request_id=command.request_id)  # type: ignore[attr-defined]

    async def _loads(self, command: wire.GetSegmentLoads) -> Command:
        """Return the loads of all stores, or the first error: a segment without a load would count as idle."""
        others = sorted(set(self._stores()) - {self._address})
        queries = (self._query(command, address) for address in (None, *others))
        replies = await asyncio.gather(*queries, return_exceptions=True)
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
    """Parse "host:port". InvalidArgumentError: it isn't one.

    >>> endpoint_of("[::1]:12345")
    Endpoint(host='::1', port=12345)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgumentError(f"{address!r} is not a server address: use host:port")
    return Endpoint(host.strip("[]"), int(port))


def joined(command: wire.GetSegmentLoads, replies: Sequence[wire.SegmentLoads]) -> wire.SegmentLoads:
    """Merge the pages of several stores, each in order of names, into one.

    It ends at the earliest end of a page that isn't its store's last: beyond that, loads aren't known for all stores. A
    segment that moved between stores meanwhile appears once.
    """
    pages = [(unpacked_loads(reply.loads), reply.is_last) for reply in replies]
    ends = [page[-1].segment for page, is_last in pages if page and not is_last]
    by_segment: dict[str, SegmentLoad] = {}
    for page, _ in pages:
        for load in page:
            if not ends or load.segment <= min(ends):
                by_segment.setdefault(load.segment, load)
    loads = sorted(by_segment.values(), key=attrgetter("segment"))
    is_last = not ends and len(loads) <= LOAD_PAGE_SEGMENTS
    is_complete, first = all(reply.is_complete for reply in replies), packed_loads(loads[:LOAD_PAGE_SEGMENTS])
    return wire.SegmentLoads(command.request_id, command.segment, first, is_last, is_complete)
