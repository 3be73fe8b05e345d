"""Conditional appends while the store drops connections: before it stored an append, and after."""

from __future__ import annotations

import asyncio
import random

from nadi.naming import segment_name

from .fake_server import Chaos
from .world import world

SEGMENT = segment_name("sc", "st", 0)


def test_bytes_are_stored_once_and_in_order() -> None:
    async def write() -> None:
        chance = random.Random(3)
        async with world(chaos=Chaos(seed=3, before=0.2, after=0.2)) as here:
            pieces = [chance.randbytes(chance.randrange(5000)) for _ in range(100)]
            async with await here.manager.create_byte_writer("sc", "st") as writer:
                for piece in pieces:
                    await writer.write(piece)
                    if chance.random() < 0.5:
                        await writer.flush(20)
            assert bytes(here.store.segments[SEGMENT].data) == b"".join(pieces)
            reader = await here.manager.create_byte_reader("sc", "st")
            assert await reader.read() == b"".join(pieces)

    asyncio.run(write())


def test_each_update_is_done_once() -> None:
    async def count() -> None:
        async with world(chaos=Chaos(seed=5, before=0.1, after=0.1)) as here:
            counters = [await here.manager.shared_counter("sc", "st") for _ in range(3)]

            async def add(index: int) -> list[int]:
                return [await counters[index].add() for _ in range(30)]

            values = await asyncio.gather(*(add(index) for index in range(3)))
            assert sorted(value for part in values for value in part) == list(range(1, 91))
            assert len(here.stored(0)) == 90

    asyncio.run(count())


def test_an_append_whose_wait_was_cancelled_does_no_harm() -> None:
    async def cancel() -> None:
        async with world() as here:
            counter = await here.manager.shared_counter("sc", "st")
            await counter.add()
            for turns in range(12):
                adding = asyncio.create_task(counter.add())
                for _ in range(turns):
                    await asyncio.sleep(0.0005)
                adding.cancel()
                await asyncio.wait([adding])
                assert await counter.add() == len(here.stored(0))
            await counter.refresh()
            assert counter.value == len(here.stored(0))

    asyncio.run(cancel())
