"""A server whose stream follows a load up and down, under kills, manual scaling, and clock changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from nadi import limits
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord
from nadi.errors import AlreadyExistsError
from nadi.model.load import ScaleType
from nadi.model.reports import SCALING, ScalingReport
from nadi.segmentstore import storage_writer

from .clients.appending import Writer
from .clients.base import Client
from .clients.changing import Scaler
from .clients.reading import Reader
from .clients.transactions import Transactions, learn_ends
from .judging.history import History
from .machine.loop import SimulatedLoop, run
from .machine.process import Process
from .server import OneServer

STREAM = StreamName("home", "elastic")
TARGET = 3
WRITERS = 6
STEP_S = 100.0  # between the starts of two writers, and between their ends
BUSY_S = STEP_S * 2 * WRITERS
QUIET_S = 400.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(storage_writer, "STORAGE_WRITER_TICK_S", 2.0)
    monkeypatch.setattr(limits, "TXN_TICK_MS", 2_000)
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


async def during(work: Coroutine[Any, Any, None], start_s: float, end_s: float) -> None:
    await asyncio.sleep(start_s)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end_s - start_s):
            await work


async def watch(client: Client, counts: list[int]) -> None:
    while True:
        await asyncio.sleep(5.0)
        counts.append(len(await client.control("segments", lambda server: server.current_segments(STREAM))))


async def fate(world: OneServer) -> None:
    chance = world.chance("fate")
    while True:
        await asyncio.sleep(chance.expovariate(1 / 150))
        world.server.faults.kill_due = chance.randrange(40)
        world.server.set_clock(chance.choice([0, 3_000, -3_000, 7_200_000, -86_400_000]))


Followed = tuple[OneServer, list[int], list[ScalingReport], int]


async def follow(loop: SimulatedLoop, seed: str, by_hand: bool) -> Followed:
    async with OneServer(loop, seed, drift=0.0) as world:
        process = world.process("clients")
        return await process.start(_follow(world, process, by_hand))


async def _follow(world: OneServer, process: Process, by_hand: bool) -> Followed:
    history, counts = History(), list[int]()
    first = Client(world, history, "first", process)
    await world.server.until_ready()
    with contextlib.suppress(AlreadyExistsError):
        await first.control("scope", lambda server: server.create_scope("home"))
    config = StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, TARGET, 4, 1)
    with contextlib.suppress(AlreadyExistsError):
        await first.control("create", lambda server: server.create_stream(STREAM, config))
    busy = [
        during(
            Writer(world, history, f"writer-{i}", STREAM, notes=i == 0, process=process).run(0.7),
            i * STEP_S,
            BUSY_S - i * STEP_S,
        )
        for i in range(WRITERS)
    ]
    busy.append(during(Transactions(world, history, "transactions", STREAM, process).run(20.0), 0.0, BUSY_S))
    if by_hand:
        busy.append(during(Scaler(world, history, "scaler", process).run(STREAM, 60.0), STEP_S, BUSY_S))
    watching, fates = asyncio.create_task(watch(first, counts)), asyncio.create_task(fate(world))
    await asyncio.gather(*busy)
    fates.cancel()
    world.server.faults.rest()
    await asyncio.sleep(QUIET_S)
    watching.cancel()
    await learn_ends(first, history, STREAM)
    reader = Reader(world, history, "reader", [STREAM], process)
    history.check(STREAM.key, await reader.read_on(STREAM))
    page, _ = await world.server.run(lambda life: life.controller.report(STREAM, SCALING))
    return world, counts, [one for one in page if isinstance(one, ScalingReport)], len(history.found)


@pytest.mark.slow  # most of a minute each
@pytest.mark.parametrize("by_hand", [False, True])
def test_segments_follow_a_load_up_and_down(by_hand: bool) -> None:
    world, counts, log, events = run(lambda loop: follow(loop, f"curve-{by_hand}", by_hand))
    assert world.kills >= 3
    assert events > 3_000
    assert max(counts) >= 4
    assert counts[-1] == 1, counts
    done = [entry for entry in log if entry.is_done]
    assert {entry.kind for entry in done} >= {"split", "merge"}
    sealed = [segment for entry in done for segment in entry.segments if entry.into]
    assert len(sealed) == len(set(sealed)), "each segment is decided about once"
