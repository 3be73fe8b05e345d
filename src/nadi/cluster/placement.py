"""Assigns containers to servers, and decides what one server does to get there. All functions are pure.

No server leads: each one computes the same `placement` from the servers it sees, and makes its own `decisions`.
Two servers with different views may both decide to claim a container; compare-and-set of its record settles it.

A container is free if it never had an owner, if its owner is dead, or if it was released to a server that doesn't claim
it. The first server in the container's order may claim it at once, the next a second later, and so on: usually there is
no race, and a server that can't claim delays the container only briefly.

A claim replaces the version of the record that was read before the last poll of the servers. If the owner that seemed
dead has renewed the record since (`membership.py` says when it must), the claim fails.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import mmh3

from nadi.limits import CLUSTER_ARRIVAL_S, CLUSTER_CLAIM_DELAY_S, CLUSTER_SETTLE_S, CLUSTER_STABLE_S

CROWDED_TIMES = 1.25  # a server gets at most an equal share times this; must be the same on all servers

Placement = tuple[tuple[str, ...], ...]


def placement(servers: Collection[str], containers: int) -> Placement:
    """Return each container's order of servers: the first owns it, the next ones stand in.

    servers: the ids of live servers that aren't draining. The same ids give the same orders on every server.

    Rendezvous hashing: each server has a hash for each container, and the highest comes first, unless that server
    already has its share: at most ceil(1.25 * containers / servers), counted in order of containers. While no server
    reaches its share, a server that joins or leaves moves only the containers that it gets or had.

    >>> placement(["a", "b"], 4)
    (('b', 'a'), ('b', 'a'), ('b', 'a'), ('a', 'b'))
    """
    if not servers:
        return ((),) * containers
    share = math.ceil(CROWDED_TIMES * containers / len(servers))
    counts: Counter[str] = Counter()
    orders = []
    for container in range(containers):
        order = sorted(servers, key=lambda server: (_weight(server, container), server), reverse=True)
        first = next(server for server in order if counts[server] < share)
        counts[first] += 1
        order.remove(first)
        orders.append((first, *order))
    return tuple(orders)


def _weight(server: str, container: int) -> int:
    weight: int = mmh3.hash64(f"{container}/{server}".encode(), signed=False)[0]
    return weight


@dataclass(frozen=True, slots=True)
class ServerView:
    """Observed state of a server. since: when the state was first seen, by the observer's monotonic clock, in
    seconds."""

    since: float
    is_alive: bool = True
    is_draining: bool = False  # it hands over all its containers and gets none

    @property
    def takes_containers(self) -> bool:
        return self.is_alive and not self.is_draining


@dataclass(frozen=True, slots=True)
class Holding:
    """Contents of a container's record.

    owner: the server that claimed it last, "" if none did. released_to: the server to which the owner has released it,
    "" if it hasn't. since: when this version of the record was first read, as in `ServerView`.
    """

    version: str | None
    epoch: int
    since: float
    owner: str = ""
    released_to: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Facts on which a server bases its decisions. Times are by its monotonic clock, in seconds; `at` is the present.

    servers: by id, including this one once it has joined. An owner missing from them hasn't been looked up yet, and
    counts neither as alive nor as dead. polled_at: the start of the last successful poll of the servers. is_current:
    that poll is recent enough. stable_since: when a server last came, went or began to drain. is_hasty: an operator
    wants to skip the wait for stability.
    """

    me: str
    at: float
    servers: Mapping[str, ServerView]
    holdings: Mapping[int, Holding]
    containers: int
    polled_at: float
    is_current: bool
    stable_since: float
    is_hasty: bool = False

    def order(self) -> Placement:
        return placement([name for name, server in self.servers.items() if server.takes_containers], self.containers)


@dataclass(frozen=True, slots=True)
class ClaimContainer:
    """Claim that makes this server the owner, with the next epoch, if the record still has that version."""

    container: int
    epoch: int
    version: str | None


@dataclass(frozen=True, slots=True)
class ReleaseContainer:
    """Release of a container of this server, so that `target` can claim it."""

    container: int
    target: str


def decisions(view: View) -> list[ClaimContainer | ReleaseContainer]:
    """Return this server's next actions, in order of containers. They repeat until the view shows their effect."""
    order = view.order()
    claims = [
        ClaimContainer(container, holding.epoch + 1, holding.version)
        for container, holding in sorted(view.holdings.items())
        if _should_claim(view, holding, order[container])
    ]
    return [*claims, *_releases(view, order)]


def _should_claim(view: View, holding: Holding, order: tuple[str, ...]) -> bool:
    if view.me not in order:
        return False  # this server hasn't joined, or is draining
    if holding.released_to == view.me:
        return True
    free_since = _free_since(view, holding)
    if free_since is None or not view.is_current or holding.since > view.polled_at:
        return False
    return view.at >= free_since + order.index(view.me) * CLUSTER_CLAIM_DELAY_S


def _free_since(view: View, holding: Holding) -> float | None:
    """Return since when the servers in order may claim the container; None if it isn't free."""
    if holding.released_to:
        target = view.servers.get(holding.released_to)
        if target is None or target.takes_containers:
            return holding.since + CLUSTER_ARRIVAL_S
        return max(target.since, holding.since)
    if not holding.owner:  # a new cluster: the first server mustn't claim everything
        return max(view.stable_since + CLUSTER_SETTLE_S, holding.since)
    owner = view.servers.get(holding.owner)
    if owner is None or owner.is_alive:
        return None
    return max(owner.since, holding.since)


def _releases(view: View, order: Placement) -> Iterator[ReleaseContainer]:
    """Yield the releases this server should make.

    A draining server releases all its containers at once. Others release misplaced containers one at a time, and only
    while membership is stable or an operator has asked for a rebalance.
    """
    me = view.servers.get(view.me)
    if me is None or not view.is_current:
        return
    targets = {holding.released_to: holding.owner for holding in view.holdings.values() if holding.released_to}
    is_quiet = view.is_hasty or view.at >= view.stable_since + CLUSTER_STABLE_S
    if me.is_draining:
        targets = {}
    elif view.me in targets.values() or not is_quiet:
        return
    for container, holding in sorted(view.holdings.items()):
        target = next(iter(order[container]), view.me)
        if holding.owner == view.me and not holding.released_to and target != view.me and target not in targets:
            yield ReleaseContainer(container, target)
            if not me.is_draining:
                return
