"""Few at work, and those who wait in rotation; and the budget of bytes held for peers."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from nadi.access.budget import Pool
from nadi.access.fair_shares import Places, Ticket
from nadi.errors import UnavailableError
from nadi.limits import KIB, MIB, PEERS_LEAST_BYTES, PEERS_LITTLE_BYTES, WAKES_A_TURN


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


TOTAL = 128 * MIB


async def test_shares_become_smaller_and_something_is_always_left() -> None:
    pool = Pool(TOTAL)
    alone = pool.account()
    assert alone.room_bytes == 24 * MIB
    accounts = [pool.account() for _ in range(100)]
    for account in accounts:
        account.take(account.room_bytes)
        assert account.held_bytes >= PEERS_LEAST_BYTES
    assert pool.held_bytes <= TOTAL + len(accounts) * PEERS_LEAST_BYTES
    assert alone.room_bytes >= PEERS_LEAST_BYTES, "whoever comes last can still ask for something"
    for account in accounts:
        account.hold(0)
    assert (pool.held_bytes, alone.room_bytes) == (0, 24 * MIB)
    assert pool.peak_bytes > TOTAL // 2


async def test_all_who_wait_are_told_a_few_in_a_turn_and_only_once() -> None:
    pool = Pool(TOTAL)
    account = pool.account()
    account.take(TOTAL)
    told: list[int] = []
    for number in range(3 * WAKES_A_TURN):
        pool.wait(lambda number=number: told.append(number))  # type: ignore[misc]
    account.give(KIB)
    seen = []
    while len(told) < 3 * WAKES_A_TURN:
        await asyncio.sleep(0)
        seen.append(len(told))
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) <= WAKES_A_TURN
    assert told == sorted(told), "who waits longest is first"
    account.give(KIB)
    await asyncio.sleep(0)
    assert len(told) == 3 * WAKES_A_TURN
    assert not pool.waiting


async def test_room_is_waited_for() -> None:
    pool = Pool(TOTAL)
    greedy, poor = pool.account(), pool.account()
    poor.take(PEERS_LEAST_BYTES)
    greedy.take(TOTAL)
    waiting = asyncio.create_task(poor.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert pool.waiting == 1
    greedy.give(TOTAL)
    await asyncio.wait_for(waiting, 60)
    poor.take(TOTAL)
    gone = asyncio.create_task(poor.room())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert not pool.waiting


async def test_another_thread_may_be_the_last_to_let_go() -> None:
    pool = Pool(TOTAL)
    account = pool.account()
    account.take(5 * KIB)
    told = asyncio.Event()
    pool.wait(told.set)
    thread = threading.Thread(target=account.give, args=(5 * KIB,))
    thread.start()
    thread.join()
    assert account.held_bytes == 5 * KIB, "it is for the loop's thread"
    await asyncio.wait_for(told.wait(), 60)
    assert (account.held_bytes, pool.held_bytes) == (0, 0)


async def test_who_holds_much_leaves_room_for_those_who_hold_little() -> None:
    pool = Pool(TOTAL)
    greedy = [pool.account() for _ in range(100)]
    for account in greedy:
        if account.room_bytes >= 17 * MIB:  # as a frame of that size would
            account.take(17 * MIB)
    assert pool.held_bytes >= 34 * MIB
    for account in greedy:
        if account.room_bytes >= 4 * MIB:
            account.take(4 * MIB)
    assert pool.account().room_bytes >= PEERS_LITTLE_BYTES
