"""The addresses of containers and of the controller, as far as this server knows. All records of the controller are in
container 0, so the server that has it can run the controller without a network.

Clients ask at the very moment at which a server dies, and some keep the answer: Pravega's Java client for 20 seconds.
Other servers notice a death three seconds later. So the store that has a segment is rung first, and named once it takes
a connection, or goes on to beat: a client may reach what can't be reached from here. Otherwise the answer waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from nadi import limits
from nadi.cluster.membership import Membership
from nadi.cluster.membership_view import ServerMember
from nadi.cluster.proxy.active import ActiveAddresses
from nadi.controller.engine.workflows import Shared
from nadi.errors import StoreError, UnavailableError
from nadi.naming import segment_name
from nadi.object_log.engine import Registry
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER, container_of
from nadi.segmentstore.tier2.records import (
    FOLDER,
    NONE,
    ContainerRecord,
    ContainerRecords,
    VersionedRecord,
    answer_within,
)
from nadi.throttled_log import Complaints
from nadi.wire.rpc import controller_pb2 as pb

T = TypeVar("T")
Address = tuple[str, int]
log = logging.getLogger(__name__)


class SeenRecord(NamedTuple):
    """A record, and when its version was seen first, by this server's monotonic clock."""

    stored: VersionedRecord
    since: float


class RecordWatch:
    """What the records of all containers last said. A change is noticed with the next `look`, or soon where a
    container is announced to change hands."""

    def __init__(self, registry: Registry, records: ContainerRecords, count: int, runtime: Runtime) -> None:
        self.seen: dict[int, SeenRecord] = {}
        self._registry, self._records, self._count, self._runtime = registry, records, count, runtime
        self._complaints = Complaints(log, "the record of %s is damaged, and nobody can claim it until it is restored")

    async def look(self) -> None:
        """Read what has changed; raise UnavailableError if the store can't answer."""
        async with answer_within(limits.CLUSTER_CALL_S):
            listed = await self._registry.list(FOLDER)
        now = self._runtime.monotonic()
        versions: dict[int, str | None] = dict.fromkeys(range(self._count))
        for name, found in listed.items():
            which = name.removeprefix(FOLDER)
            if which.isdecimal() and int(which) in versions:
                versions[int(which)] = found

        async def look_at(number: int) -> None:
            with self._complaints.about(f"container {number}", StoreError):  # the others are none the worse for it
                await self.look_at(number)

        changed = []
        for number, version in versions.items():
            if (seen := self.seen.get(number)) is None and version is None:
                self.seen[number] = SeenRecord(NONE, now)
            elif seen is None or seen.stored.version != version:
                changed.append(number)
        await of_each(look_at, changed, limits.CLUSTER_RECORDS_AT_ONCE)

    async def look_at(self, number: int) -> VersionedRecord:
        """Read one record; raises as `look`."""
        stored = await self._records.read(number)
        self.note(number, stored)
        return stored

    def note(self, number: int, stored: VersionedRecord) -> None:
        """Take in what a record was found to say; an older one than is known is left."""
        known = self.seen.get(number)
        if known is None or (
            stored.version != known.stored.version and stored.record.epoch >= known.stored.record.epoch
        ):
            self.seen[number] = SeenRecord(stored, self._runtime.monotonic())

    def record(self, number: int) -> ContainerRecord:
        seen = self.seen.get(number)
        return seen.stored.record if seen is not None else ContainerRecord()

    def owner(self, number: int) -> str:
        """The id of the server that has the container, as far as is known; "" if nobody has it."""
        record = self.record(number)
        return "" if record.released else record.owner


async def of_each(work: Callable[[int], Awaitable[T]], numbers: Iterable[int], at_once: int) -> list[T]:
    permits = asyncio.Semaphore(at_once)

    async def one(number: int) -> T:
        async with permits:
            return await work(number)

    return await asyncio.gather(*map(one, numbers))


_RESET = struct.pack("ii", 1, 0)  # on, 0 s


