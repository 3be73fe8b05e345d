"""A simulation from start to end: clients at work on a server that is killed again and again, and what they saw judged.

The same seed does the same each time, in any process. To see what happened at one: script/simulate SEED --log FILE
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Config, ScaleType, TxnState
from nadi.controller.state.segments import Segments
from nadi.controller.time.mark_stream import MarkStream
from nadi.errors import AlreadyExistsError

from .clients import Client, Deleter, Reader, Scaler, TableUser, Transactions, Truncater, Writer, learn_ends
from .disk import SimulatedLog
from .history import History
from .loop import SimulatedLoop, run
from .world import World

SCALED, TRUNCATED = StreamName("home", "scaled"), StreamName("home", "truncated")
_DAY_MS = 24 * 3600 * 1000
_END_S = 1_800.0  # in which all must have come to rest


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a simulation in which nobody's word was broken."""

    trace: str
    seconds: float
    kills: int
    calls: int
    events: int
    committed: int  # transactions
    counted: int  # to this, in all entries
    truncations: int
    watermarks: int


def simulate(
    seed: int | str,
    seconds: float = 300.0,
    log: type[SimulatedLog] = SimulatedLog,
    *,
    pace: float = 1.0,
    log_file: Path | None = None,
) -> Outcome:
    """Raises BrokenWordError, or whatever else nobody should meet.

    log: what keeps the containers' frames. pace: how many times longer than a minute it takes from kill to kill, and so
    from call to call. log_file: gets the last that happened, whether it went well or not.
    """
    last_lines: list[str] = []
    try:
        return run(lambda loop: _simulate(loop, f"{seed}", seconds, log, pace=pace, last_lines=last_lines))
    finally:
        if log_file is not None:
            log_file.write_text("\n".join(last_lines) + "\n")


async def _simulate(
    loop: SimulatedLoop, seed: str, seconds: float, log: type[SimulatedLog], *, pace: float, last_lines: list[str]
) -> Outcome:
    async with World(loop, seed, log) as world:
        try:
            history = History()
            await _at_work(world, history, seconds, pace)
            world.faults.rest()
            world.lost = 0.0
            world.kill()
            await _judge(world, history)
            await world.stop()
            await world.start()
            watermarks = await _judge(world, history)
        except BaseException as error:
            error.add_note(f"again: script/simulate {seed} --minutes {seconds / 60:g} --pace {pace:g} --log {seed}.log")
            raise
        finally:
            last_lines += world.last_lines
        return Outcome(
            world.trace,
            loop.time(),
            world.kills,
            world.commands,
            len(history.found),
            list(history.transactions.values()).count(TxnState.COMMITTED),
            sum(counter.highest for counter in history.counters.values()),
            sum(map(len, history.cuts.values())),
            watermarks,
        )


async def _at_work(world: World, history: History, seconds: float, pace: float) -> None:
    first = Client(world, history, "first")
    await world.until_ready()
    with contextlib.suppress(AlreadyExistsError):  # an answer was lost; so below
        await first.control("scope", lambda controller: controller.create_scope("home"))
    elastic = Config(ScaleType.EVENTS_PER_SECOND, 1, 4, 2)  # so that segments are merged while the scaler splits them
    for stream, config in ((SCALED, elastic), (TRUNCATED, Config(min_segments=2))):
        with contextlib.suppress(AlreadyExistsError):
            await first.control("create", lambda controller: controller.create_stream(stream, config))  # noqa: B023
    streams = [SCALED, TRUNCATED]
    works: list[Coroutine[Any, Any, None]] = [
        Writer(world, history, "writer-1", SCALED, notes=True).run(10.0 * pace),
        Writer(world, history, "writer-2", SCALED, notes=True).run(20.0 * pace),
        Writer(world, history, "writer-3", TRUNCATED).run(20.0 * pace),
        Reader(world, history, "reader-1", streams).run(20.0 * pace),
        Transactions(world, history, "transactions-1", SCALED).run(30.0 * pace),
        Transactions(world, history, "transactions-2", SCALED).run(60.0 * pace),
        Scaler(world, history, "scaler").run(SCALED, 180.0 * pace),
        Truncater(world, history, "truncater").run(TRUNCATED, 120.0 * pace),
        TableUser(world, history, "table-1").run(20.0 * pace),
        TableUser(world, history, "table-2").run(20.0 * pace),
        Deleter(world, history, "deleter").run(240.0 * pace),
        _fate(world, pace),
    ]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _fate(world: World, pace: float) -> None:
    """Arms what goes wrong."""
    chance, faults = world.chance("fate"), world.faults
    faults.frame_fails, faults.put_fails, faults.state_lost = 0.0005, 0.01, 0.2
    while True:
        await asyncio.sleep(chance.expovariate(1 / (60 * pace)))
        faults.kill_due = chance.randrange(40)
        if chance.random() < 0.2:
            world.runtime.set_ms = chance.randrange(-_DAY_MS, _DAY_MS)
        if world.failure is not None:
            raise world.failure


async def _judge(world: World, history: History) -> int:
    """Everything that was under way comes to its end; then all is read. Gives how many watermarks there are."""
    async with asyncio.timeout(_END_S):
        await world.until_ready()
        last = Client(world, history, f"last-{world.starts}")
        await learn_ends(last, history, SCALED)
        server = await world.until_ready()
        while server.controller.unfinished["workflows"]:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        reader = Reader(world, history, f"judge-{world.starts}", [])
        for stream in (SCALED, TRUNCATED):
            history.check(stream.key, await reader.read_on(stream))
        await TableUser(world, history, f"judge-{world.starts}").read(list(history.counters))
        segments = Segments(server.exchange, world.runtime)
        marks = MarkStream(segments, SCALED.mark.segment(0))
        extent = await marks.extent()
        watermarks = [entry.watermark async for entry in marks.entries(extent.start, extent.end)]
        history.check_watermarks(watermarks, await server.controller.history(SCALED))
        return len(watermarks)
