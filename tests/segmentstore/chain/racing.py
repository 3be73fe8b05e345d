"""Rounds in which owners of one chain race: they claim, walk, seal, append, release and delete, are killed or paused at
any step, and don't stop because another has claimed. Acknowledged frames must be in the chain at the end, in order,
once; and the frames that an owner saw at its takeover must be a prefix of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from nadi.errors import ClosedError, FencedError, UnavailableError
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.wire.fields import Buffer
from tests.simulation.machine.loop import SimulatedLoop, run
from tests.simulation.machine.process import Process
from tests.support.memory_engine import MemoryEngine

ROUND_S = 40.0


@dataclass(slots=True)
class Round:
    """One round. log: the rules by which the owners play."""

    process: Process
    chance: random.Random
    log: type[ChainLog]
    engine: FaultyEngine
    record: Record
    acknowledged: list[bytes] = field(default_factory=list)
    views: list[tuple[int, list[bytes]]] = field(default_factory=list)  # per owner: (frame it started after, contents)
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
        """Run one server: it claims, and appends until it is fenced; then it may claim again."""
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
        contents, low = list(seen), first  # of the frames after `first`, where the record starts
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
    """Read the chain as the last claimant does, and compare."""
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
            round_.problems.append(f"the frames that an owner saw after {first} differ")
    by_owner: dict[str, list[int]] = {}
    for payload in whole:
        owner, _, _ = payload.decode().rpartition("-")
        by_owner.setdefault(owner, []).append(int(payload.decode().rpartition("-")[2]))
    for owner, numbers in by_owner.items():
        if numbers != list(range(len(numbers))):
            round_.problems.append(f"a gap or disorder in {owner}: {numbers[:20]}")


def play(seed: int, log: type[ChainLog] = ChainLog) -> tuple[list[str], Counts]:
    """Return the problems and the counts of a round."""
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


# --- an engine and a record that fail as object stores do, in virtual time, when the seed says so -----


@dataclass(slots=True)
class Counts:
    """The counts of a round."""

    late_puts: int = 0
    lost_requests: int = 0
    lost_answers: int = 0
    conflicts: int = 0
    takeovers: int = 0
    fenced: int = 0
    not_confirmed: int = 0
    kills: int = 0
    appended: int = 0
    acknowledged: int = 0
    deleted: int = 0
    refused: int = 0


@dataclass(slots=True)
class FaultyEngine(MemoryEngine):
    """An engine with faults. rate: of each of a lost request, a lost answer, a delayed put, and a spurious 409."""

    chance: random.Random = field(default_factory=random.Random)
    rate: float = 0.05
    put_s: float = 0.045
    counts: Counts = field(default_factory=Counts)

    async def _delay(self, mean_s: float) -> None:
        await asyncio.sleep(self.chance.lognormvariate(0, 0.6) * mean_s)

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        data = b"".join(bytes(part) for part in parts)
        await self._delay(self.put_s / 2)
        dice = self.chance.random()
        if dice < self.rate:
            self.counts.lost_requests += 1
            raise UnavailableError("the request is lost")
        if dice < 2 * self.rate:
            self.counts.late_puts += 1
            late_s = self.chance.random() * 5
            asyncio.get_running_loop().call_later(late_s, self.objects.setdefault, name, data)
            raise UnavailableError("it is stored later, or never")
        if dice < 3 * self.rate:
            self.counts.conflicts += 1
            return False
        is_first = self.objects.setdefault(name, data) is data
        await self._delay(self.put_s / 2)
        if self.chance.random() < self.rate:
            self.counts.lost_answers += 1
            raise UnavailableError("the answer is lost")
        return is_first

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        await self._delay(self.put_s / 6)
        if self.chance.random() < self.rate:
            raise UnavailableError("no answer")
        found = await MemoryEngine.get(self, name, position, length)
        await self._delay(self.put_s / 6)
        return found

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            await self._delay(self.put_s / 2)
            self.objects.pop(name, None)
            self.counts.deleted += 1


@dataclass(slots=True)
class Record:
    """The container's owner and the log's start: changed by compare-and-set, with `epoch` as its version for the owner,
    since only the owner changes the other fields."""

    chance: random.Random
    epoch: int = 0
    start: ChainStart = field(default_factory=ChainStart)
    released: list[bytes] = field(default_factory=list)  # contents of the frames before `start`

    async def _delay(self) -> None:
        await asyncio.sleep(self.chance.lognormvariate(0, 0.6) * 0.02)

    async def claim(self) -> tuple[int, ChainStart]:
        await self._delay()
        self.epoch += 1
        claimed = self.epoch, self.start
        await self._delay()
        return claimed

    async def current(self) -> int:
        await self._delay()
        epoch = self.epoch
        await self._delay()
        return epoch

    async def set_start(self, epoch: int, start: ChainStart, first: int, contents: Sequence[bytes]) -> bool:
        """Set the start; return False if another owner has the record. contents: of the frames after `first`."""
        await self._delay()
        if epoch != self.epoch:
            return False
        self.start = start
        self.released += contents[len(self.released) - first : start.sequence - first]
        await self._delay()
        return True
