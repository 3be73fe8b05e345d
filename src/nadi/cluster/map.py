"""Where everything is, as far as this server knows: which address to ask for a container, or for the controller."""

from __future__ import annotations

from nadi.cluster.doors.active import Addresses
from nadi.cluster.mapping import CONTROLLER_CONTAINER, container_of
from nadi.cluster.records import RecordWatch
from nadi.cluster.servers.members import Member
from nadi.cluster.servers.membership import Membership
from nadi.errors import UnavailableError


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

    def endpoint_of(self, segment: str) -> tuple[str, int]:
        """For clients; UnavailableError if it isn't known, or if what is known may be old."""
        if self.membership is None or not self.membership.lease_is_valid():
            raise UnavailableError("this server can't reach the cluster's store: try again, or ask another server")
        address = self.store_of_segment(segment)
        if not address:
            number = container_of(segment, self._count)
            raise UnavailableError(f"container {number} is between two servers: try again")
        return _endpoint(address)

    def stores(self) -> set[str]:
        """The addresses of all stores that have containers."""
        return {self.store_of(number) for number in range(self._count)} - {""}

    def controllers(self) -> list[tuple[str, int]]:
        """Where clients may ask: the gRPC doors of all servers."""
        members = self.membership.members if self.membership is not None else {}
        return [_endpoint(peer.member.controller) for peer in members.values() if peer.is_alive and peer.member]

    def controller(self, me: str) -> Addresses | None:
        """The server with the active controller; None if it isn't known, or it is this one."""
        owner = self._watch.owner(CONTROLLER_CONTAINER)
        member = self._alive(owner)
        return None if owner == me or member is None else Addresses(member.controller, member.rest)

    def _alive(self, server: str) -> Member | None:
        peer = self.membership.members.get(server) if self.membership is not None else None
        return peer.member if peer is not None and peer.is_alive else None


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
