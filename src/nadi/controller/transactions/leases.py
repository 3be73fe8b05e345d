"""Unfinished and finished transactions: leases in memory, and outcomes in tables.

Leases run on the monotonic clock, so setting the wall clock neither ends nor prolongs one. A restart renews each open
transaction's full lease, within what remained of its maximum lifetime at its last ping.

Outcomes are kept for at least a day, for clients that ask or commit again: each table has one day's outcomes, by the
monotonic clock, and only the newest few tables are kept. After a restart the age of the newest table is taken from the
wall clock, which may close one table too early; that drops nothing less than two tables old.
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

# The lease that the Rust and Python clients always request. Their pinger handles one transaction per round, so with k
# open ones the last is pinged only after k leases.
_RUST_LEASE_MS = 90_000


@dataclass(slots=True)
class Live:
    """An unfinished transaction. The ends of its lease and its maximum lifetime are on the monotonic clock."""

    record: Versioned[TransactionRecord]
    lease_ends_ms: int
    life_ends_ms: int


class Leases:
    """All unfinished transactions; `len` is their number. due_ms: no lease expires before that."""

    def __init__(self, clock: Runtime) -> None:
        self._clock = clock
        self._live: dict[str, dict[str, Live]] = {}
        self.due_ms = 0

    def __len__(self) -> int:
        return sum(map(len, self._live.values()))

    def all(self) -> list[tuple[StreamName, str, Live]]:
        return [
            (StreamName.of(owner), text, live)
            for owner, transactions in self._live.items()
            for text, live in transactions.items()
        ]

    def of(self, name: StreamName) -> Mapping[str, Live]:
        return self._live.get(name.key, {})

    def find(self, name: StreamName, text: str) -> Live | None:
        return self.of(name).get(text)

    def hold(self, name: StreamName, text: str, record: Versioned[TransactionRecord]) -> None:
        """Adopt the record if it is newer. An open one's lease restarts: it was just created, pinged or loaded."""
        now, stored, lease_ms = self._clock.monotonic_ms(), record.value, max(record.value.lease_ms, 0)
        transactions = self._live.setdefault(name.key, {})
        live = transactions.get(text)
        if live is None:  # its remaining lifetime when created or last pinged is at least its lease
            left_ms = max(stored.max_ms - (stored.expires_ms - lease_ms), lease_ms)
            live = transactions[text] = Live(record, now, now + min(left_ms, limits.TXN_MAX_EXECUTION_MS))
        elif live.record.version > record.version:
            return  # superseded
        live.record = record
        if stored.state is TxnState.OPEN:
            live.lease_ends_ms = min(now + lease_ms, live.life_ends_ms)
            self.due_ms = min(self.due_ms, live.lease_ends_ms + limits.TXN_GRACE_MS)

    def end(self, name: StreamName, texts: Iterable[str]) -> None:
        transactions = self._live.get(name.key, {})
        for text in texts:
            transactions.pop(text, None)
        if not transactions:
            self._live.pop(name.key, None)

    def take_due(self, now_ms: int) -> list[tuple[StreamName, str, Live]]:
        """Return the open transactions with expired leases; the caller resets `due_ms` if it fails to end one."""
        due: list[tuple[StreamName, str, Live]] = []
        if now_ms < self.due_ms:
            return due
        self.due_ms = now_ms + limits.TXN_MAX_EXECUTION_MS
        for owner, transactions in self._live.items():
            open_leases = {
                text: entry for text, entry in transactions.items() if entry.record.value.state is TxnState.OPEN
            }
            rust = {text for text, entry in open_leases.items() if entry.record.value.lease_ms == _RUST_LEASE_MS}
            for text, entry in open_leases.items():
                others = len(rust) - 1 if text in rust else 0
                allowed_ms = entry.lease_ends_ms + others * _RUST_LEASE_MS + limits.TXN_GRACE_MS
                if allowed_ms <= now_ms:
                    due.append((StreamName.of(owner), text, entry))
                else:
                    self.due_ms = min(self.due_ms, allowed_ms)
        return due


Cuts = Mapping[str, dict[int, int]]  # by transaction
_NEWEST, _OPENED = "completed/newest", "completed/opened"  # number of the newest table, and its creation time


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
        """Record the outcome and the cut of each transaction; `stream` is None if it was deleted."""
        number = await self._open()
        created_ms = stream.created_ms if stream is not None else 0
        done = {
            text: CompletedTransaction(state, self._clock.now_ms(), created_ms, cuts.get(text) if cuts else None)
            for text in texts
        }
        table = self._metadata.completed(number)
        await table.put_all([(f"{name.key}/{text}", outcome, ANY_VERSION) for text, outcome in done.items()])

    async def find(self, name: StreamName, text: str) -> CompletedTransaction | None:
        """Return the outcome, if still known."""
        for number in await self._retained():
            try:
                record = await self._metadata.completed(number).get(f"{name.key}/{text}")
            except SegmentNotFoundError:
                continue
            if record is not None:
                return record.value
        return None

    async def newest(self, name: StreamName, stream: StreamRecord) -> list[tuple[str, TxnState]]:
        outcomes: list[tuple[str, TxnState]] = []
        for number in await self._retained():
            records = [
                (key.rpartition("/")[2], record)
                async for key, record in self._metadata.completed(number).scan(f"{name.key}/")
                if record.value.stream_created_ms in (0, stream.created_ms)
            ]
            records.sort(key=lambda item: item[1].version, reverse=True)  # versions grow with each change of a table
            outcomes += [(text, record.value.state) for text, record in records]
            if len(outcomes) >= limits.TXN_COMPLETED_LIST:
                break
        return outcomes[: limits.TXN_COMPLETED_LIST]

    async def _retained(self) -> range:
        async with self._changing:
            newest = await self._load()
        return range(newest, max(newest - limits.TXN_COMPLETED_TABLES, 0), -1)

    async def _load(self) -> int:
        if self._newest is None:
            numbers = await self._metadata.numbers.get_all([_NEWEST, _OPENED])
            newest, opened = (number.value.value if number is not None else None for number in numbers)
            age_ms = limits.TXN_COMPLETED_KEEP_MS  # without a table, a new one is due
            if opened is not None:
                age_ms = min(max(self._clock.now_ms() - opened, 0), limits.TXN_COMPLETED_KEEP_MS)
            self._opened_ms = self._clock.monotonic_ms() - age_ms
            self._newest = newest or 0
        return self._newest

    async def _open(self) -> int:
        """Return the number of the current table; creates one if due, and drops those no longer kept."""
        async with self._changing:
            newest = await self._load()
            now = self._clock.monotonic_ms()
            if now - self._opened_ms < limits.TXN_COMPLETED_KEEP_MS:
                return newest
            opened = newest + 1
            await self._metadata.completed(opened).create()
            if (last := opened - limits.TXN_COMPLETED_TABLES) > 0:  # dropped first, so that a crash doesn't leave it
                await self._metadata.completed(last).delete()
            await self._metadata.numbers.put_all(
                [(_NEWEST, Number(opened), ANY_VERSION), (_OPENED, Number(self._clock.now_ms()), ANY_VERSION)]
            )
            self._newest, self._opened_ms = opened, now
            return opened
