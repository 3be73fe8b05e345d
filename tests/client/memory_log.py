"""A revisioned stream in memory, whose every call can be made to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from nadi.client.state_sync.revisioned_stream import RevisionedStream, RevisionRange, RevisionRecord
from nadi.errors import ConditionFailedError, NadiError, TruncatedError


@dataclass
class Memory:
    """What a server would keep of one revisioned stream."""

    start: int = 0
    records: list[RevisionRecord] = field(default_factory=list)
    mark: int | None = None

    @property
    def end(self) -> int:
        return self.records[-1].end if self.records else self.start


class MemoryLog(RevisionedStream):
    """One client's way to the memory; a call waits before it has its effect, and before its caller hears of it."""

    name = "sc/st"
    timeout_s = 30.0
    trouble: NadiError | None = None

    def __init__(self, memory: Memory, *, gated: bool = False) -> None:
        self._memory, self._gated = memory, gated
        self.gate: asyncio.Future[None] | None = None

    async def _wait(self) -> None:
        if self._gated:
            self.gate = asyncio.get_running_loop().create_future()
            await self.gate

    def let_go(self) -> None:
        if self.gate is not None and not self.gate.done():
            self.gate.set_result(None)

    async def extent(self) -> RevisionRange:
        await self._wait()
        found = RevisionRange(self._memory.start, self._memory.end)
        await self._wait()
        return found

    async def read(self, start: int, end: int) -> AsyncGenerator[RevisionRecord, None]:
        await self._wait()
        if start < self._memory.start:
            raise TruncatedError(self.name, start, self._memory.start)
        found = [record for record in self._memory.records if start <= record.revision < end]
        await self._wait()
        for record in found:
            yield record

    async def append(self, data: bytes, expected_end: int) -> int:
        await self._wait()
        if self._memory.end != expected_end:
            await self._wait()
            raise ConditionFailedError("elsewhere")
        end = expected_end + 8 + len(data)
        self._memory.records.append(RevisionRecord(expected_end, end, data))
        await self._wait()
        return end

    async def mark(self) -> int | None:
        await self._wait()
        found = self._memory.mark
        await self._wait()
        return found

    async def set_mark(self, revision: int, expected: int | None) -> bool:
        await self._wait()
        done = self._memory.mark == expected
        if done:
            self._memory.mark = revision
        await self._wait()
        return done

    async def truncate(self, revision: int) -> None:
        await self._wait()
        self._memory.start = max(revision, self._memory.start)
        self._memory.records = [record for record in self._memory.records if record.revision >= revision]
        await self._wait()
