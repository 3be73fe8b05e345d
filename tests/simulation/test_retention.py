"""Hours of retention by time: under kills while the stream scales, and while the wall clock is set forward and back."""

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
from .judging.history import GuaranteeError, History
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
    """Checks that nothing is truncated too early, and that old events are truncated in time."""

    heads = 0
    longest_kept_s = 0.0

    async def run(self) -> None:
        since_by_event: dict[bytes, float] = {}  # a time before each event's acknowledgement
        last: Cut = {}
        before = self.world.loop.now
        while True:
            await asyncio.sleep(_LOOK_S)
            for payload, event in self.history.events.items():
                if event.acknowledged and event.end >= 0:
                    since_by_event.setdefault(payload, before)
            before = self.world.loop.now
            head = await self.control("head", lambda controller: controller.head(STREAM))
            epochs = await self.control("history", lambda controller: controller.history(STREAM))
            now, is_passed = self.world.loop.now, epochs.passed(head)
            self.heads, last = self.heads + (head != last), head
            for payload, since in since_by_event.items():
                event = self.history.events[payload]
                number = parse_segment_name(event.segment)[2]
                is_gone = is_passed(number) or (number in head and event.end <= head[number])
                if is_gone and now - since < KEPT_S:
                    raise GuaranteeError(f"{event} is gone after {now - since:.0f} s")
                if not is_gone:
                    self.longest_kept_s = max(self.longest_kept_s, now - since)


async def _kills(world: OneServer) -> None:
    chance = world.chance("fate")
    while True:
        await asyncio.sleep(chance.expovariate(1 / 600))
        world.server.faults.kill_due = chance.randrange(40)


async def _sets(world: OneServer) -> None:
    """Set the clock forward and back, by seconds or hours."""
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


@pytest.mark.slow
def test_data_is_truncated_in_time_over_hours_with_kills() -> None:
    watcher = live("retention", _kills)
    assert watcher.world.kills >= 3
    assert watcher.heads > 20
    assert watcher.longest_kept_s < KEPT_S + 300, "a start delays by a minute; the time index is accurate to 10 s"


@pytest.mark.slow  # half a minute
def test_nothing_is_truncated_early_over_hours_of_clock_changes() -> None:
    watcher = live("clocks", _sets)
    assert watcher.heads > 5
