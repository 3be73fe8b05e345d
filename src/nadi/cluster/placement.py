"""Which server is to have which container, and what a server does to get there. All of it is pure.

There is no leader: every server computes the same `placement` from the servers it sees, and takes its own `decisions`.
Two servers that see different things may both decide to claim a container; compare-and-set of its record settles it.

A container is free if it never had an owner, if its owner is dead, or if it was released to a server that doesn't take
it. The first in its order of servers may claim it at once, the next one a second later, and so on, so that usually
nobody loses a race, and one that can't claim holds nobody up for long.

A claim replaces the very version of the record that was seen before the servers were looked at last. If the owner that
seemed dead has renewed the record since (`lease.py` says when it must), the claim fails.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import mmh3

from nadi.limits import CLUSTER_ARRIVAL_S, CLUSTER_SETTLE_S, CLUSTER_STABLE_S, CLUSTER_TURN_S

CROWDED_TIMES = 1.25  # an equal share of containers times this is the most that a server gets, as all must agree

Placement = tuple[tuple[str, ...], ...]


def placement(servers: Collection[str], containers: int) -> Placement:
    """For each container its order of servers: the first is to have it, the next stand in for it.

    servers: the ids of those that live and aren't draining. The same ids give the same orders everywhere.

    Rendezvous hashing: each server has a hash for each container, and the highest is first, unless the server has its
    share already: at most ceil(1.25 * containers / servers), counted in order of containers. While nobody reaches that,
    a server that joins or leaves moves only the containers that it gets or had.

    >>> placement(["a", "b"], 4)
    (('b', 'a'), ('b', 'a'), ('b', 'a'), ('a', 'b'))
    """
    if not servers:
        return ((),) * containers
    share = math.ceil(CROWDED_TIMES * containers / len(servers))
    taken: Counter[str] = Counter()
    orders = []
    for container in range(containers):
        order = sorted(servers, key=lambda server: (_weight(server, container), server), reverse=True)
        first = next(server for server in order if taken[server] < share)
        taken[first] += 1
        order.remove(first)
        orders.append((first, *order))
    return tuple(orders)


def _weight(server: str, container: int) -> int:
    weight: int = mmh3.hash64(f"{container}/{server}".encode(), signed=False)[0]
    return weight


@dataclass(frozen=True, slots=True)
class ServerView:
    """What is seen of a server. since: when that was seen first, by the observer's monotonic clock, in seconds."""

    since: float
    is_alive: bool = True
    is_draining: bool = False  # it gives all its containers away and gets none

    @property
    def takes_containers(self) -> bool:
        return self.is_alive and not self.is_draining


@dataclass(frozen=True, slots=True)
class Holding:
    """What a container's record says. owner: the server that claimed it last, "" if none did. released_to: for whom the
    owner has let go of it, "" if it hasn't. since: when the answer came that first showed this version of the record,
    as in `ServerView`."""

    version: str | None
    epoch: int
    since: float
    owner: str = ""
    released_to: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that a server decides by. Times are of its monotonic clock, in seconds; `at` is the present. servers: by id,
    this one included once it has joined. An owner that isn't among them hasn't been looked up yet, and counts neither
    as alive nor as dead. looked_at: when the last look at the servers that succeeded was begun. is_current: it wasn't
    too long ago. stable_since: when the last server came, went or began to drain. is_hasty: an operator wants no wait
    for that."""

    me: str
    at: float
    servers: Mapping[str, ServerView]
    holdings: Mapping[int, Holding]
    containers: int
    looked_at: float
    is_current: bool
    stable_since: float
    is_hasty: bool = False

    def order(self) -> Placement:
        return placement([name for name, server in self.servers.items() if server.takes_containers], self.containers)


@dataclass(frozen=True, slots=True)
class ClaimContainer:
    """Become the owner, with the next epoch, if the record still has that version."""

    container: int
    epoch: int
    version: str | None


@dataclass(frozen=True, slots=True)
class ReleaseContainer:
    """Let go of a container of one's own, for `target` to claim it."""

    container: int
    target: str


def decisions(view: View) -> list[ClaimContainer | ReleaseContainer]:
    """What this server is to do now, in order of containers; the same again until the view shows that it was done."""
    order = view.order()
    claims = [
        ClaimContainer(container, holding.epoch + 1, holding.version)
        for container, holding in sorted(view.holdings.items())
        if _is_to_claim(view, holding, order[container])
    ]
    return [*claims, *_releases(view, order)]


def _is_to_claim(view: View, holding: Holding, order: tuple[str, ...]) -> bool:
    if view.me not in order:
        return False  # it hasn't joined, or is draining
    if holding.released_to == view.me:
        return True
    free_since = _free_since(view, holding)
    if free_since is None or not view.is_current or holding.since > view.looked_at:
        return False
    return view.at >= free_since + order.index(view.me) * CLUSTER_TURN_S


def _free_since(view: View, holding: Holding) -> float | None:
    """Since when anybody in line may claim it; None if it isn't free."""
    if holding.released_to:
        target = view.servers.get(holding.released_to)
        if target is None or target.takes_containers:
            return holding.since + CLUSTER_ARRIVAL_S
        return max(target.since, holding.since)
    if not holding.owner:  # a cluster begins: whoever starts first doesn't take all
        return max(view.stable_since + CLUSTER_SETTLE_S, holding.since)
    owner = view.servers.get(holding.owner)
    if owner is None or owner.is_alive:
        return None
    return max(owner.since, holding.since)


def _releases(view: View, order: Placement) -> Iterator[ReleaseContainer]:
    """A server that drains gives away whatever it has, all at once; any other what placement wants elsewhere, one at a
    time, and only while servers neither come nor go, unless it is told to."""
    me = view.servers.get(view.me)
    if me is None or not view.is_current:
        return
    under_way = {holding.released_to: holding.owner for holding in view.holdings.values() if holding.released_to}
    is_quiet = view.is_hasty or view.at >= view.stable_since + CLUSTER_STABLE_S
    if me.is_draining:
        under_way = {}
    elif view.me in under_way.values() or not is_quiet:
        return
    for container, holding in sorted(view.holdings.items()):
        target = next(iter(order[container]), view.me)
        if holding.owner == view.me and not holding.released_to and target != view.me and target not in under_way:
            yield ReleaseContainer(container, target)
            if not me.is_draining:
                return
