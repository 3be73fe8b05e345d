"""Those who come in numbers go in groups; nobody waits for long, and none is forgotten."""

from __future__ import annotations

import asyncio
import random

from nadi.controller.engine.workflows import Convoy
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Config
from tests.support.waiting import until_async

from .fake_store import FakeStore
from .support import running, settle

NEVER_S = 3600.0


class Trip:
    """One member, which arrives when it is told to."""

    def __init__(self, convoy: Convoy) -> None:
        self.is_under_way, self.arrive = False, asyncio.Event()
        self.task = asyncio.create_task(self._go(convoy))

    async def _go(self, convoy: Convoy) -> None:
        async with convoy.member():
            self.is_under_way = True
            await self.arrive.wait()


async def trips(convoy: Convoy, count: int) -> list[Trip]:
    begun = [Trip(convoy) for _ in range(count)]
    await settle(10)
    return begun


async def arrived(some: list[Trip]) -> None:
    for trip in some:
        trip.arrive.set()
    await settle(10)


def under_way(some: list[Trip]) -> int:
    return sum(trip.is_under_way for trip in some)


def test_few_go_as_they_come_and_more_go_together() -> None:
    async def main() -> None:
        convoy = Convoy(few=4, wait_s=NEVER_S)
        first, waiting = await trips(convoy, 4), await trips(convoy, 20)
        assert (under_way(first), under_way(waiting)) == (4, 0)
        await arrived(first[:1])
        assert under_way(waiting) == 20, "all at once"
        last = await trips(convoy, 5)
        await arrived(first[1:])
        await arrived(waiting[:8])
        assert under_way(last) == 0, "12 of 23 are still under way"
        await arrived(waiting[8:10])
        assert under_way(last) == 5, "half have arrived"
        await arrived([*waiting[10:], *last])
        again = await trips(convoy, 4)
        assert under_way(again) == 4, "nothing of those before is left"
        await arrived(again)

    asyncio.run(main())


def test_those_that_dont_get_on_hold_others_up_for_a_moment_only() -> None:
    async def main() -> None:
        convoy, began = Convoy(few=2, wait_s=0.1), asyncio.get_running_loop().time()
        stuck, waiting = await trips(convoy, 2), await trips(convoy, 3)
        is_early = asyncio.get_running_loop().time() - began < 0.1
        assert not (is_early and under_way(waiting))
        await until_async(lambda: under_way(waiting) == 3)
        more = await trips(convoy, 1)
        await until_async(lambda: under_way(more) == 1)
        await arrived([*stuck, *waiting, *more])

    asyncio.run(main())


def test_who_gives_up_isnt_waited_for() -> None:
    """Whether it waits, has just been told to set out, or is under way."""

    async def main() -> None:
        chance = random.Random(7)
        convoy = Convoy(few=2, wait_s=NEVER_S)
        for _ in range(200):
            some = await trips(convoy, 12)
            for trip in some:
                if chance.random() < 0.3:
                    trip.task.cancel()
                if chance.random() < 0.3:
                    await settle(chance.randrange(3))
            for trip in some:
                trip.arrive.set()
                if chance.random() < 0.2:
                    trip.task.cancel()
            await asyncio.gather(*(trip.task for trip in some), return_exceptions=True)
            assert (convoy._under_way, convoy._waiting) == (0, 0)

    asyncio.run(main())


def test_hundreds_of_streams_at_once() -> None:
    async def main() -> None:
        names = [StreamName("home", f"stream-{number}") for number in range(300)]
        async with running(FakeStore()) as controller:
            await controller.create_scope("home")
            await asyncio.gather(*(controller.create_stream(name, Config()) for name in names))
            assert all([await controller.stream_exists(name) for name in names])

    asyncio.run(main())
