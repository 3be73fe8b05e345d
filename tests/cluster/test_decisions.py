"""Decisions about containers, derived from a server's view."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.cluster.container_map import ContainerMap
from nadi.cluster.membership_view import PeerServer, ServerMember
from nadi.cluster.placement import (
    CROWDED_TIMES,
    ClaimContainer,
    Holding,
    ReleaseContainer,
    ServerView,
    View,
    _weight,
    decisions,
    placement,
)
from nadi.errors import UnavailableError
from nadi.limits import CLUSTER_ARRIVAL_S, CLUSTER_CLAIM_DELAY_S, CLUSTER_SETTLE_S, CLUSTER_STABLE_S

LONG_AGO, NOW = 100.0, 1_000.0
LIVE = ServerView(LONG_AGO)
DRAINING = ServerView(LONG_AGO, is_draining=True)
FIRST, SECOND, THIRD = placement(["a", "b", "c"], 1)[0]  # order for container 0


def dead(since: float = LONG_AGO) -> ServerView:
    return ServerView(since, is_alive=False)


def view(me: str, holdings: dict[int, Holding], servers: dict[str, ServerView] | None = None, **more: Any) -> View:
    every = {"a": LIVE, "b": LIVE, "c": LIVE} | (servers or {})
    settings = {"at": NOW, "containers": 1, "polled_at": NOW, "is_current": True, "stable_since": LONG_AGO} | more
    return View(me=me, servers=every, holdings=holdings, **settings)


def holders(owner: str = "", released_to: str = "", *, epoch: int = 4, since: float = LONG_AGO) -> Holding:
    return Holding(f"v{epoch}", epoch, since, owner, released_to)


CLAIM = [ClaimContainer(0, 5, "v4")]

# --- claiming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("me", [FIRST, SECOND, THIRD])
def test_released_container_is_claimed_by_target_at_once(me: str) -> None:
    fresh = {0: holders("other", me, since=NOW)}
    assert decisions(view(me, fresh, polled_at=LONG_AGO, is_current=False, stable_since=NOW)) == CLAIM
    for other in {FIRST, SECOND, THIRD} - {me}:
        assert decisions(view(other, fresh)) == []


@pytest.mark.parametrize(("turn", "me"), [(0, FIRST), (1, SECOND), (2, THIRD)])
def test_dead_owners_container_is_claimed_in_order(turn: int, me: str) -> None:
    died = NOW - turn * CLUSTER_CLAIM_DELAY_S
    assert decisions(view(me, {0: holders("x")}, {"x": dead(died)})) == CLAIM
    if turn:
        assert decisions(view(me, {0: holders("x")}, {"x": dead(died + 0.001)})) == []


def test_dead_server_is_not_in_order() -> None:
    assert decisions(view(SECOND, {0: holders(FIRST)}, {FIRST: dead(NOW)})) == CLAIM


@pytest.mark.parametrize("owner", [LIVE, DRAINING, None])
def test_container_of_live_or_unknown_owner_is_not_claimed(owner: ServerView | None) -> None:
    servers = {"x": owner} if owner else {}
    assert decisions(view(FIRST, {0: holders("x")}, servers)) == []


def test_outdated_view_claims_nothing() -> None:
    there = {0: holders("x")}
    assert decisions(view(FIRST, there, {"x": dead()}, is_current=False)) == []
    assert decisions(view(FIRST, {0: holders("x", since=NOW - 1.0)}, {"x": dead()}, polled_at=NOW - 1.1)) == []
    assert decisions(view(FIRST, {0: holders("x", since=NOW - 1.0)}, {"x": dead()}, polled_at=NOW - 1.0)) == CLAIM


def test_new_container_is_claimed_after_servers_settle() -> None:
    never = {0: Holding(None, 0, LONG_AGO)}
    assert decisions(view(FIRST, never, stable_since=NOW - CLUSTER_SETTLE_S)) == [ClaimContainer(0, 1, None)]
    assert decisions(view(FIRST, never, stable_since=NOW - CLUSTER_SETTLE_S + 0.001)) == []
    assert decisions(view(SECOND, never, stable_since=NOW - CLUSTER_SETTLE_S - 0.9)) == []
    assert decisions(view(SECOND, never, stable_since=NOW - CLUSTER_SETTLE_S - 1.0)) == [ClaimContainer(0, 1, None)]


@pytest.mark.parametrize("target", [dead(NOW), ServerView(NOW, is_draining=True)])
def test_container_released_to_unfit_target_is_free(target: ServerView) -> None:
    there = {0: holders(THIRD, "x")}
    assert decisions(view(FIRST, there, {"x": target})) == CLAIM
    assert decisions(view(SECOND, there, {"x": target})) == []
    assert decisions(view(SECOND, there, {"x": replace(target, since=NOW - 1.0)})) == CLAIM


@pytest.mark.parametrize("servers", [{"x": LIVE}, {}])
def test_unclaimed_release_is_free_after_timeout(servers: dict[str, ServerView]) -> None:
    line = placement([*"abc", *servers], 1)[0]
    me = next(name for name in line if name != "x")
    wait = CLUSTER_ARRIVAL_S + line.index(me) * CLUSTER_CLAIM_DELAY_S
    assert decisions(view(me, {0: holders("a", "x", since=NOW - wait)}, servers)) == CLAIM
    assert decisions(view(me, {0: holders("a", "x", since=NOW - wait + 0.001)}, servers)) == []


def test_unjoined_or_draining_server_claims_nothing() -> None:
    there = {0: holders("x", since=LONG_AGO), 1: holders("x", "d")}
    assert decisions(view("d", there, {"x": dead(), "d": DRAINING}, containers=2)) == []
    assert decisions(view("d", there, {"x": dead()}, containers=2)) == []


def test_servers_that_see_different_things_may_both_claim() -> None:
    """Compare-and-set of the same version lets only one of them succeed."""
    first = decisions(view(FIRST, {0: holders("x")}, {"x": dead(NOW)}))
    second = decisions(view(SECOND, {0: holders("x")}, {"x": dead(NOW), FIRST: dead()}))
    assert first == second == CLAIM


# --- releasing ------------------------------------------------------------------------------------------------------

ORDER = placement(["a", "b", "c"], 8)


def all_of(owner: str, count: int = 8) -> dict[int, Holding]:
    return {container: holders(owner) for container in range(count)}


def elsewhere(me: str) -> list[int]:
    return [container for container, order in enumerate(ORDER) if order[0] != me]


def test_one_container_at_a_time_moves_for_balance() -> None:
    there = all_of("a")
    first, second = elsewhere("a")[:2]
    assert decisions(view("a", there, containers=8)) == [ReleaseContainer(first, ORDER[first][0])]
    there[first] = holders("a", ORDER[first][0], since=NOW)
    assert decisions(view("a", there, containers=8)) == []
    there[first] = holders(ORDER[first][0])
    assert decisions(view("a", there, containers=8)) == [ReleaseContainer(second, ORDER[second][0])]


def test_nothing_moves_for_balance_while_servers_come_and_go() -> None:
    stable = NOW - CLUSTER_STABLE_S
    assert decisions(view("a", all_of("a"), containers=8, stable_since=stable)) != []
    assert decisions(view("a", all_of("a"), containers=8, stable_since=stable + 0.001)) == []
    assert decisions(view("a", all_of("a"), containers=8, stable_since=stable, is_current=False)) == []


def test_balanced_placement_moves_nothing() -> None:
    there = {container: holders(order[0]) for container, order in enumerate(ORDER)}
    assert all(decisions(view(me, there, containers=8)) == [] for me in "abc")


def test_draining_server_releases_all_containers_at_once() -> None:
    order = placement(["b", "c"], 8)
    there = all_of("a")
    todo = view("a", there, {"a": ServerView(NOW, is_draining=True)}, containers=8, stable_since=NOW)
    releases = decisions(todo)
    assert {type(release) for release in releases} == {ReleaseContainer}
    assert [release.container for release in releases] == list(range(8))
    assert all(
        isinstance(release, ReleaseContainer) and order[release.container][0] == release.target for release in releases
    )
    assert decisions(replace(todo, is_current=False)) == []
    on_its_way = {0: holders("a", order[0][0])}
    assert [release.container for release in decisions(replace(todo, holdings=there | on_its_way))] == list(range(1, 8))


def test_target_receives_one_container_at_a_time() -> None:
    first = elsewhere("a")[0]
    target = ORDER[first][0]
    other = {"b": "c", "c": "b"}[target]
    there = {first: holders("a"), 7: holders(other, target, since=NOW)}
    assert decisions(view("a", there, containers=8)) == []


def test_last_server_keeps_its_containers() -> None:
    only = {"a": DRAINING, "b": dead(), "c": dead()}
    assert decisions(view("a", all_of("a"), only, containers=8)) == []


servers_seen = st.fixed_dictionaries(
    {name: st.builds(ServerView, st.floats(0.0, NOW), st.booleans(), st.booleans()) for name in ("a", "b", "c", "d")}
)
names = st.sampled_from(["", "a", "b", "c", "d", "unknown"])
holdings_seen = st.dictionaries(
    st.integers(0, 7), st.builds(Holding, st.just("v"), st.just(1), st.floats(0.0, NOW), names, names)
)


@given(servers_seen, holdings_seen, st.floats(0.0, NOW), st.booleans())
def test_decisions_are_safe_in_any_view(
    servers: dict[str, ServerView], holdings: dict[int, Holding], stable_since: float, is_current: bool
) -> None:
    """No claim of a live server's container; no release of another's container or to an unsuitable target."""
    servers = {name: replace(server, is_alive=server.is_alive or name == "a") for name, server in servers.items()}
    seen_view = View("a", NOW, servers, holdings, 8, NOW, is_current, stable_since)
    for decision in decisions(seen_view):
        holding = holdings[decision.container]
        if isinstance(decision, ClaimContainer):
            assert not servers["a"].is_draining
            assert decision == ClaimContainer(decision.container, 2, "v")
            assert holding.released_to or not holding.owner or not servers[holding.owner].is_alive
        else:
            assert (holding.owner, holding.released_to) == ("a", "")
            assert servers[decision.target].takes_containers
            assert decision.target != "a"


def test_hasty_view_skips_quiet_period() -> None:
    holdings = {0: holders(SECOND)}
    assert decisions(view(SECOND, holdings, stable_since=NOW)) == []
    assert decisions(view(SECOND, holdings, stable_since=NOW, is_hasty=True)) == [ReleaseContainer(0, FIRST)]
    # no effect on a new cluster, nor on a server whose view is outdated
    assert decisions(view(FIRST, {0: holders()}, stable_since=NOW, is_hasty=True)) == []
    assert decisions(view(SECOND, holdings, is_current=False, is_hasty=True)) == []


# --- placement ----------------------------------------------------------------------------------------


ids = st.text("0123456789abcdef", min_size=4, max_size=8)
clusters = st.sets(ids, min_size=1, max_size=12)
counts = st.integers(0, 64)


def firsts(servers: set[str], containers: int) -> list[str]:
    return [order[0] for order in placement(servers, containers)]


def share(servers: int, containers: int) -> int:
    return math.ceil(CROWDED_TIMES * containers / servers)


@given(clusters, counts)
def test_placement_orders_all_servers_within_the_bound(servers: set[str], containers: int) -> None:
    orders = placement(servers, containers)
    assert len(orders) == containers
    assert all(sorted(order) == sorted(servers) for order in orders)
    owners = [order[0] for order in orders]
    assert all(owners.count(server) <= share(len(servers), containers) for server in servers)


@given(clusters, counts, st.randoms())
def test_placement_depends_only_on_server_ids(servers: set[str], containers: int, chance: random.Random) -> None:
    shuffled = sorted(servers)
    chance.shuffle(shuffled)
    assert placement(shuffled, containers) == placement(servers, containers)


@given(clusters, ids, counts)
def test_below_the_bound_only_containers_of_changed_server_move(servers: set[str], other: str, containers: int) -> None:
    with_it, without = firsts(servers | {other}, containers), firsts(servers - {other} or {"rest"}, containers)
    fullest = [
        max(map(owners.count, owners), default=0) < share(count, containers)
        for owners, count in ((with_it, len(servers | {other})), (without, len(servers - {other}) or 1))
    ]
    if all(fullest) and servers - {other}:
        assert all(one == two for one, two in zip(with_it, without, strict=True) if one != other)


@given(clusters, ids, counts)
def test_container_moves_between_unchanged_servers_only_at_the_bound(
    servers: set[str], other: str, containers: int
) -> None:
    """A container stays if its first choice has capacity both times."""
    before, after = placement(servers | {other}, containers), placement(servers | {other, "new"}, containers)
    for container, (one, two) in enumerate(zip(before, after, strict=True)):
        alone = first_choice(servers | {other}, container)
        if one[0] == alone and two[0] not in (alone, "new"):
            owners = [order[0] for order in after]
            assert owners.count(alone) == share(len(servers | {other, "new"}), containers)


def first_choice(servers: set[str], container: int) -> str:
    """Return the placement without the bound."""
    return max(servers, key=lambda server: (_weight(server, container), server))


def test_few_unnecessary_moves_on_average() -> None:
    chance = random.Random(7)
    for containers, servers in [(16, 3), (16, 6), (64, 5), (256, 20)]:
        moved = needed = 0
        for _ in range(60):
            names = [f"{chance.getrandbits(64):016x}" for _ in range(servers + 1)]
            more, fewer = firsts(set(names), containers), firsts(set(names[:-1]), containers)
            moved += sum(one != two for one, two in zip(more, fewer, strict=True))
            needed += more.count(names[-1])
        assert needed <= moved < 1.4 * needed, (containers, servers)


def test_placement_is_the_same_in_every_process() -> None:
    code = "from nadi.cluster.placement import placement; print([order[0] for order in placement(['a', 'b', 'c'], 12)])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(firsts({"a", "b", "c"}, 12))
    assert firsts({"a", "b", "c"}, 12) == list("ccbcabbcbbaa"), "all versions of nadi in a cluster must agree"


def test_placement_without_servers_is_empty() -> None:
    assert placement([], 3) == ((), (), ())
    assert placement(["a"], 0) == ()


# --- addresses of servers and their successors --------------------------------------------------------


STORE = ("127.0.0.1", 9000)
SEGMENT = "home/meters/0.#epoch.0"


def peer(name: str, since: float, changed_at: float = 0.0, port: int = 9000, *, is_alive: bool = True) -> PeerServer:
    member = ServerMember(id=name, store=f"127.0.0.1:{port}", controller="c:1", rest="", version="", started_ms=0)
    return PeerServer(name, member, is_alive, since, changed_at)


def seen(*peers: PeerServer, owner: str = "a", is_leased: bool = True) -> ContainerMap:
    container_map = ContainerMap(cast("Any", SimpleNamespace(owner=lambda number: owner)), 4)
    members = {peer_server.id: peer_server for peer_server in peers}
    container_map.membership = cast(
        "Any", SimpleNamespace(members=members, lease_is_valid=lambda: is_leased, beat_s=1.0)
    )
    return container_map


def test_a_segment_is_where_its_owner_is() -> None:
    assert seen(peer("a", 1.0), peer("b", 1.0, port=9001)).find(SEGMENT) == STORE


def test_find_returns_none_for_dead_or_unknown_owner() -> None:
    assert seen(peer("a", 1.0, is_alive=False)).find(SEGMENT) is None
    assert seen(peer("b", 1.0)).find(SEGMENT) is None
    with pytest.raises(UnavailableError):
        seen(peer("b", 1.0)).endpoint_of(SEGMENT)


def test_find_returns_none_after_successor_started_at_same_address() -> None:
    """Its death is unnoticed, and its successor at the same address has no containers."""
    assert seen(peer("a", 1.0), peer("b", 5.0)).find(SEGMENT) is None
    assert seen(peer("a", 1.0), peer("b", 5.0), owner="b").find(SEGMENT) == STORE
    assert seen(peer("a", 5.0), peer("b", 1.0)).find(SEGMENT) == STORE
    assert seen(peer("a", 1.0), peer("b", 5.0, is_alive=False)).find(SEGMENT) == STORE


def test_find_without_lease_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        seen(peer("a", 1.0), is_leased=False).find(SEGMENT)


def test_lives_since_requires_a_later_beat() -> None:
    """A version first shown by a poll may have been written before it."""
    assert not seen(peer("a", 1.0, changed_at=11.9)).lives_since(STORE, 10.0)
    assert seen(peer("a", 1.0, changed_at=12.1)).lives_since(STORE, 10.0)
    assert not seen(peer("a", 1.0, changed_at=12.1)).lives_since(("127.0.0.1", 9001), 10.0)
    assert not seen(peer("a", 1.0, changed_at=12.1, is_alive=False)).lives_since(STORE, 10.0)
    assert not seen(peer("b", 10.1, changed_at=12.1)).lives_since(STORE, 10.0)  # a successor at the same address
    assert not ContainerMap(cast("Any", None), 4).lives_since(STORE, 10.0)
