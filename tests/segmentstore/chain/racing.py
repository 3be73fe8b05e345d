"""Rounds in which owners of one chain race each other: they claim, walk, seal, append, release and delete, are killed
or paused at any step, and don't stop because another has claimed. What was acknowledged must be in the chain that is
read in the end, in order, once; and what an owner saw when it took over must be a prefix of that.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from nadi.errors import ClosedError, FencedError
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from tests.segmentstore.chain.faulty import Counts, FaultyEngine, Record
from tests.simulation.machine.loop import SimulatedLoop, run
from tests.simulation.machine.process import Process

ROUND_S = 40.0


@dataclass(slots=True)
class Round:
    """log: with which rules the owners play."""

    process: Process
    chance: random.Random
    log: type[ChainLog]
    engine: FaultyEngine
    record: Record
    acknowledged: list[bytes] = field(default_factory=list)
    views: list[tuple[int, list[bytes]]] = field(default_factory=list)  # of owners: after which frame, what they saw
    problems: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        return self.engine.counts

    async def pause(self) -> None:
        if self.chance.random() < 0.1:
            await asyncio.sleep(self.chance.expovariate(1.0))

    def opened(self, epoch: int, start: ChainStart) -> ChainLog:
        async def still_claimed() -> None:
            await self.pause()
            if (now := await self.record.current()) != epoch:
                self.counts.not_confirmed += 1
                raise FencedError(0, now)

        return self.log(self.engine, 0, epoch, start, still_claimed, self.process.runtime)

    async def owner(self, name: int) -> None:
        """One server's life: it claims, and appends until it is fenced; then it may claim again."""
        for life in range(self.chance.randrange(1, 4)):
            await asyncio.sleep(self.chance.random() * ROUND_S / 4)
            try:
                epoch, start = await self.record.claim()
                await self.pause()
                log = self.opened(epoch, start)
                seen = [frame.payload async for frame in log.replay(start.sequence)]
                self.counts.takeovers += 1
                self.views.append((start.sequence, seen))
                await self._write(log, epoch, f"{name}-{life}", start.sequence, seen)
            except (FencedError, ClosedError):
                self.counts.fenced += 1

    async def _write(self, log: ChainLog, epoch: int, name: str, first: int, seen: list[bytes]) -> None:
        contents, low = list(seen), first  # of the frames after `first`; where the record says to begin
        for number in range(self.chance.randrange(5, 120)):
            await self.pause()
            payload = f"{name}-{number}".encode()
            self.counts.appended += 1
            await log.append([payload])
            self.counts.acknowledged += 1
            self.acknowledged.append(payload)
            contents.append(payload)
            if self.chance.random() < 0.15:
                begin = log.start_after(self.chance.randrange(low, log.last_sequence + 1))
                await self.pause()
                if await self.record.set_start(epoch, begin, first, contents):
                    log.released(begin)
                    low = begin.sequence
                    await self.pause()
                    log.truncate(begin.sequence + 1)
                else:
                    self.counts.refused += 1


async def judge(round_: Round) -> None:
    """Read the chain as whoever comes last does, and compare."""
    round_.engine.rate = 0.0
    epoch, start = await round_.record.claim()
    log = round_.opened(epoch, start)
    chain = [frame.payload async for frame in log.replay(start.sequence)]
    whole = round_.record.released + chain
    assert len(round_.record.released) == start.sequence
    if len(set(whole)) != len(whole):
        round_.problems.append("something is there twice")
    missing = [payload for payload in round_.acknowledged if payload not in set(whole)]
    if missing:
        round_.problems.append(f"{len(missing)} acknowledged are missing")
    for first, view in round_.views:
        if whole[first : first + len(view)] != view:
            round_.problems.append(f"what an owner saw after {first} isn't what is there")
    by_owner: dict[str, list[int]] = {}
    for payload in whole:
        owner, _, _ = payload.decode().rpartition("-")
        by_owner.setdefault(owner, []).append(int(payload.decode().rpartition("-")[2]))
    for owner, numbers in by_owner.items():
        if numbers != list(range(len(numbers))):
            round_.problems.append(f"a gap or disorder in {owner}: {numbers[:20]}")


def play(seed: int, log: type[ChainLog] = ChainLog) -> tuple[list[str], Counts]:
    """What is wrong after a round, and what happened in it."""
    chance = random.Random(seed)
    counts = Counts()
    engine = FaultyEngine(chance=chance, rate=chance.choice([0.0, 0.02, 0.1]), counts=counts)

    async def main(loop: SimulatedLoop) -> list[str]:
        round_ = Round(Process(loop, "owners", chance), chance, log, engine, Record(chance))
        owners = [asyncio.ensure_future(round_.owner(name)) for name in range(chance.randrange(2, 6))]
        for owner in owners:
            if chance.random() < 0.3:
                counts.kills += 1
                loop.call_later(chance.random() * ROUND_S, owner.cancel)
        for found in await asyncio.gather(*owners, return_exceptions=True):
            if isinstance(found, Exception):
                round_.problems.append(f"an owner ended with {found!r}")
        await asyncio.sleep(10)
        await judge(round_)
        return round_.problems

    return run(main), counts
