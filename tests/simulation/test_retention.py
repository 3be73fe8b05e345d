"""Hours of retention by time: under kills, while the stream scales; and while the wall clock is set on and back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from nadi import limits
from nadi.controller.state.history import Cut
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import RetentionType, StreamConfigRecord
from nadi.errors import AlreadyExistsError
from nadi.naming import parse_segment_name
from nadi.segmentstore import storage_writer

from .clients.appending import Writer
from .clients.base import Client
from .clients.changing import Scaler
from .judging.history import BrokenWordError, History
from .machine.loop import SimulatedLoop, run
from .machine.process import Process
from .server import OneServer

STREAM = StreamName("home", "limited")
KEPT_S = 900.0
HOURS_S = 3_600.0
_LOOK_S = 15.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(storage_writer, "STORAGE_WRITER_TICK_S", 2.0)
    monkeypatch.setattr(limits, "TXN_TICK_MS", 2_000)
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class Watcher(Client):
    """Sees to it that nothing goes that is younger than it may be, and that what is older does."""

    heads = 0
    longest_kept_s = 0.0

    async def run(self) -> None:
        came: dict[bytes, float] = {}  # of each event, a time before it was acknowledged
        last: Cut = {}
        before = self.world.loop.now
        while True:
            await asyncio.sleep(_LOOK_S)
            for payload, event in self.history.events.items():
                if event.acknowledged and event.end >= 0:
                    came.setdefault(payload, before)
            before = self.world.loop.now
            head = await self.control("head", lambda controller: controller.head(STREAM))
            epochs = await self.control("history", lambda controller: controller.history(STREAM))
            now, is_passed = self.world.loop.now, epochs.passed(head)
            self.heads, last = self.heads + (head != last), head
            for payload, since in came.items():
                event = self.history.events[payload]
                number = parse_segment_name(event.segment)[2]
                is_gone = is_passed(number) or (number in head and event.end <= head[number])
                if is_gone and now - since < KEPT_S:
                    raise BrokenWordError(f"{event} is gone after {now - since:.0f} s")
                if not is_gone:
                    self.longest_kept_s = max(self.longest_kept_s, now - since)


async def _kills(world: OneServer) -> None:
    chance = world.chance("fate")
    while True:
        await asyncio.sleep(chance.expovariate(1 / 600))
        world.server.faults.kill_due = chance.randrange(40)


async def _sets(world: OneServer) -> None:
    """The clock is set on and back, for seconds or hours."""
    chance = world.chance("fate")
    while True:
        await asyncio.sleep(chance.expovariate(1 / 900))
        world.server.set_clock(chance.choice([0, 0, 3_000, -3_000, 60_000, 7_200_000, -7_200_000]))


def live(seed: str, *more: Any) -> Watcher:
    async def main(loop: SimulatedLoop) -> Watcher:
        async with OneServer(loop, seed, drift=0.0) as world:
            world.network.lost = 0.0005
            process = world.process("clients")
            return await process.start(_live(world, process, *more))

    return run(main)


async def _live(world: OneServer, process: Process, *more: Any) -> Watcher:
    history = History()
    first = Client(world, history, "first", process)
    await world.server.until_ready()
    config = StreamConfigRecord(min_segments=2, retention_type=RetentionType.TIME, retention_param=int(KEPT_S * 1000))
    with contextlib.suppress(AlreadyExistsError):
        await first.control("scope", lambda controller: controller.create_scope("home"))
    with contextlib.suppress(AlreadyExistsError):
        await first.control("create", lambda controller: controller.create_stream(STREAM, config))
    watcher = Watcher(world, history, "watcher", process)
    works: list[Coroutine[Any, Any, None]] = [
        Writer(world, history, "writer-1", STREAM, process=process).run(20.0),
        Writer(world, history, "writer-2", STREAM, process=process).run(60.0),
        Scaler(world, history, "scaler", process).run(STREAM, 900.0),
        watcher.run(),
        *(fate(world) for fate in more),
    ]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=HOURS_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return watcher


def test_for_hours_with_kills_it_goes_when_it_is_old_enough() -> None:
    watcher = live("retention", _kills)
    assert watcher.world.kills >= 3
    assert watcher.heads > 20
    assert watcher.longest_kept_s < KEPT_S + 300, "a start waits a minute, and the time index is within ten seconds"


@pytest.mark.slow  # half a minute
def test_for_hours_of_a_clock_that_is_set_nothing_goes_early() -> None:
    watcher = live("clocks", _sets)
    assert watcher.heads > 5
