"""Addresses of containers and of the controller, as far as this server knows.

All records of the controller are in container 0, so the server that owns it can run the controller without a network.

Clients ask at the very moment a server dies, and some cache the answer: Pravega's Java client for 20 seconds. Other
servers notice a death three seconds later. So this server first probes the store that has a segment, and returns its
address once the store accepts a connection or beats again, because a client may reach a store that this server can't.
Until then the answer waits.
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
from nadi.throttled_log import ProblemLog
from nadi.wire.rpc import controller_pb2 as pb

T = TypeVar("T")
Address = tuple[str, int]
log = logging.getLogger(__name__)


class CachedRecord(NamedTuple):
    """A record, and the time this server first saw its version, by its monotonic clock."""

    stored: VersionedRecord
    since: float


class RecordWatch:
    """Last known records of all containers. Changes are noticed by the next `poll`, or sooner while a handover is
    announced."""

    def __init__(self, registry: Registry, records: ContainerRecords, count: int, runtime: Runtime) -> None:
        self.seen: dict[int, CachedRecord] = {}
        self._registry, self._records, self._count, self._runtime = registry, records, count, runtime
        self._problems = ProblemLog(log, "the record of %s is damaged: no server can claim it until it is restored")

    async def poll(self) -> None:
        """Read the records that have changed. UnavailableError: the store doesn't respond."""
        async with answer_within(limits.CLUSTER_CALL_S):
            listed = await self._registry.list(FOLDER)
        now = self._runtime.monotonic()
        versions: dict[int, str | None] = dict.fromkeys(range(self._count))
        for name, listed_version in listed.items():
            suffix = name.removeprefix(FOLDER)
            if suffix.isdecimal() and int(suffix) in versions:
                versions[int(suffix)] = listed_version

        async def read(number: int) -> None:
            with self._problems.about(f"container {number}", StoreError):  # doesn't affect other containers
                await self.read(number)

        changed = []
        for number, version in versions.items():
            if (seen := self.seen.get(number)) is None and version is None:
                self.seen[number] = CachedRecord(NONE, now)
            elif seen is None or seen.stored.version != version:
                changed.append(number)
        await of_each(read, changed, limits.CLUSTER_RECORDS_AT_ONCE)

    async def read(self, number: int) -> VersionedRecord:
        """Read one record; raises as `poll`."""
        stored = await self._records.read(number)
        self.note(number, stored)
        return stored

    def note(self, number: int, stored: VersionedRecord) -> None:
        """Store a record that was read, unless a newer one is known."""
        known = self.seen.get(number)
        if known is None or (
            stored.version != known.stored.version and stored.record.epoch >= known.stored.record.epoch
        ):
            self.seen[number] = CachedRecord(stored, self._runtime.monotonic())

    def record(self, number: int) -> ContainerRecord:
        seen = self.seen.get(number)
        return seen.stored.record if seen is not None else ContainerRecord()

    def owner(self, number: int) -> str:
        """Return the id of the server that owns the container, as far as known; "" if it has no owner."""
        record = self.record(number)
        return "" if record.released else record.owner


async def of_each(work: Callable[[int], Awaitable[T]], numbers: Iterable[int], at_once: int) -> list[T]:
    permits = asyncio.Semaphore(at_once)

    async def run(number: int) -> T:
        async with permits:
            return await work(number)

    return await asyncio.gather(*map(run, numbers))


_RESET = struct.pack("ii", 1, 0)  # on, 0 s


