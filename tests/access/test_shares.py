"""Few at work, and those who wait in rotation."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from nadi.access.shares import Places, Ticket
from nadi.errors import UnavailableError


async def test_whoever_asks_for_little_does_not_wait_for_who_asks_for_much() -> None:
    places = Places(2)
    called: list[str] = []
    loop = asyncio.get_running_loop()

    def wait(owner: str, name: str) -> Ticket:
        ticket = loop.create_future()
        ticket.add_done_callback(lambda _: called.append(name))
        places.queue(owner, ticket)
        return ticket

    greedy = [wait("greedy", f"greedy {number}") for number in range(100)]
    wait("honest", "honest")
    shared = greedy[50]
    places.queue("second", shared)
    gone = loop.create_future()
    places.queue("gone", gone)
    gone.cancel()
    await asyncio.sleep(0)
    for _ in range(3):
        places.leave()
    await asyncio.sleep(0)
    assert called == ["greedy 0", "greedy 1", "greedy 2", "honest", "greedy 50"]
    for _ in range(200):
        places.leave()
    await asyncio.sleep(0)
    assert sorted(called) == sorted([*(f"greedy {number}" for number in range(100)), "honest"])


async def test_who_gives_up_takes_no_place() -> None:
    places = Places(1)
    order: list[str] = []

    async def work(name: str) -> None:
        async with places.of(name):
            order.append(name)
            await asyncio.sleep(0)

    async with places.of("first"):
        waiting = [asyncio.create_task(work(name)) for name in ("gone", "second", "third")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert len(places._waiting) == 2
    # the place has come to the second, which has not run since
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["third"]
    async with asyncio.timeout(60), places.of("last"):
        pass


class Holder:
    """One that takes places, and has them until it leaves."""

    def __init__(self, places: Places, count: int, limit_s: float | None = None) -> None:
        self.has_come, self._leaves = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._hold(places, count, limit_s))

    async def _hold(self, places: Places, count: int, limit_s: float | None) -> None:
        async with places.of("one", count, limit_s=limit_s):
            self.has_come.set()
            await self._leaves.wait()

    async def leave(self) -> None:
        self._leaves.set()
        await asyncio.wait_for(self.task, 60)
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_that_takes_many_has_its_turn_and_those_behind_it_theirs() -> None:
    places = Places(8)
    small = [Holder(places, 3), Holder(places, 3)]
    await settled()
    large, after = Holder(places, 100), [Holder(places, 1) for _ in range(9)]
    await settled()
    assert not large.has_come.is_set()
    assert not any(one.has_come.is_set() for one in after)
    for one in small:
        await one.leave()
    assert large.has_come.is_set(), "it has all there are"
    assert not any(one.has_come.is_set() for one in after)
    await large.leave()
    assert sum(one.has_come.is_set() for one in after) == 8
    for one in after:
        await one.leave()


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_whoever_waits_behind_one_that_gives_up_goes_on(how: str) -> None:
    places = Places(8)
    first = Holder(places, 5)
    await settled()
    large = Holder(places, 4, 0.05 if how == "too late" else None)
    await settled()
    small = Holder(places, 1)
    await settled()
    assert not small.has_come.is_set()
    if how == "cancelled":
        large.task.cancel()
    (outcome,) = await asyncio.gather(large.task, return_exceptions=True)
    assert isinstance(outcome, UnavailableError if how == "too late" else asyncio.CancelledError)
    await asyncio.wait_for(small.has_come.wait(), 60)
    for one in (first, small):
        await one.leave()
    async with asyncio.timeout(60), AsyncExitStack() as all_of_them:
        for owner in range(8):
            await all_of_them.enter_async_context(places.of(owner))