async def takes_connections(address: Address) -> bool:
    """Whether a server listens there; one that stands still does, too. The connection is reset: one that is closed in
    order keeps its port for a minute, and a few hundred each second would leave none. Then nobody could be reached any
    more."""
    try:
        async with asyncio.timeout(limits.CLUSTER_RING_S):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError, ValueError):  # the last: it can't be an address
        return False
    if (connection := writer.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


class Map:
    """count: of containers. membership, own: of this server, and the address of its store, set once it joins; until
    then nobody is known. Of the controller's calls it answers those that each server answers by itself."""

    def __init__(
        self,
        watch: RecordWatch,
        count: int,
        runtime: Runtime = REAL,
        ring: Callable[[Address], Awaitable[bool]] = takes_connections,
    ) -> None:
        self.membership: Membership | None = None
        self.own: Address = ("", 0)
        self._watch, self._count, self._runtime = watch, count, runtime
        self._rings = Shared(runtime, ring, age_s=0.0, most=limits.CLUSTER_DEAD_KEPT)
        self._waiting = 0

    async def get_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        stream = request.streamInfo
        segment = segment_name(stream.scope, stream.stream, request.segmentId)
        began, is_waiting = self._runtime.monotonic(), False
        try:
            while True:
                address = self.find(segment)
                if address is not None:
                    is_there = address == self.own or await self._rings.get(address)
                    is_there = is_there or self.lives_since(address, began)  # and can't be reached from here
                    if is_there and self.find(segment) == address:
                        return pb.NodeUri(endpoint=address[0], port=address[1])
                is_late = self._runtime.monotonic() >= began + limits.CLUSTER_WHERE_S
                if is_late or not (is_waiting or self._waiting < limits.CLUSTER_WHERE_AT_ONCE):
                    said = "takes no connections" if address is not None else "is between two servers"
                    raise UnavailableError(f"the store that has {segment} {said}: try again")
                self._waiting += not is_waiting
                is_waiting = True
                await self._runtime.sleep(limits.CLUSTER_WHERE_LOOK_S)
        finally:
            self._waiting -= is_waiting

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        members = self.membership.members if self.membership is not None else {}
        doors = [_endpoint(peer.member.controller) for peer in members.values() if peer.is_alive and peer.member]
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in doors])

    def store_of(self, number: int) -> str:
        """The address of the store that has a container, "host:port"; "" if it isn't known."""
        owner = self._alive(self._watch.owner(number))
        return owner.store if owner is not None else ""

    def store_of_segment(self, segment: str) -> str:
        return self.store_of(container_of(segment, self._count))

    def find(self, segment: str) -> Address | None:
        """For clients; None while it is between two servers. UnavailableError if what is known may be old."""
        if self.membership is None or not self.membership.lease_is_valid():
            raise UnavailableError("this server can't reach the cluster's store: try again, or ask another server")
        address = self.store_of_segment(segment)
        return _endpoint(address) if address else None

    def endpoint_of(self, segment: str) -> Address:
        """For clients; UnavailableError if it isn't known, or if what is known may be old."""
        found = self.find(segment)
        if found is None:
            number = container_of(segment, self._count)
            raise UnavailableError(f"container {number} is between two servers: try again")
        return found

    def lives_since(self, store: Address, since: float) -> bool:
        """Whether the server that had that store at that time of the monotonic clock was surely alive after it: it was
        seen to beat once more than by a look that came late."""
        if self.membership is None:
            return False
        here = (one for one in self.membership.members.values() if one.member and _endpoint(one.member.store) == store)
        return any(
            one.is_alive and one.since <= since and one.heard > since + 2 * self.membership.beat_s for one in here
        )

    def stores(self) -> set[str]:
        return {self.store_of(number) for number in range(self._count)} - {""}

    def controller(self, me: str) -> ActiveAddresses | None:
        """The server with the active controller; None if it isn't known, or it is this one."""
        owner = self._watch.owner(CONTROLLER_CONTAINER)
        member = self._alive(owner)
        return None if owner == me or member is None else ActiveAddresses(member.controller, member.rest)

    def _alive(self, server: str) -> ServerMember | None:
        members = self.membership.members if self.membership is not None else {}
        peer = members.get(server)
        if peer is None or not peer.is_alive or peer.member is None:
            return None
        store = peer.member.store
        for one in members.values():  # one that was started later in its place: it is dead, and nobody has noticed yet
            if one.is_alive and one.since > peer.since and one.member is not None and one.member.store == store:
                return None
        return peer.member


def _endpoint(address: str) -> Address:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
