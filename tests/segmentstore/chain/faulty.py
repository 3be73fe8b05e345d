"""An engine and a record that fail as object stores do, in virtual time, when the seed says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from nadi.errors import UnavailableError
from nadi.segmentstore.chain.log import ChainStart
from nadi.wire.fields import Buffer
from tests.support.memory_engine import MemoryEngine


@dataclass(slots=True)
class Counts:
    """What happened in a round."""

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
    """rate: of each of a lost request, a lost answer, a put that lands late, and a 409 of nothing."""

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
    """Who has the container, and where its log begins: changed by compare-and-set, with `epoch` as its version for the
    owner, since the owner alone changes the rest."""

    chance: random.Random
    epoch: int = 0
    start: ChainStart = field(default_factory=ChainStart)
    released: list[bytes] = field(default_factory=list)  # what the frames before `start` held

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
        """False: refused, the record is another's. contents: of the frames after `first`."""
        await self._delay()
        if epoch != self.epoch:
            return False
        self.start = start
        self.released += contents[len(self.released) - first : start.sequence - first]
        await self._delay()
        return True
