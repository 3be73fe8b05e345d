"""Fair sharing: places with waiting owners in rotation, and the budget of bytes buffered for peers."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from nadi.access.budget import Pool
from nadi.access.fair_shares import FairQueue, Ticket
from nadi.errors import UnavailableError
from nadi.limits import KIB, MIB, PEERS_LEAST_BYTES, PEERS_LITTLE_BYTES, WAKES_A_TURN


async def test_owners_with_many_requests_do_not_delay_others() -> None:
    places = FairQueue(2)
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


async def test_cancelled_waiter_takes_no_place() -> None:
    places = FairQueue(1)
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
    # the second task has got the place, but has not run since
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["third"]
    async with asyncio.timeout(60), places.of("last"):
        pass


class Holder:
    """A task that takes places and holds them until `leave`."""

    def __init__(self, places: FairQueue, count: int, limit_s: float | None = None) -> None:
        self.holds, self._leaves = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._hold(places, count, limit_s))

    async def _hold(self, places: FairQueue, count: int, limit_s: float | None) -> None:
        async with places.of("one", count, limit_s=limit_s):
            self.holds.set()
            await self._leaves.wait()

    async def leave(self) -> None:
        self._leaves.set()
        await asyncio.wait_for(self.task, 60)
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_large_request_gets_its_turn_before_later_small_ones() -> None:
    places = FairQueue(8)
    small = [Holder(places, 3), Holder(places, 3)]
    await settled()
    large, after = Holder(places, 100), [Holder(places, 1) for _ in range(9)]
    await settled()
    assert not large.holds.is_set()
    assert not any(holder.holds.is_set() for holder in after)
    for holder in small:
        await holder.leave()
    assert large.holds.is_set(), "it holds all places"
    assert not any(holder.holds.is_set() for holder in after)
    await large.leave()
    assert sum(holder.holds.is_set() for holder in after) == 8
    for holder in after:
        await holder.leave()


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_waiter_behind_a_cancelled_or_late_one_gets_its_place(how: str) -> None:
    places = FairQueue(8)
    first = Holder(places, 5)
    await settled()
    large = Holder(places, 4, 0.05 if how == "too late" else None)
    await settled()
    small = Holder(places, 1)
    await settled()
    assert not small.holds.is_set()
    if how == "cancelled":
        large.task.cancel()
    (outcome,) = await asyncio.gather(large.task, return_exceptions=True)
    assert isinstance(outcome, UnavailableError if how == "too late" else asyncio.CancelledError)
    await asyncio.wait_for(small.holds.wait(), 60)
    for holder in (first, small):
        await holder.leave()
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        for owner in range(8):
            await stack.enter_async_context(places.of(owner))


TOTAL = 128 * MIB


async def test_shares_shrink_and_some_bytes_always_remain() -> None:
    pool = Pool(TOTAL)
    alone = pool.account()
    assert alone.capacity_bytes == 24 * MIB
    accounts = [pool.account() for _ in range(100)]
    for account in accounts:
        account.take(account.capacity_bytes)
        assert account.buffered_bytes >= PEERS_LEAST_BYTES
    assert pool.buffered_bytes <= TOTAL + len(accounts) * PEERS_LEAST_BYTES
    assert alone.capacity_bytes >= PEERS_LEAST_BYTES, "a newcomer can still send a request"
    for account in accounts:
        account.hold(0)
    assert (pool.buffered_bytes, alone.capacity_bytes) == (0, 24 * MIB)
    assert pool.peak_bytes > TOTAL // 2


async def test_waiters_are_woken_once_and_a_few_per_iteration() -> None:
    pool = Pool(TOTAL)
    account = pool.account()
    account.take(TOTAL)
    woken: list[int] = []
    for number in range(3 * WAKES_A_TURN):
        pool.wait(lambda number=number: woken.append(number))  # type: ignore[misc]
    account.give(KIB)
    counts = []
    while len(woken) < 3 * WAKES_A_TURN:
        await asyncio.sleep(0)
        counts.append(len(woken))
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) <= WAKES_A_TURN
    assert woken == sorted(woken), "the longest-waiting first"
    account.give(KIB)
    await asyncio.sleep(0)
    assert len(woken) == 3 * WAKES_A_TURN
    assert not pool.waiting


async def test_account_without_a_share_waits_until_bytes_are_released() -> None:
    pool = Pool(TOTAL)
    greedy, poor = pool.account(), pool.account()
    poor.take(PEERS_LEAST_BYTES)
    greedy.take(TOTAL)
    waiting = asyncio.create_task(poor.wait_for_capacity())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert pool.waiting == 1
    greedy.give(TOTAL)
    await asyncio.wait_for(waiting, 60)
    poor.take(TOTAL)
    gone = asyncio.create_task(poor.wait_for_capacity())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert not pool.waiting


async def test_bytes_can_be_released_from_another_thread() -> None:
    pool = Pool(TOTAL)
    account = pool.account()
    account.take(5 * KIB)
    released = asyncio.Event()
    pool.wait(released.set)
    thread = threading.Thread(target=account.give, args=(5 * KIB,))
    thread.start()
    thread.join()
    assert account.buffered_bytes == 5 * KIB, "the loop's thread changes it"
    await asyncio.wait_for(released.wait(), 60)
    assert (account.buffered_bytes, pool.buffered_bytes) == (0, 0)


async def test_large_accounts_leave_a_reserve_for_small_ones() -> None:
    pool = Pool(TOTAL)
    greedy = [pool.account() for _ in range(100)]
    for account in greedy:
        if account.capacity_bytes >= 17 * MIB:  # like a frame of that size
            account.take(17 * MIB)
    assert pool.buffered_bytes >= 34 * MIB
    for account in greedy:
        if account.capacity_bytes >= 4 * MIB:
            account.take(4 * MIB)
    assert pool.account().capacity_bytes >= PEERS_LITTLE_BYTES
