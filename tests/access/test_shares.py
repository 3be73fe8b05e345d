"""Few at work, and those who wait in rotation."""

from __future__ import annotations

import asyncio

from nadi.access.shares import Places, Ticket


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
