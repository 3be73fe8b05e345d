"""Memory for gRPC's requests: who has room, who waits for it, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from nadi import limits
from nadi.controller.grpc.server import Room
from nadi.errors import UnavailableError


class Holder:
    """One that takes room, and has it until it leaves."""

    def __init__(self, room: Room, address: str, size_bytes: int) -> None:
        self._came, self._leaves = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._hold(room, address, size_bytes))

    async def _hold(self, room: Room, address: str, size_bytes: int) -> None:
        async with room.of(address, size_bytes):
            self._came.set()
            await self._leaves.wait()

    def has_come(self) -> bool:
        return self._came.is_set()

    async def comes(self) -> None:
        await asyncio.wait_for(self._came.wait(), 60)

    async def leave(self) -> None:
        self._leaves.set()
        await asyncio.wait_for(self.task, 60)
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_address_has_half_and_others_find_room_at_once() -> None:
    room = Room(8)
    crowd = [Holder(room, "flood", 1) for _ in range(10)]
    await settled()
    assert [one.has_come() for one in crowd] == [True] * 4 + [False] * 6
    other = Holder(room, "good", 4)
    await other.comes()
    assert room.held_bytes == 8
    await crowd[0].leave()
    assert sum(one.has_come() for one in crowd) == 5, "one goes, one comes"
    for one in [*crowd[1:], other]:
        await one.leave()
    assert room.held_bytes == 0


async def test_a_small_one_is_not_held_up_by_a_large_one_of_another_address() -> None:
    room = Room(8)
    first, second = Holder(room, "a", 4), Holder(room, "b", 3)
    await settled()
    large = Holder(room, "c", 4)
    await settled()
    small = Holder(room, "d", 1)
    await small.comes()
    assert not large.has_come()
    await small.leave()
    await first.leave()
    await large.comes()
    assert room.held_bytes == 7
    for one in (second, large):
        await one.leave()


async def test_what_is_larger_than_an_address_may_hold_has_all_of_that() -> None:
    room = Room(8)
    one = Holder(room, "a", 100)
    await one.comes()
    assert room.held_bytes == 4
    await one.leave()
    assert room.held_bytes == 0


async def test_waiting_ends_and_who_gave_up_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RPC_ROOM_TIMEOUT_S", 0.05)
    room = Room(2)
    first = Holder(room, "a", 1)
    await first.comes()
    with pytest.raises(UnavailableError, match="try again"):
        await Holder(room, "a", 1).task
    monkeypatch.setattr(limits, "RPC_ROOM_TIMEOUT_S", 60)
    gone, last = Holder(room, "a", 1), Holder(room, "a", 1)
    await settled()
    gone.task.cancel()
    await asyncio.gather(gone.task, return_exceptions=True)
    await first.leave()
    await last.comes()
    assert room.held_bytes == 1
    await last.leave()
    assert room.held_bytes == 0


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_who_came_after_one_that_gives_up_goes_on(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(8)
    first, other = Holder(room, "a", 1), Holder(room, "b", 2)
    await settled()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "RPC_ROOM_TIMEOUT_S", 0.05 if how == "too late" else 60)
        large = Holder(room, "a", 4)
        await settled()
    small = Holder(room, "a", 1)
    await settled()
    assert room.is_waited_for()
    assert not small.has_come()
    if how == "cancelled":
        large.task.cancel()
    await asyncio.gather(large.task, return_exceptions=True)
    await small.comes()
    assert room.held_bytes == 4
    assert not room.is_waited_for()
    for one in (first, other, small):
        await one.leave()


async def test_all_that_fit_where_a_large_one_was_come_at_once() -> None:
    room = Room(8)
    large = Holder(room, "a", 4)
    await settled()
    crowd = [Holder(room, "a", 1) for _ in range(6)]
    await settled()
    await large.leave()
    assert sum(one.has_come() for one in crowd) == 4
    for one in crowd:
        await one.leave()
    assert room.held_bytes == 0


async def test_a_call_that_is_cancelled_once_let_in_gives_its_room_back() -> None:
    room = Room(2)
    first = Holder(room, "a", 1)
    await first.comes()
    second = Holder(room, "a", 1)
    await settled()
    first._leaves.set()
    await first.task
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    assert room.held_bytes == 0
