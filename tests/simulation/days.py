"""The work of clients in any simulated world, and the final checks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from nadi.controller.controller import Controller
from nadi.controller.event_time import MarkStream
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord, TxnState
from nadi.controller.state.segments import Segments
from nadi.errors import AlreadyExistsError
from nadi.model.load import ScaleType
from nadi.model.watermark import Watermark

from .clients.appending import Writer
from .clients.base import Client
from .clients.changing import Deleter, Scaler, Truncater
from .clients.crowd import Crowd, Role
from .clients.inserting import Inserter
from .clients.library import LibraryReader, LibraryTables, LibraryTransactions, LibraryWriter
from .clients.reading import Reader
from .clients.tables import TableUser
from .clients.transactions import Transactions, learn_ends
from .judging.history import GuaranteeError, History
from .machine.process import Process
from .world import Serving, World

SCALED, TRUNCATED = StreamName("home", "scaled"), StreamName("home", "truncated")
_END_S = 1_800.0  # time limit for the final checks


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of a simulation in which all guarantees held."""

    trace: str
    seconds: float
    kills: int
    calls: int
    events: int
    committed: int  # transactions
    counted: int  # sum of all counters
    states: int  # of a table's keys
    truncations: int
    watermarks: int
    acknowledged: int  # appends
    more: Mapping[str, int] = field(default_factory=dict)  # further counts


def outcome_of(world: World, history: History, watermarks: int, more: Mapping[str, int] | None = None) -> Outcome:
    """Summarise what was done and seen."""
    return Outcome(
        world.trace,
        world.loop.now,
        world.kills,
        world.calls,
        len(history.found),
        list(history.transactions.values()).count(TxnState.COMMITTED),
        sum(counter.highest for counter in history.counters.values()),
        sum(register.check() for register in history.registers.values()),
        sum(map(len, history.cuts.values())),
        watermarks,
        sum(event.acknowledged for event in history.events.values()),
        more or {},
    )


async def at_work(
    world: World,
    history: History,
    seconds: float,
    pace: float,
    fates: Callable[[Crowd], list[Awaitable[None]]],
    others: Mapping[str, Role] = MappingProxyType({}),
) -> None:
    """Let all clients, and `others`, work for that time. pace: see `simulate`. fates: concurrent faults."""
    first = Client(world, history, "first")
    await first.process.start(_prepare(first))
    streams = [SCALED, TRUNCATED]

    def library(kind: type[LibraryReader | LibraryWriter | LibraryTransactions | LibraryTables], mean_s: float) -> Role:
        return lambda name, process: kind(world, history, name, SCALED, process).run(mean_s * pace)

    def writer(stream: StreamName, mean_s: float, *, notes: bool = False) -> Role:
        return lambda name, process: Writer(world, history, name, stream, notes=notes, process=process).run(
            mean_s * pace
        )

    def transactions(mean_s: float) -> Role:
        return lambda name, process: Transactions(world, history, name, SCALED, process).run(mean_s * pace)

    roles: dict[str, Role] = {
        "writer-1": writer(SCALED, 10.0, notes=True),
        "writer-2": writer(SCALED, 20.0, notes=True),
        "writer-3": writer(TRUNCATED, 20.0),
        "writer-4": library(LibraryWriter, 10.0),
        "writer-5": library(LibraryWriter, 20.0),
        "reader-1": lambda name, process: Reader(world, history, name, streams, process).run(20.0 * pace),
        "reader-2": library(LibraryReader, 10.0),
        "transactions-1": transactions(30.0),
        "transactions-2": transactions(60.0),
        "transactions-3": library(LibraryTransactions, 30.0),
        "scaler": lambda name, process: Scaler(world, history, name, process).run(SCALED, 180.0 * pace),
        "truncater": lambda name, process: Truncater(world, history, name, process).run(TRUNCATED, 120.0 * pace),
        "table-1": lambda name, process: TableUser(world, history, name, process).run(20.0 * pace),
        "table-2": lambda name, process: TableUser(world, history, name, process).run(20.0 * pace),
        "table-3": library(LibraryTables, 10.0),
        "table-4": library(LibraryTables, 10.0),
        "deleter": lambda name, process: Deleter(world, history, name, process).run(240.0 * pace),
    }
    crowd = Crowd(world, history, {**roles, **others})
    await crowd.work(seconds, *fates(crowd))


async def _prepare(first: Client) -> None:
    await first.world.until_ready()
    with contextlib.suppress(AlreadyExistsError):  # a reply was lost; likewise below
        await first.control("scope", lambda controller: controller.create_scope("home"))
    elastic = StreamConfigRecord(
        ScaleType.EVENTS_PER_SECOND, 1, 4, 2
    )  # so that segments are merged while the scaler splits them
    for stream, config in ((SCALED, elastic), (TRUNCATED, StreamConfigRecord(min_segments=2))):
        with contextlib.suppress(AlreadyExistsError):
            await first.control("create", lambda controller: controller.create_stream(stream, config))  # noqa: B023
    first.close()


async def judged(world: World, history: History, name: str) -> int:
    """Let all pending work end; then read and check everything. Return the number of watermarks."""
    process = world.process(name)
    try:
        async with asyncio.timeout(_END_S):
            await world.until_ready()
            return await process.start(_judge(world, history, name, process))
    finally:
        process.kill()


async def _judge(world: World, history: History, name: str, process: Process) -> int:
    judge = Client(world, history, name, process)
    await learn_ends(judge, history, SCALED)
    while await judge.control("unfinished", _unfinished):
        await judge.pause(1.0)
    reader = Reader(world, history, name, [], process)
    for stream in (SCALED, TRUNCATED):
        history.check(stream.key, await reader.read_on(stream))
    seen = await LibraryReader(world, history, name, SCALED, process).read_all()
    if unseen := {payload for payload in history.found if history.events[payload].stream == SCALED.key} - seen:
        raise GuaranteeError(f"a reader of the whole stream did not get {min(unseen)!r}")
    counting = TableUser(world, history, name, process)
    await counting.create()  # possibly all its creators died
    await counting.read(list(history.counters))
    await LibraryTables(world, history, name, SCALED, process).read()
    await Inserter(world, history, name, process).judge()
    for register in history.registers.values():
        register.check()
    watermarks = await judge.served("watermarks", _watermarks)
    history.check_watermarks(watermarks, await judge.control("history", lambda controller: controller.history(SCALED)))
    return len(watermarks)


async def _unfinished(controller: Controller) -> int:
    return controller.unfinished["workflows"]


async def _watermarks(life: Serving) -> list[Watermark]:
    marks = MarkStream(Segments(life.exchange, life.process.runtime), SCALED.mark.segment(0))
    extent = await marks.extent()
    return [entry.watermark async for entry in marks.entries(extent.start, extent.end)]
