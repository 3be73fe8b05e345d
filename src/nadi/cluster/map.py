"""The addresses of containers and of the controller, as far as this server knows. All records of the controller are in
container 0, so the server that has it can run the controller without a network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from nadi.cluster.membership import Membership
from nadi.cluster.membership_view import Member, Peer
from nadi.cluster.proxy.active import Addresses
from nadi.engines.engine import Registry
from nadi.errors import StoreError, UnavailableError
from nadi.limits import CLUSTER_CALL_S, CLUSTER_RECORDS_AT_ONCE
from nadi.runtime import Runtime
from nadi.segmentstore.hosted import CONTROLLER_CONTAINER, container_of
from nadi.segmentstore.tier2.records import FOLDER, NONE, ContainerRecord, Records, Stored, answer_within
from nadi.throttled_log import Complaints

T = TypeVar("T")
log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """A record, and when its version was seen first, by this server's monotonic clock."""

    stored: Stored
    since: float


class RecordWatch:
    """What the records of all containers last said. A change is noticed with the next `look`, or soon where a
    container is announced to change hands."""

    def __init__(self, registry: Registry, records: Records, count: int, runtime: Runtime) -> None:
        self.seen: dict[int, Seen] = {}
        self._registry, self._records, self._count, self._runtime = registry, records, count, runtime
        self._complaints = Complaints(log, "the record of %s is damaged, and nobody can claim it until it is restored")

    async def look(self) -> None:
        """Read what has changed; raise UnavailableError if the store can't answer."""
        async with answer_within(CLUSTER_CALL_S):
            listed = await self._registry.list(FOLDER)
        now = self._runtime.monotonic()
        versions: dict[int, str | None] = dict.fromkeys(range(self._count))
        for name, found in listed.items():
            if (number := _number_of(name)) is not None and number in versions:
                versions[number] = found

        async def look_at(number: int) -> None:
            with self._complaints.about(f"container {number}", StoreError):  # the others are none the worse for it
                await self.look_at(number)

        changed = []
        for number, version in versions.items():
            if (seen := self.seen.get(number)) is None and version is None:
                self.seen[number] = Seen(NONE, now)
            elif seen is None or seen.stored.version != version:
                changed.append(number)
        await of_each(look_at, changed, CLUSTER_RECORDS_AT_ONCE)

    async def look_at(self, number: int) -> Stored:
        """Read one record; raises as `look`."""
        stored = await self._records.read(number)
        self.note(number, stored)
        return stored

    def note(self, number: int, stored: Stored) -> None:
        """Take in what a record was found to say; an older one than is known is left."""
        known = self.seen.get(number)
        if known is None or (
            stored.version != known.stored.version and stored.record.epoch >= known.stored.record.epoch
        ):
            self.seen[number] = Seen(stored, self._runtime.monotonic())

    def record(self, number: int) -> ContainerRecord:
        """The last one known."""
        seen = self.seen.get(number)
        return seen.stored.record if seen is not None else ContainerRecord()

    def owner(self, number: int) -> str:
        """The id of the server that has the container, as far as is known; "" if nobody has it."""
        record = self.record(number)
        return "" if record.released else record.owner


async def of_each(work: Callable[[int], Awaitable[T]], numbers: Iterable[int], at_once: int) -> list[T]:
    """What `work` returns for each, so many at a time."""
    permits = asyncio.Semaphore(at_once)

    async def one(number: int) -> T:
        async with permits:
            return await work(number)

    return await asyncio.gather(*map(one, numbers))


def _number_of(name: str) -> int | None:
    number = name.removeprefix(FOLDER)
    return int(number) if number.isdecimal() else None


class Map:
    """count: of containers. membership: of this server, set once it joins; until then nobody is known."""

    def __init__(self, watch: RecordWatch, count: int) -> None:
        self.membership: Membership | None = None
        self._watch, self._count = watch, count

    def store_of(self, number: int) -> str:
        """The address of the store that has a container, "host:port"; "" if it isn't known."""
        owner = self._alive(self._watch.owner(number))
        return owner.store if owner is not None else ""

    def store_of_segment(self, segment: str) -> str:
        return self.store_of(container_of(segment, self._count))

    def find(self, segment: str) -> tuple[str, int] | None:
        """For clients; None while it is between two servers. UnavailableError if what is known may be old."""
        if self.membership is None or not self.membership.lease_is_valid():
            raise UnavailableError("this server can't reach the cluster's store: try again, or ask another server")
        address = self.store_of_segment(segment)
        return _endpoint(address) if address else None

    def endpoint_of(self, segment: str) -> tuple[str, int]:
        """For clients; UnavailableError if it isn't known, or if what is known may be old."""
        found = self.find(segment)
        if found is None:
            number = container_of(segment, self._count)
            raise UnavailableError(f"container {number} is between two servers: try again")
        return found

    def lives_since(self, store: tuple[str, int], since: float) -> bool:
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

    def controllers(self) -> list[tuple[str, int]]:
        members = self.membership.members if self.membership is not None else {}
        return [_endpoint(peer.member.controller) for peer in members.values() if peer.is_alive and peer.member]

    def controller(self, me: str) -> Addresses | None:
        """The server with the active controller; None if it isn't known, or it is this one."""
        owner = self._watch.owner(CONTROLLER_CONTAINER)
        member = self._alive(owner)
        return None if owner == me or member is None else Addresses(member.controller, member.rest)

    def _alive(self, server: str) -> Member | None:
        members = self.membership.members if self.membership is not None else {}
        peer = members.get(server)
        if peer is None or not peer.is_alive or peer.member is None:
            return None
        return None if any(_succeeds(one, peer) for one in members.values()) else peer.member


def _succeeds(one: Peer, other: Peer) -> bool:
    """Whether it was started where the other was, which is dead then, though others haven't noticed yet."""
    if one.member is None or other.member is None or one.id == other.id or one.since <= other.since:
        return False
    return one.is_alive and one.member.store == other.member.store


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
