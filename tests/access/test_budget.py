"""The budget of bytes held for peers: shares, room, and who is told when there is some."""

from __future__ import annotations

import asyncio
import threading

from nadi.access.budget import Pool
from nadi.limits import KIB, MIB, PEERS_LEAST_BYTES, PEERS_LITTLE_BYTES, WAKES_A_TURN

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
