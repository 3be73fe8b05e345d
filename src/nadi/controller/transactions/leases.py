"""Transactions, unfinished and finished: leases in memory, and outcomes in tables.

Leases run on the monotonic clock, so setting the wall clock neither ends one nor keeps one alive. A start gives each
open transaction its full lease again, up to what was left of its maximum lifetime at its last ping.

Outcomes are kept for at least a day for clients that ask or commit again: each table holds what finishes in one day, by
the monotonic clock, and only the newest few tables are kept. At a start only the wall clock can say how old the newest
table is; it may close one table, which drops nothing less than two tables old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nadi import limits
from nadi.controller.state.metadata import ControllerMetadata, StreamName
from nadi.controller.state.records import CompletedTransaction, Number, StreamRecord, TransactionRecord, TxnState
from nadi.controller.state.segments import ANY_VERSION, Versioned
from nadi.errors import SegmentNotFoundError
from nadi.runtime import Runtime

# The lease that the Rust and Python clients always request. Their pinger handles one transaction per
# round, so with k open ones the last is pinged only after k leases.
_RUST_LEASE_MS = 90_000


@dataclass(slots=True)
class Live:
    """An unfinished transaction. The ends of its lease and of its maximum lifetime are on the monotonic clock."""

    record: Versioned[TransactionRecord]
    lease_ends_ms: int
    life_ends_ms: int


class Leases:
    """`len` is how many transactions are unfinished. due_ms: no lease expires before that."""

    def __init__(self, clock: Runtime) -> None:
        self._clock = clock
        self._live: dict[str, dict[str, Live]] = {}
        self.due_ms = 0

    def __len__(self) -> int:
        return sum(map(len, self._live.values()))

    def all(self) -> list[tuple[StreamName, str, Live]]:
        return [(StreamName.of(owner), text, held) for owner, mine in self._live.items() for text, held in mine.items()]

    def of(self, name: StreamName) -> Mapping[str, Live]:
        return self._live.get(name.key, {})

    def find(self, name: StreamName, text: str) -> Live | None:
        return self.of(name).get(text)

    def hold(self, name: StreamName, text: str, record: Versioned[TransactionRecord]) -> None:
        """Hold the record as the newest. An open one's lease runs from now: it was just created, pinged or loaded."""
        now, stored, lease_ms = self._clock.monotonic_ms(), record.value, max(record.value.lease_ms, 0)
        mine = self._live.setdefault(name.key, {})
        held = mine.get(text)
        if held is None:  # what was left of its life when it was created or last pinged, at least its lease
            left_ms = max(stored.max_ms - (stored.expires_ms - lease_ms), lease_ms)
            held = mine[text] = Live(record, now, now + min(left_ms, limits.TXN_MAX_EXECUTION_MS))
        elif held.record.version > record.version:
            return  # another change was faster
        held.record = record
        if stored.state is TxnState.OPEN:
            held.lease_ends_ms = min(now + lease_ms, held.life_ends_ms)
            self.due_ms = min(self.due_ms, held.lease_ends_ms + limits.TXN_GRACE_MS)

    def end(self, name: StreamName, texts: Iterable[str]) -> None:
        mine = self._live.get(name.key, {})
        for text in texts:
            mine.pop(text, None)
        if not mine:
            self._live.pop(name.key, None)

    def take_due(self, now_ms: int) -> list[tuple[StreamName, str, Live]]:
        """The open transactions whose leases have expired; the caller sets `due_ms` back if it fails to end one."""
        due: list[tuple[StreamName, str, Live]] = []
        if now_ms < self.due_ms:
            return due
        self.due_ms = now_ms + limits.TXN_MAX_EXECUTION_MS
        for owner, mine in self._live.items():
            live = {text: held for text, held in mine.items() if held.record.value.state is TxnState.OPEN}
            rust = {text for text, held in live.items() if held.record.value.lease_ms == _RUST_LEASE_MS}
            for text, held in live.items():
                others = len(rust) - 1 if text in rust else 0
                allowed_ms = held.lease_ends_ms + others * _RUST_LEASE_MS + limits.TXN_GRACE_MS
                if allowed_ms <= now_ms:
                    due.append((StreamName.of(owner), text, held))
                else:
                    self.due_ms = min(self.due_ms, allowed_ms)
        return due


Cuts = Mapping[str, dict[int, int]]  # by transaction
_NEWEST, _OPENED = "completed/newest", "completed/opened"  # the number of a table, and when it was made


class Finished:
    def __init__(self, metadata: ControllerMetadata, clock: Runtime) -> None:
        self._metadata = metadata
        self._clock = clock
        self._changing = asyncio.Lock()
        self._newest: int | None = None  # None until read
        self._opened_ms = 0  # on the monotonic clock

    async def add(
        self,
        name: StreamName,
        stream: StreamRecord | None,
        texts: Sequence[str],
        state: TxnState,
        cuts: Cuts | None = None,
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

    async def newest(self, name: StreamName, stream: StreamRecord) -> list[tuple[str, TxnState]]:
        found: list[tuple[str, TxnState]] = []
        for number in await self._kept():
            mine = [
                (key.rpartition("/")[2], record)
                async for key, record in self._metadata.completed(number).scan(f"{name.key}/")
                if record.value.stream_created_ms in (0, stream.created_ms)
            ]
            mine.sort(key=lambda item: item[1].version, reverse=True)  # versions grow with each change of a table
            found += [(text, record.value.state) for text, record in mine]
            if len(found) >= limits.TXN_COMPLETED_LIST:
                break
        return found[: limits.TXN_COMPLETED_LIST]

    async def _kept(self) -> range:
        async with self._changing:
            newest = await self._load()
        return range(newest, max(newest - limits.TXN_COMPLETED_TABLES, 0), -1)

    async def _load(self) -> int:
        if self._newest is None:
            numbers = await self._metadata.numbers.get_all([_NEWEST, _OPENED])
            newest, opened = (found.value.value if found is not None else None for found in numbers)
            age_ms = limits.TXN_COMPLETED_KEEP_MS  # where there is none, a new one is due
            if opened is not None:
                age_ms = min(max(self._clock.now_ms() - opened, 0), limits.TXN_COMPLETED_KEEP_MS)
            self._opened_ms = self._clock.monotonic_ms() - age_ms
            self._newest = newest or 0
        return self._newest

    async def _open(self) -> int:
        """The number of the table for what finishes now; makes it if one is due, and drops those no longer kept."""
        async with self._changing:
            newest = await self._load()
            now = self._clock.monotonic_ms()
            if now - self._opened_ms < limits.TXN_COMPLETED_KEEP_MS:
                return newest
            opened = newest + 1
            await self._metadata.completed(opened).create()
            if (last := opened - limits.TXN_COMPLETED_TABLES) > 0:  # first, so that a crash doesn't leave it
                await self._metadata.completed(last).drop()
            await self._metadata.numbers.put_all(
                [(_NEWEST, Number(opened), ANY_VERSION), (_OPENED, Number(self._clock.now_ms()), ANY_VERSION)]
            )
            self._newest, self._opened_ms = opened, now
            return opened
