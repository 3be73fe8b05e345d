"""The budget of bytes held for peers: shares, room, and who is told when there is some."""

from __future__ import annotations

import asyncio
import threading

from nadi.access.budget import Budget
from nadi.limits import KIB, PEERS_LEAST_BYTES, PEERS_SHARE, WAKES_A_TURN

TOTAL = 1024 * KIB


def test_shares_become_smaller_and_something_is_always_left() -> None:
    async def main() -> None:
        budget = Budget(TOTAL)
        alone = budget.account()
        assert alone.room_bytes == TOTAL // PEERS_SHARE
        accounts = [budget.account() for _ in range(20)]
        for account in accounts:
            account.take(account.room_bytes)
            assert account.held_bytes >= PEERS_LEAST_BYTES
        assert budget.held_bytes <= TOTAL + len(accounts) * PEERS_LEAST_BYTES
        assert alone.room_bytes >= PEERS_LEAST_BYTES, "whoever comes last can still ask for something"
        for account in accounts:
            account.hold(0)
        assert (budget.held_bytes, alone.room_bytes) == (0, TOTAL // PEERS_SHARE)
        assert budget.peak_bytes > TOTAL // 2

    asyncio.run(main())


def test_all_who_wait_are_told_a_few_in_a_turn_and_only_once() -> None:
    async def main() -> None:
        budget = Budget(TOTAL)
        account = budget.account()
        account.take(TOTAL)
        told: list[int] = []
        for number in range(3 * WAKES_A_TURN):
            budget.wait(lambda number=number: told.append(number))  # type: ignore[misc]
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
        assert not budget.waiting

    asyncio.run(main())


def test_room_is_waited_for() -> None:
    async def main() -> None:
        budget = Budget(TOTAL)
        greedy, poor = budget.account(), budget.account()
        poor.take(PEERS_LEAST_BYTES)
        greedy.take(TOTAL)
        waiting = asyncio.create_task(poor.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert budget.waiting == 1
        greedy.give(TOTAL)
        await asyncio.wait_for(waiting, 5)
        poor.take(TOTAL)
        gone = asyncio.create_task(poor.room())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert not budget.waiting

    asyncio.run(main())


def test_another_thread_may_be_the_last_to_let_go() -> None:
    async def main() -> None:
        budget = Budget(TOTAL)
        account = budget.account()
        account.take(5 * KIB)
        told = asyncio.Event()
        budget.wait(told.set)
        thread = threading.Thread(target=account.give, args=(5 * KIB,))
        thread.start()
        thread.join()
        assert account.held_bytes == 5 * KIB, "it is for the loop's thread"
        await asyncio.wait_for(told.wait(), 5)
        assert (account.held_bytes, budget.held_bytes) == (0, 0)

    asyncio.run(main())
