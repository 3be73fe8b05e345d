"""Blocks lent to another thread: what was taken, and nothing else, counts as given out."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from nadi.client.aio import SliceReader
from nadi.client.reading.lending import Lending
from nadi.client.reading.reader import lend, look
from nadi.errors import ClosedError, TruncatedError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut
from tests.support.waiting import until_async

from .fake_server import Chaos
from .test_writer import in_order, rescale_somehow
from .world import world


class Taker:
    """As the blocking face does it, but within the loop: where that would wait, the loop gets its turn."""

    def __init__(self, reader: SliceReader) -> None:
        self.reader, self.lending = reader, Lending[Any]()
        self.asks = True

    def ask(self) -> None:
        lend(self.reader, self.lending)
        self.asks = False

    async def take(self) -> EventBlock | None:
        if self.asks:
            self.ask()
        async with asyncio.timeout(60):
            while True:
                try:
                    found = self.lending.take(0)
                    break
                except TimeoutError:
                    await asyncio.sleep(0.001)
        if isinstance(found, tuple):
            if self.lending.wants_word:
                look(self.reader)
            return found[1]
        self.asks = True
        if found is not None:
            raise found
        return None


@pytest.mark.parametrize("seed", range(1, 7))
async def test_every_position_resumes(seed: int) -> None:
    async with world(2, Chaos(seed, largest_read=200)) as w:
        choice = random.Random(seed)
        writer = await w.manager.create_writer("sc", "st")
        counts = dict.fromkeys((f"key{i}" for i in range(10)), 0)
        for _ in range(6):
            for _ in range(choice.randint(0, 120)):
                key = choice.choice(list(counts))
                writer.write_event(f"{key}:{counts[key]}".encode(), key)
                counts[key] += 1
            await writer.flush(60)
            rescale_somehow(w, choice)
        info = await w.manager.stream_info("sc", "st")
        expected = {key.encode(): list(range(n)) for key, n in counts.items() if n}

        events: list[bytes] = []
        position = info.head
        while position != info.tail:
            reader = await w.manager.create_reader("sc", "st", start=position, end=info.tail)
            taker = Taker(reader)
            for _ in range(choice.randint(1, 8)):
                await asyncio.sleep(choice.choice([0, 0.01]))  # one block waits, or many
                block = await taker.take()
                events += [] if block is None else block
            position = reader.position()
            reader.close()
        assert in_order(events) == expected


async def test_a_slow_taker_holds_the_reading_back() -> None:
    async with world(1, Chaos(largest_read=100_000)) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_many([bytes(1000)] * 30_000, "k")
        await writer.flush(60)
        end = (await w.manager.stream_info("sc", "st")).tail
        reader = await w.manager.create_reader("sc", "st", end=end)
        taker = Taker(reader)
        taker.ask()
        await until_async(lambda: taker.lending.wants_word)
        lent = taker.lending._found.qsize()
        await asyncio.sleep(0.2)
        assert taker.lending._found.qsize() == lent
        assert 0 < lent < 200, "of some 300 blocks"
        rows = 0
        while (block := await taker.take()) is not None:
            rows += len(block)
        assert rows == 30_000


async def test_an_end_is_told_again_when_asked_and_an_error_once() -> None:
    async with world(1) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_batch([b"a", b"b"], "k")
        await writer.flush(60)
        end = (await w.manager.stream_info("sc", "st")).tail
        reader = await w.manager.create_reader("sc", "st", end=end)
        taker = Taker(reader)
        block = await taker.take()
        assert list(block or ()) == [b"a", b"b"]
        for _ in range(2):
            assert await taker.take() is None
        assert reader.position() == end
        w.store.truncate("sc/st/0.#epoch.0", 9)
        behind = await w.manager.create_reader("sc", "st", start=StreamCut("sc", "st", {0: 0}))
        taker = Taker(behind)
        with pytest.raises(TruncatedError):
            await taker.take()
        block = await taker.take()
        assert list(block or ()) == [b"b"]
        assert behind.position() == end


async def test_closing_is_told_to_who_waits() -> None:
    async with world(1) as w:
        reader = await w.manager.create_reader("sc", "st")
        taker = Taker(reader)
        waiting = asyncio.create_task(taker.take())
        await asyncio.sleep(0.01)
        reader.close()
        with pytest.raises(ClosedError):
            await waiting
