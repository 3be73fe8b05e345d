"""Large requests and responses are bounded for all connections together."""

from __future__ import annotations

import asyncio

from nadi.access.budget import Budget
from nadi.limits import KIB, MIB


async def test_a_large_request_waits_until_most_others_are_released() -> None:
    pool = Budget(256 * MIB).receiving
    accounts = [pool.account() for _ in range(20)]
    admitted = []
    for account in accounts:
        try:
            async with asyncio.timeout(0.01):
                await account.wait_for_capacity(32 * MIB)
        except TimeoutError:
            continue
        account.take(32 * MIB)
        admitted.append(account)
    assert pool.buffered_bytes <= pool.total_bytes
    waiting = asyncio.create_task(accounts[-1].wait_for_capacity(32 * MIB))
    small = pool.account()
    await asyncio.wait_for(small.wait_for_capacity(16 * KIB), 1)
    for account in admitted:
        account.give(32 * MIB)
    await asyncio.wait_for(waiting, 1)


async def test_a_request_over_an_accounts_share_does_not_wait_for_all_others() -> None:
    pool = Budget(256 * MIB).receiving
    other, large = pool.account(), pool.account()
    other.take(1)
    await asyncio.wait_for(large.wait_for_capacity(pool.largest_share_bytes + MIB), 1)
