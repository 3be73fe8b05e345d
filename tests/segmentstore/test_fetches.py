"""What is fetched from the log or tier 2 is fetched for each connection in turn."""

from __future__ import annotations

import asyncio

from nadi.segmentstore.turns import Ticket, Turns


def test_whoever_asks_for_little_does_not_wait_for_who_asks_for_much() -> None:
    async def run() -> None:
        turns = Turns(2)
        called: list[str] = []
        loop = asyncio.get_running_loop()

        def wait(owner: str, name: str) -> Ticket:
            ticket = loop.create_future()
            ticket.add_done_callback(lambda _: called.append(name))
            turns.queue(owner, ticket)
            return ticket

        greedy = [wait("greedy", f"greedy {number}") for number in range(100)]
        wait("honest", "honest")
        shared = greedy[50]
        turns.queue("second", shared)
        gone = loop.create_future()
        turns.queue("gone", gone)
        gone.cancel()
        await asyncio.sleep(0)
        for _ in range(3):
            turns.give_back()
        await asyncio.sleep(0)
        assert called == ["greedy 0", "greedy 1", "greedy 2", "honest", "greedy 50"]
        for _ in range(200):
            turns.give_back()
        await asyncio.sleep(0)
        assert sorted(called) == sorted([*(f"greedy {number}" for number in range(100)), "honest"])

    asyncio.run(run())