async def takes_connections(address: Address) -> bool:
    """Return whether a server, even a stalled one, accepts connections at the address.

    The connection is reset. Closing it in order would keep its port for a minute, and a few hundred probes per second
    would use up all ports.
    """
    try:
        async with asyncio.timeout(limits.CLUSTER_RING_S):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError, ValueError):  # ValueError: not an address
        return False
    if (connection := writer.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


class ContainerMap:
    """Answers the controller's calls that every server can answer itself.

    count: number of containers. membership, own: of this server, and its store's address, set once it joins; until then
    no address is known.
    """

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
        self._rings = Shared(runtime, ring, age_s=0.0, most=limits.CLUSTER_DEAD_RETAINED)
        self._waiting = 0

    async def get_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        stream = request.streamInfo
        segment = segment_name(stream.scope, stream.stream, request.segmentId)
        began, is_waiting = self._runtime.monotonic(), False
        try:
            while True:
                address = self.find(segment)
                if address is not None:
                    is_reachable = address == self.own or await self._rings.get(address)
                    is_reachable = is_reachable or self.lives_since(address, began)  # alive, but unreachable from here
                    if is_reachable and self.find(segment) == address:
                        return pb.NodeUri(endpoint=address[0], port=address[1])
                is_expired = self._runtime.monotonic() >= began + limits.CLUSTER_WHERE_S
                if is_expired or not (is_waiting or self._waiting < limits.CLUSTER_WHERE_AT_ONCE):
                    reason = "accepts no connections" if address is not None else "is between two servers"
                    raise UnavailableError(f"the store that has {segment} {reason}: try again later")
                self._waiting += not is_waiting
                is_waiting = True
                await self._runtime.sleep(limits.CLUSTER_ROUTE_POLL_S)
        finally:
            self._waiting -= is_waiting

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        members = self.membership.members if self.membership is not None else {}
        endpoints = [_endpoint(peer.member.controller) for peer in members.values() if peer.is_alive and peer.member]
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in endpoints])

    def store_of(self, number: int) -> str:
        """Return the address of the store that has a container, "host:port"; "" if unknown."""
        owner = self._alive(self._watch.owner(number))
        return owner.store if owner is not None else ""

    def store_of_segment(self, segment: str) -> str:
        return self.store_of(container_of(segment, self._count))

    def find(self, segment: str) -> Address | None:
        """Return the store's address for clients; None while the segment is between two servers. UnavailableError: this
        server's knowledge may be stale."""
        if self.membership is None or not self.membership.lease_is_valid():
            raise UnavailableError("this server can't reach the cluster's store: retry, or ask another server")
        address = self.store_of_segment(segment)
        return _endpoint(address) if address else None

    def endpoint_of(self, segment: str) -> Address:
        """Return the store's address for clients. UnavailableError: it is unknown, or this server's knowledge may be
        stale."""
        address = self.find(segment)
        if address is None:
            number = container_of(segment, self._count)
            raise UnavailableError(f"container {number} is between two servers: try again later")
        return address

    def lives_since(self, store: Address, since: float) -> bool:
        """Return whether the server that had that store at `since` (monotonic clock) was certainly alive later: a later
        poll saw it beat once more."""
        if self.membership is None:
            return False
        peers = (
            peer for peer in self.membership.members.values() if peer.member and _endpoint(peer.member.store) == store
        )
        return any(
            peer.is_alive and peer.since <= since and peer.changed_at > since + 2 * self.membership.beat_s
            for peer in peers
        )

    def stores(self) -> set[str]:
        return {self.store_of(number) for number in range(self._count)} - {""}

    def controller(self, me: str) -> ActiveAddresses | None:
        """Return the server with the active controller; None if it is unknown, or this server."""
        owner = self._watch.owner(CONTROLLER_CONTAINER)
        member = self._alive(owner)
        return None if owner == me or member is None else ActiveAddresses(member.controller, member.rest)

    def _alive(self, server: str) -> ServerMember | None:
        members = self.membership.members if self.membership is not None else {}
        peer = members.get(server)
        if peer is None or not peer.is_alive or peer.member is None:
            return None
        store = peer.member.store
        for other in members.values():  # a newer server at the same address: this one has died unnoticed
            if other.is_alive and other.since > peer.since and other.member is not None and other.member.store == store:
                return None
        return peer.member


def _endpoint(address: str) -> Address:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
