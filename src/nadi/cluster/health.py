"""What a server sees of its cluster, as a part of its health."""

from __future__ import annotations

from nadi.cluster.records import RecordWatch
from nadi.cluster.servers.membership import Membership
from nadi.observe.health import Component, Status, leaf


def cluster_health(membership: Membership, watch: RecordWatch, me: str) -> Component:
    """What a server sees of its cluster. It isn't up while it can't reach the store."""
    servers = {
        peer.id: {
            "alive": peer.is_alive,
            "draining": peer.member.is_draining,
            "store": peer.member.store,
            "controller": peer.member.controller,
            "version": peer.member.version,
            "containers": [number for number in watch.seen if watch.owner(number) == peer.id],
        }
        for peer in membership.members.values()
        if peer.member is not None
    }
    details = {"server": me, "term": membership.term, "servers": servers}
    if not membership.term:
        return leaf("cluster", Status.STARTING, details)
    return leaf("cluster", Status.UP if membership.lease_is_valid() else Status.DOWN, details)
