"""Where containers belong."""

from __future__ import annotations

import math
import random
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from nadi.cluster.placement import CROWDED_TIMES, _weight, placement

ids = st.text("0123456789abcdef", min_size=4, max_size=8)
clusters = st.sets(ids, min_size=1, max_size=12)
counts = st.integers(0, 64)


def firsts(servers: set[str], containers: int) -> list[str]:
    return [order[0] for order in placement(servers, containers)]


def share(servers: int, containers: int) -> int:
    return math.ceil(CROWDED_TIMES * containers / servers)


@given(clusters, counts)
def test_each_container_has_all_servers_in_line_and_nobody_gets_more_than_the_bound(
    servers: set[str], containers: int
) -> None:
    orders = placement(servers, containers)
    assert len(orders) == containers
    assert all(sorted(order) == sorted(servers) for order in orders)
    owners = [order[0] for order in orders]
    assert all(owners.count(server) <= share(len(servers), containers) for server in servers)


@given(clusters, counts, st.randoms())
def test_it_depends_on_nothing_but_the_servers(servers: set[str], containers: int, chance: random.Random) -> None:
    shuffled = sorted(servers)
    chance.shuffle(shuffled)
    assert placement(shuffled, containers) == placement(servers, containers)


@given(clusters, ids, counts)
def test_while_nobody_is_full_only_the_containers_of_who_comes_or_goes_move(
    servers: set[str], other: str, containers: int
) -> None:
    with_it, without = firsts(servers | {other}, containers), firsts(servers - {other} or {"rest"}, containers)
    fullest = [
        max(map(owners.count, owners), default=0) < share(count, containers)
        for owners, count in ((with_it, len(servers | {other})), (without, len(servers - {other}) or 1))
    ]
    if all(fullest) and servers - {other}:
        assert all(one == two for one, two in zip(with_it, without, strict=True) if one != other)


@given(clusters, ids, counts)
def test_a_container_moves_between_others_only_because_of_the_bound(
    servers: set[str], other: str, containers: int
) -> None:
    """One that gets its very first choice both times stays where it is."""
    before, after = placement(servers | {other}, containers), placement(servers | {other, "new"}, containers)
    for container, (one, two) in enumerate(zip(before, after, strict=True)):
        alone = first_choice(servers | {other}, container)
        if one[0] == alone and two[0] not in (alone, "new"):
            owners = [order[0] for order in after]
            assert owners.count(alone) == share(len(servers | {other, "new"}), containers)


def first_choice(servers: set[str], container: int) -> str:
    """As if there were no bound."""
    return max(servers, key=lambda server: (_weight(server, container), server))


def test_on_average_hardly_more_moves_than_has_to() -> None:
    chance = random.Random(7)
    for containers, servers in [(16, 3), (16, 6), (64, 5), (256, 20)]:
        moved = needed = 0
        for _ in range(60):
            names = [f"{chance.getrandbits(64):016x}" for _ in range(servers + 1)]
            more, fewer = firsts(set(names), containers), firsts(set(names[:-1]), containers)
            moved += sum(one != two for one, two in zip(more, fewer, strict=True))
            needed += more.count(names[-1])
        assert needed <= moved < 1.4 * needed, (containers, servers)


def test_it_is_the_same_in_every_process() -> None:
    code = "from nadi.cluster.placement import placement; print([order[0] for order in placement(['a', 'b', 'c'], 12)])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(firsts({"a", "b", "c"}, 12))
    assert firsts({"a", "b", "c"}, 12) == list("ccbcabbcbbaa"), "all versions of nadi in a cluster must agree"


def test_without_servers_nobody_gets_anything() -> None:
    assert placement([], 3) == ((), (), ())
    assert placement(["a"], 0) == ()
