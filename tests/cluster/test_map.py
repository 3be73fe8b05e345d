"""Where a server is said to be, from what is seen of it and its successors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nadi.cluster.map import Map
from nadi.cluster.membership_view import Member, Peer
from nadi.errors import UnavailableError

STORE = ("127.0.0.1", 9000)
SEGMENT = "home/meters/0.#epoch.0"


def peer(name: str, since: float, heard: float = 0.0, port: int = 9000, *, is_alive: bool = True) -> Peer:
    member = Member(id=name, store=f"127.0.0.1:{port}", controller="c:1", rest="", version="", started_ms=0)
    return Peer(name, member, is_alive, since, heard)


def seen(*peers: Peer, owner: str = "a", is_leased: bool = True) -> Map:
    found = Map(cast("Any", SimpleNamespace(owner=lambda number: owner)), 4)
    members = {one.id: one for one in peers}
    found.membership = cast("Any", SimpleNamespace(members=members, lease_is_valid=lambda: is_leased, beat_s=1.0))
    return found


def test_a_segment_is_where_its_owner_is() -> None:
    assert seen(peer("a", 1.0), peer("b", 1.0, port=9001)).find(SEGMENT) == STORE


def test_it_is_between_two_servers_while_its_owner_is_dead_or_unknown() -> None:
    assert seen(peer("a", 1.0, is_alive=False)).find(SEGMENT) is None
    assert seen(peer("b", 1.0)).find(SEGMENT) is None
    with pytest.raises(UnavailableError, match="is between two servers"):
        seen(peer("b", 1.0)).endpoint_of(SEGMENT)


def test_an_owner_is_gone_once_another_was_started_in_its_place() -> None:
    """Nobody has noticed its death yet, and who is there now has nothing."""
    assert seen(peer("a", 1.0), peer("b", 5.0)).find(SEGMENT) is None
    assert seen(peer("a", 1.0), peer("b", 5.0), owner="b").find(SEGMENT) == STORE
    assert seen(peer("a", 5.0), peer("b", 1.0)).find(SEGMENT) == STORE
    assert seen(peer("a", 1.0), peer("b", 5.0, is_alive=False)).find(SEGMENT) == STORE


def test_who_is_cut_off_from_the_store_tells_nothing() -> None:
    with pytest.raises(UnavailableError, match="can't reach the cluster's store"):
        seen(peer("a", 1.0), is_leased=False).find(SEGMENT)


def test_a_server_surely_lives_that_has_beaten_since() -> None:
    """What a look shows for the first time may have been said before it."""
    assert not seen(peer("a", 1.0, heard=11.9)).lives_since(STORE, 10.0)
    assert seen(peer("a", 1.0, heard=12.1)).lives_since(STORE, 10.0)
    assert not seen(peer("a", 1.0, heard=12.1)).lives_since(("127.0.0.1", 9001), 10.0)
    assert not seen(peer("a", 1.0, heard=12.1, is_alive=False)).lives_since(STORE, 10.0)
    assert not seen(peer("b", 10.1, heard=12.1)).lives_since(STORE, 10.0)  # another, started since in its place
    assert not Map(cast("Any", None), 4).lives_since(STORE, 10.0)
