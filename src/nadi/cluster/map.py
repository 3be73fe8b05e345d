"""The addresses of containers and of the controller, as far as this server knows. All records of the controller are in
container 0, so the server that has it can run the controller without a network.
"""

from __future__ import annotations

from nadi.cluster.membership import Membership
from nadi.cluster.membership_view import Member, Peer
from nadi.cluster.proxy.active import Addresses
from nadi.cluster.records import RecordWatch
from nadi.errors import UnavailableError
from nadi.naming import INTERNAL_SCOPE
from nadi.segmentstore.datafolder import container_number


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


CONTROLLER_CONTAINER = 0
_RECORDS = f"{INTERNAL_SCOPE}/_tables/"


def is_record(segment: str) -> bool:
    """Whether it is one of the tables that the controller keeps its records in.

    >>> is_record("_system/_tables/scopes"), is_record("home/meters/0.#epoch.0")
    (True, False)
    """
    return segment.startswith(_RECORDS)


def container_of(segment: str, count: int) -> int:
    """Return the number of the container, of `count`, that has the segment of that name.

    >>> container_of("_system/_tables/scopes", 8), container_of("home/meters/0.#epoch.0", 8)
    (0, 7)
    """
    return CONTROLLER_CONTAINER if is_record(segment) else container_number(segment, count)
