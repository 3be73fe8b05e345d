"""Outcomes of finished transactions, kept for at least a day for clients that ask again or commit again.

Each table holds what finishes in one day; only the newest few tables are kept. Days are measured by the monotonic
clock, so setting the wall clock neither drops an outcome early nor hides one. When a server starts, only the wall
clock can say how old the newest table is, so it is trusted within bounds: it may close one table, which drops
nothing less than two tables old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from nadi.controller.state.metadata import Metadata, StreamName
from nadi.controller.state.records import CompletedTransaction, Number, Stream, TxnState
from nadi.controller.state.store import ANY_VERSION, Versioned
from nadi.errors import SegmentNotFoundError
from nadi.limits import TXN_COMPLETED_KEEP_MS, TXN_COMPLETED_LIST, TXN_COMPLETED_TABLES
from nadi.runtime import Runtime

_OLDEST, _NEWEST, _OPENED = "completed", "completed/newest", "completed/opened"  # table numbers, and a time


class Finished:
    def __init__(self, metadata: Metadata, clock: Runtime) -> None:
        self._metadata = metadata
        self._clock = clock
        self._changing = asyncio.Lock()
        self._newest: int | None = None  # None until read
        self._opened_ms = 0  # on the monotonic clock

    async def add(
        self,
        name: StreamName,
        stream: Stream | None,
        texts: Sequence[str],
        state: TxnState,
        cuts: Mapping[str, dict[int, int]] | None = None,
    ) -> None:
        """Record how these ended, and behind which cut; `stream` is None if it is gone."""
        number = await self._open()
        created_ms = stream.created_ms if stream is not None else 0
        done = {
            text: CompletedTransaction(state, self._clock.now_ms(), created_ms, cuts.get(text) if cuts else None)
            for text in texts
        }
        table = self._metadata.completed(number)
        await table.put_all([(f"{name.key}/{text}", one, ANY_VERSION) for text, one in done.items()])

    async def find(self, name: StreamName, text: str) -> CompletedTransaction | None:
        """How it ended, if that is still known."""
        for number in await self._kept():
            try:
                found = await self._metadata.completed(number).get(f"{name.key}/{text}")
            except SegmentNotFoundError:
                continue
            if found is not None:
                return found.value
        return None

    async def newest(self, name: StreamName, stream: Stream) -> list[tuple[str, TxnState]]:
        """The stream's most recently finished transactions, newest first."""
        found: list[tuple[str, TxnState]] = []
        for number in await self._kept():
            mine = [item async for item in self._of(number, name, stream)]
            mine.sort(key=lambda item: item[1].version, reverse=True)  # versions grow with each change of a table
            found += [(text, record.value.state) for text, record in mine]
            if len(found) >= TXN_COMPLETED_LIST:
                break
        return found[:TXN_COMPLETED_LIST]

    async def _of(
        self, number: int, name: StreamName, stream: Stream
    ) -> AsyncIterator[tuple[str, Versioned[CompletedTransaction]]]:
        async for key, record in self._metadata.completed(number).scan(f"{name.key}/"):
            if record.value.stream_created_ms in (0, stream.created_ms):
                yield key.rpartition("/")[2], record

    async def _kept(self) -> range:
        """The tables' numbers, newest first."""
        async with self._changing:
            newest = await self._load()
        return range(newest, max(newest - TXN_COMPLETED_TABLES, 0), -1)

    async def _load(self) -> int:
        if self._newest is None:
            numbers = await self._metadata.numbers.get_all([_OLDEST, _NEWEST, _OPENED])
            oldest, newest, opened = (found.value.value if found is not None else None for found in numbers)
            age_ms = TXN_COMPLETED_KEEP_MS  # where there is none, a new one is due
            if opened is not None:
                age_ms = min(max(self._clock.now_ms() - opened, 0), TXN_COMPLETED_KEEP_MS)
            self._opened_ms = self._clock.monotonic_ms() - age_ms
            self._newest = newest if newest is not None else oldest or 0
        return self._newest

    async def _open(self) -> int:
        """The number of the table for what finishes now; makes it if one is due, and drops those no longer kept."""
        async with self._changing:
            newest = await self._load()
            now = self._clock.monotonic_ms()
            if now - self._opened_ms < TXN_COMPLETED_KEEP_MS:
                return newest
            numbers, opened = self._metadata.numbers, newest + 1
            await self._metadata.completed(opened).create()
            await numbers.put_all(
                [(_NEWEST, Number(opened), ANY_VERSION), (_OPENED, Number(self._clock.now_ms()), ANY_VERSION)]
            )
            self._newest, self._opened_ms = opened, now
            oldest = await numbers.get(_OLDEST, fresh=True)
            first, kept = oldest.value.value if oldest is not None else opened, opened - TXN_COMPLETED_TABLES + 1
            for number in range(first, kept):
                await self._metadata.completed(number).drop()
            if oldest is None or first < kept:
                await numbers.put(_OLDEST, Number(max(first, kept)), ANY_VERSION)
            return opened
