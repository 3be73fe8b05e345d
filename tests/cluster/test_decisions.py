"""What a server does about containers, given what it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.cluster.placement import Claim, Holding, Release, Server, View, decisions, placement
from nadi.limits import CLUSTER_ARRIVAL_S, CLUSTER_SETTLE_S, CLUSTER_STABLE_S, CLUSTER_TURN_S

LONG_AGO, NOW = 100.0, 1_000.0
LIVE = Server(LONG_AGO)
DRAINING = Server(LONG_AGO, is_draining=True)
FIRST, SECOND, THIRD = placement(["a", "b", "c"], 1)[0]  # in line for container 0


def dead(since: float = LONG_AGO) -> Server:
    return Server(since, is_alive=False)


def view(me: str, holdings: dict[int, Holding], servers: dict[str, Server] | None = None, **more: Any) -> View:
    every = {"a": LIVE, "b": LIVE, "c": LIVE} | (servers or {})
    settings = {"at": NOW, "containers": 1, "looked_at": NOW, "is_current": True, "stable_since": LONG_AGO} | more
    return View(me=me, servers=every, holdings=holdings, **settings)


def held(owner: str = "", released_to: str = "", *, epoch: int = 4, since: float = LONG_AGO) -> Holding:
    return Holding(f"v{epoch}", epoch, since, owner, released_to)


CLAIM = [Claim(0, 5, "v4")]

# --- claiming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("me", [FIRST, SECOND, THIRD])
def test_a_container_that_is_released_to_a_server_is_claimed_by_it_at_once(me: str) -> None:
    fresh = {0: held("other", me, since=NOW)}
    assert decisions(view(me, fresh, looked_at=LONG_AGO, is_current=False, stable_since=NOW)) == CLAIM
    for other in {FIRST, SECOND, THIRD} - {me}:
        assert decisions(view(other, fresh)) == []


@pytest.mark.parametrize(("turn", "me"), [(0, FIRST), (1, SECOND), (2, THIRD)])
def test_a_dead_owners_container_is_claimed_by_one_after_the_other(turn: int, me: str) -> None:
    died = NOW - turn * CLUSTER_TURN_S
    assert decisions(view(me, {0: held("x")}, {"x": dead(died)})) == CLAIM
    if turn:
        assert decisions(view(me, {0: held("x")}, {"x": dead(died + 0.001)})) == []


def test_the_dead_one_is_not_in_line() -> None:
    assert decisions(view(SECOND, {0: held(FIRST)}, {FIRST: dead(NOW)})) == CLAIM


@pytest.mark.parametrize("owner", [LIVE, DRAINING, None])
def test_of_an_owner_who_is_alive_or_unknown_nothing_is_claimed(owner: Server | None) -> None:
    servers = {"x": owner} if owner else {}
    assert decisions(view(FIRST, {0: held("x")}, servers)) == []


def test_nothing_is_claimed_by_what_was_seen_too_long_ago() -> None:
    there = {0: held("x")}
    assert decisions(view(FIRST, there, {"x": dead()}, is_current=False)) == []
    assert decisions(view(FIRST, {0: held("x", since=NOW - 1.0)}, {"x": dead()}, looked_at=NOW - 1.1)) == []
    assert decisions(view(FIRST, {0: held("x", since=NOW - 1.0)}, {"x": dead()}, looked_at=NOW - 1.0)) == CLAIM


def test_a_container_that_never_had_an_owner_waits_until_servers_have_come() -> None:
    never = {0: Holding(None, 0, LONG_AGO)}
    assert decisions(view(FIRST, never, stable_since=NOW - CLUSTER_SETTLE_S)) == [Claim(0, 1, None)]
    assert decisions(view(FIRST, never, stable_since=NOW - CLUSTER_SETTLE_S + 0.001)) == []
    assert decisions(view(SECOND, never, stable_since=NOW - CLUSTER_SETTLE_S - 0.9)) == []
    assert decisions(view(SECOND, never, stable_since=NOW - CLUSTER_SETTLE_S - 1.0)) == [Claim(0, 1, None)]


@pytest.mark.parametrize("target", [dead(NOW), Server(NOW, is_draining=True)])
def test_what_was_released_to_one_who_cannot_take_it_is_for_all(target: Server) -> None:
    there = {0: held(THIRD, "x")}
    assert decisions(view(FIRST, there, {"x": target})) == CLAIM
    assert decisions(view(SECOND, there, {"x": target})) == []
    assert decisions(view(SECOND, there, {"x": replace(target, since=NOW - 1.0)})) == CLAIM


@pytest.mark.parametrize("servers", [{"x": LIVE}, {}])
def test_what_does_not_arrive_is_for_all_in_the_end(servers: dict[str, Server]) -> None:
    line = placement([*"abc", *servers], 1)[0]
    me = next(name for name in line if name != "x")
    wait = CLUSTER_ARRIVAL_S + line.index(me) * CLUSTER_TURN_S
    assert decisions(view(me, {0: held("a", "x", since=NOW - wait)}, servers)) == CLAIM
    assert decisions(view(me, {0: held("a", "x", since=NOW - wait + 0.001)}, servers)) == []


def test_who_has_not_joined_or_is_draining_claims_nothing() -> None:
    there = {0: held("x", since=LONG_AGO), 1: held("x", "d")}
    assert decisions(view("d", there, {"x": dead(), "d": DRAINING}, containers=2)) == []
    assert decisions(view("d", there, {"x": dead()}, containers=2)) == []


def test_servers_that_see_different_things_may_both_claim() -> None:
    """Compare-and-set of the same version lets one of them have it."""
    one = decisions(view(FIRST, {0: held("x")}, {"x": dead(NOW)}))
    other = decisions(view(SECOND, {0: held("x")}, {"x": dead(NOW), FIRST: dead()}))
    assert one == other == CLAIM


# --- giving away ----------------------------------------------------------------------------------------------------

ORDER = placement(["a", "b", "c"], 8)


def all_of(owner: str, count: int = 8) -> dict[int, Holding]:
    return {container: held(owner) for container in range(count)}


def elsewhere(me: str) -> list[int]:
    return [container for container, order in enumerate(ORDER) if order[0] != me]


def test_one_container_at_a_time_moves_for_balance() -> None:
    there = all_of("a")
    first, second = elsewhere("a")[:2]
    assert decisions(view("a", there, containers=8)) == [Release(first, ORDER[first][0])]
    there[first] = held("a", ORDER[first][0], since=NOW)
    assert decisions(view("a", there, containers=8)) == []
    there[first] = held(ORDER[first][0])
    assert decisions(view("a", there, containers=8)) == [Release(second, ORDER[second][0])]


def test_nothing_moves_for_balance_while_servers_come_and_go() -> None:
    stable = NOW - CLUSTER_STABLE_S
    assert decisions(view("a", all_of("a"), containers=8, stable_since=stable)) != []
    assert decisions(view("a", all_of("a"), containers=8, stable_since=stable + 0.001)) == []
    assert decisions(view("a", all_of("a"), containers=8, stable_since=stable, is_current=False)) == []


def test_what_is_where_it_belongs_stays() -> None:
    there = {container: held(order[0]) for container, order in enumerate(ORDER)}
    assert all(decisions(view(me, there, containers=8)) == [] for me in "abc")


def test_who_drains_gives_away_all_at_once() -> None:
    order = placement(["b", "c"], 8)
    there = all_of("a")
    todo = view("a", there, {"a": Server(NOW, is_draining=True)}, containers=8, stable_since=NOW)
    given = decisions(todo)
    assert {type(one) for one in given} == {Release}
    assert [one.container for one in given] == list(range(8))
    assert all(isinstance(one, Release) and order[one.container][0] == one.target for one in given)
    assert decisions(replace(todo, is_current=False)) == []
    on_its_way = {0: held("a", order[0][0])}
    assert [one.container for one in decisions(replace(todo, holdings=there | on_its_way))] == list(range(1, 8))


def test_a_target_that_gets_one_from_another_has_to_wait() -> None:
    first = elsewhere("a")[0]
    target = ORDER[first][0]
    other = {"b": "c", "c": "b"}[target]
    there = {first: held("a"), 7: held(other, target, since=NOW)}
    assert decisions(view("a", there, containers=8)) == []


def test_the_last_server_keeps_what_it_has() -> None:
    only = {"a": DRAINING, "b": dead(), "c": dead()}
    assert decisions(view("a", all_of("a"), only, containers=8)) == []


servers_seen = st.fixed_dictionaries(
    {name: st.builds(Server, st.floats(0.0, NOW), st.booleans(), st.booleans()) for name in ("a", "b", "c", "d")}
)
names = st.sampled_from(["", "a", "b", "c", "d", "unknown"])
holdings_seen = st.dictionaries(
    st.integers(0, 7), st.builds(Holding, st.just("v"), st.just(1), st.floats(0.0, NOW), names, names)
)


@given(servers_seen, holdings_seen, st.floats(0.0, NOW), st.booleans())
def test_whatever_is_seen(
    servers: dict[str, Server], holdings: dict[int, Holding], stable_since: float, is_current: bool
) -> None:
    """Nobody takes what somebody alive has, nobody gives away what it doesn't have, or to one who can't take it."""
    servers = {name: replace(server, is_alive=server.is_alive or name == "a") for name, server in servers.items()}
    found = View("a", NOW, servers, holdings, 8, NOW, is_current, stable_since)
    for one in decisions(found):
        holding = holdings[one.container]
        if isinstance(one, Claim):
            assert not servers["a"].is_draining
            assert one == Claim(one.container, 2, "v")
            assert holding.released_to or not holding.owner or not servers[holding.owner].is_alive
        else:
            assert (holding.owner, holding.released_to) == ("a", "")
            assert servers[one.target].takes_containers
            assert one.target != "a"


def test_an_operator_need_not_wait_for_a_quiet_time() -> None:
    holdings = {0: held(SECOND)}
    assert decisions(view(SECOND, holdings, stable_since=NOW)) == []
    assert decisions(view(SECOND, holdings, stable_since=NOW, is_hasty=True)) == [Release(0, FIRST)]
    # it changes nothing for who begins, nor for one that can't see the others
    assert decisions(view(FIRST, {0: held()}, stable_since=NOW, is_hasty=True)) == []
    assert decisions(view(SECOND, holdings, is_current=False, is_hasty=True)) == []
