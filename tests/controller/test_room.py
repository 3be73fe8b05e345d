"""Memory for gRPC's requests: who has a place, who waits for one, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from nadi.controller.grpc import requests
from nadi.controller.grpc.requests import Room
from nadi.errors import UnavailableError


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_address_has_half_and_others_find_room_at_once() -> None:
    made = Room(8)
    crowd = [made.place("flood") for _ in range(10)]
    taking = [asyncio.create_task(place.take(1)) for place in crowd]
    await settled()
    assert [task.done() for task in taking] == [True] * 4 + [False] * 6
    other = made.place("good")
    await asyncio.wait_for(other.take(4), 60)
    assert made.held_bytes == 8
    crowd[0].leave()
    crowd[0].leave()
    await settled()
    assert sum(task.done() for task in taking) == 5, "one goes, one comes"
    for place in [*crowd, other]:
        place.leave()
        await settled()
    assert made.held_bytes == 0
    assert all(task.done() and task.exception() is None for task in taking)


async def test_a_small_one_is_not_held_up_by_a_large_one_of_another_address() -> None:
    made = Room(8)
    first, second, large, small = made.place("a"), made.place("b"), made.place("c"), made.place("d")
    await first.take(4)
    await second.take(3)
    waiting = asyncio.create_task(large.take(4))
    await settled()
    await asyncio.wait_for(small.take(1), 60)
    small.leave()
    first.leave()
    await asyncio.wait_for(waiting, 60)
    assert made.held_bytes == 7


async def test_what_is_larger_than_an_address_may_hold_has_all_of_that() -> None:
    made = Room(8)
    place = made.place("a")
    await asyncio.wait_for(place.take(100), 60)
    assert made.held_bytes == 4
    place.leave()
    assert made.held_bytes == 0


async def test_waiting_ends_and_who_gave_up_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "RPC_ROOM_TIMEOUT_S", 0.05)

    made = Room(2)
    first, late, gone, last = (made.place("a") for _ in range(4))
    await first.take(1)
    with pytest.raises(UnavailableError, match="try again"):
        await late.take(1)
    late.leave()
    monkeypatch.setattr(requests, "RPC_ROOM_TIMEOUT_S", 60)
    cancelled = asyncio.create_task(gone.take(1))
    waiting = asyncio.create_task(last.take(1))
    await settled()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    first.leave()
    await asyncio.wait_for(waiting, 60)
    assert made.held_bytes == 1
    last.leave()
    assert made.held_bytes == 0


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_who_came_after_one_that_gives_up_goes_on(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Room(8)
    first, other, large, small = made.place("a"), made.place("b"), made.place("a"), made.place("a")
    await first.take(1)
    await other.take(2)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "RPC_ROOM_TIMEOUT_S", 0.05 if how == "too late" else 60)
        gives_up = asyncio.create_task(large.take(4))
        await settled()
    behind = asyncio.create_task(small.take(1))
    await settled()
    assert made.is_waited_for
    assert not behind.done()
    if how == "cancelled":
        gives_up.cancel()
    await asyncio.wait({gives_up})
    await asyncio.wait_for(behind, 60)
    assert made.held_bytes == 4
    assert not made.is_waited_for


async def test_all_that_fit_where_a_large_one_was_come_at_once() -> None:
    made = Room(8)
    large, crowd = made.place("a"), [made.place("a") for _ in range(6)]
    await large.take(4)
    waiting = [asyncio.create_task(place.take(1)) for place in crowd]
    await settled()
    large.leave()
    await settled()
    assert sum(task.done() for task in waiting) == 4
    for place in crowd:
        place.leave()
        await settled()
    assert made.held_bytes == 0


async def test_a_call_that_is_cancelled_once_let_in_gives_its_room_back() -> None:
    made = Room(2)
    first, second = made.place("a"), made.place("a")

    async def call() -> None:
        try:
            await second.take(1)
        finally:
            second.leave()

    await first.take(1)
    waiting = asyncio.create_task(call())
    await settled()
    first.leave()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert made.held_bytes == 0
