"""Transactions from begin to end: leases, pings, the decision to commit or abort, and what is left of them.

An unfinished transaction is one record in one table for all streams, mirrored in memory; each change is
conditional on the record's version. The decision is durable before the reply; segments are merged
(`commit`) or deleted after it. A finished one moves to the table of its day, and is forgotten a day later.

    OPEN -> COMMITTING -> COMMITTED
    OPEN -> ABORTING   -> ABORTED        (asked for, lease run out, or the stream is being sealed)
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nadi.controller.history import copy_id
from nadi.controller.metadata import StreamName
from nadi.controller.records import (
    CompletedTransaction,
    Number,
    SegmentRange,
    Stream,
    StreamState,
    Transaction,
    TxnState,
)
from nadi.controller.segments import together
from nadi.controller.store import ABSENT, ANY_VERSION, Versioned, freeing_room
from nadi.controller.workflows import Workflows
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    NotFoundError,
    SegmentNotFoundError,
    StreamSealedError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.limits import (
    TXN_COMPLETED_KEEP_MS,
    TXN_COMPLETED_LIST,
    TXN_GRACE_MS,
    TXN_ID_BLOCK,
    TXN_LEASE_MAX_MS,
    TXN_LEASE_MIN_MS,
    TXN_MAX_EXECUTION_MS,
    TXN_TICK_MS,
)
from nadi.naming import transaction_segment_name

log = logging.getLogger(__name__)

# The lease that the Rust and Python clients always ask for. Their pinger takes up one transaction a
# round, so of k open ones the last is pinged only after k leases.
_RUST_LEASE_MS = 90_000
_TRIES = 5
_DEADLINES_MORE = 1_000  # than twice the open transactions, before those of others are dropped


class LeaseTooLargeError(InvalidArgumentError):
    """The lease asked for is over the limit."""


class ExecutionTimeExceededError(InvalidArgumentError):
    """The transaction would live longer than any may."""


class Begun(NamedTuple):
    txn_id: int
    ranges: tuple[SegmentRange, ...]


def txn_text(txn_id: int) -> str:
    """A transaction id as it stands in keys and segment names: 32 hex digits."""
    return f"{txn_id:032x}"


class Transactions:
    def __init__(self, flow: Workflows, commit_pass: Callable[[Transactions, StreamName], Awaitable[None]]):
        self._flow = flow
        self._table = flow.metadata.transactions
        self._commit_pass = commit_pass
        self._live: dict[str, dict[str, Versioned[Transaction]]] = {}
        self._deadlines: list[tuple[int, str, str]] = []  # (time, stream key, id), a heap
        self._deadlines_most = _DEADLINES_MORE
        self._ids: tuple[int, int] = (0, 0)  # next, end of the block
        self._ids_lock = asyncio.Lock()
        self._commit_number = 0
        self._committing: set[str] = set()
        self._days: set[int] = set()

    # --- begin -----------------------------------------------------------------------------------

    async def create(self, name: StreamName, lease_ms: int) -> Begun:
        """Begin a transaction: when this returns, its segments exist."""
        if not TXN_LEASE_MIN_MS <= lease_ms <= TXN_LEASE_MAX_MS:
            raise InvalidArgumentError(
                f"a lease of {lease_ms:,} ms is outside {TXN_LEASE_MIN_MS:,} to {TXN_LEASE_MAX_MS:,} ms"
            )
        stream = (await self._flow.metadata.stream(name)).value
        _check_open(name, stream)
        txn_id = stream.reference << 96 | await self._next_number()
        now = self._flow.clock.now_ms()
        record = Transaction(TxnState.OPEN, stream.reference, now, lease_ms, now + lease_ms, now + TXN_MAX_EXECUTION_MS)
        text = txn_text(txn_id)
        self._hold(name, text, await self._table.put(f"{name.key}/{text}", record, ABSENT))
        ranges = tuple(SegmentRange(copy_id(s.id, stream.reference), s.low, s.high) for s in stream.segments)
        try:
            await together(
                self._flow.segments.create_segment(
                    transaction_segment_name(name.segment(s.id), txn_id), stream.config, fixed=True
                )
                for s in ranges
            )
            # The stream may have been sealed meanwhile: either that saw this transaction or this sees that.
            _check_open(name, (await self._flow.metadata.stream(name)).value)
            if self._state(name, text) is not TxnState.OPEN:
                raise StreamSealedError(name.key)
        except BaseException:
            with contextlib.suppress(ClosedError):  # nobody will learn its id: don't let it wait for its lease
                self._flow.tasks.spawn(self._give_up(name, txn_id))
            raise
        return Begun(txn_id, ranges)

    async def _give_up(self, name: StreamName, txn_id: int) -> None:
        with contextlib.suppress(NadiError):
            await self.abort(name, txn_id)

    async def _next_number(self) -> int:
        async with self._ids_lock:
            number, end = self._ids
            if number == end:
                for _ in range(_TRIES):
                    found = await self._flow.metadata.numbers.get("transaction", fresh=True)
                    number = found.value.value if found else 1
                    version = found.version if found else ABSENT
                    end = number + TXN_ID_BLOCK
                    try:
                        await self._flow.metadata.numbers.put("transaction", Number(end), version)
                        break
                    except ConditionFailedError:
                        continue
                else:
                    raise ConditionFailedError("transaction numbers are contended: try again")
            self._ids = (number + 1, end)
            return number

    def _hold(self, name: StreamName, text: str, record: Versioned[Transaction]) -> None:
        self._live.setdefault(name.key, {})[text] = record
        if record.value.state is TxnState.OPEN:
            heapq.heappush(self._deadlines, (record.value.expires_ms, name.key, text))
            if len(self._deadlines) > self._deadlines_most:
                self._forget_deadlines()

    def _forget_deadlines(self) -> None:
        """Drop those of transactions that have ended, or were pinged since: a lease may last a week."""
        self._deadlines = [
            (record.value.expires_ms, owner, text)
            for owner, held in self._live.items()
            for text, record in held.items()
            if record.value.state is TxnState.OPEN
        ]
        heapq.heapify(self._deadlines)
        self._deadlines_most = _DEADLINES_MORE + 2 * len(self._deadlines)

    # --- questions -------------------------------------------------------------------------------

    @property
    def unfinished_count(self) -> int:
        return sum(map(len, self._live.values()))

    def live(self, name: StreamName, state: TxnState) -> dict[str, Transaction]:
        """The stream's unfinished transactions in that state, by id text."""
        return {t: r.value for t, r in self._live.get(name.key, {}).items() if r.value.state is state}

    def _state(self, name: StreamName, text: str) -> TxnState | None:
        record = self._live.get(name.key, {}).get(text)
        return record.value.state if record else None

    async def state(self, name: StreamName, txn_id: int) -> TxnState:
        """The state of a transaction; TransactionNotFoundError if it is unknown or long finished."""
        text = txn_text(txn_id)
        live = self._state(name, text)
        if live is not None:
            return live
        now = self._flow.clock.now_ms()
        today = self._flow.metadata.day(now)
        for day in (today, today - 1):
            try:
                found = await self._flow.metadata.completed(day).get(f"{name.key}/{text}")
            except SegmentNotFoundError:
                continue
            if found is not None and found.value.finished_ms > now - TXN_COMPLETED_KEEP_MS:
                return found.value.state
        live = self._state(name, text)
        if live is not None:
            return live
        raise TransactionNotFoundError(text)

    async def completed(self, name: StreamName) -> list[tuple[int, TxnState]]:
        """The stream's most recently finished transactions, newest first."""
        stream = (await self._flow.metadata.stream(name)).value
        now = self._flow.clock.now_ms()
        since = max(now - TXN_COMPLETED_KEEP_MS, stream.created_ms)
        today = self._flow.metadata.day(now)
        found: list[tuple[int, int, TxnState]] = []  # a heap of the newest ones
        for day in (today, today - 1):
            async for key, record in self._flow.metadata.completed(day).scan(f"{name.key}/"):
                if record.value.finished_ms < since:
                    continue
                heapq.heappush(found, (record.value.finished_ms, int(key.rpartition("/")[2], 16), record.value.state))
                if len(found) > TXN_COMPLETED_LIST:
                    heapq.heappop(found)
        return [(txn_id, state) for _, txn_id, state in sorted(found, reverse=True)]

    # --- changes ---------------------------------------------------------------------------------

    async def _change(self, name: StreamName, text: str, change: Callable[[Transaction], Transaction]) -> Transaction:
        """Apply `change` to the live record, again on its newest version if somebody else was first."""
        for _ in range(_TRIES):
            held = self._live.get(name.key, {}).get(text)
            if held is None:
                raise TransactionNotFoundError(text)
            changed = change(held.value)
            if changed == held.value:
                return changed
            try:
                stored = await self._table.put(f"{name.key}/{text}", changed, held.version)
            except ConditionFailedError:
                found = await self._table.get(f"{name.key}/{text}", fresh=True)
                mine = self._live.get(name.key, {})
                if found is None:
                    mine.pop(text, None)
                elif text in mine and found.version > mine[text].version:
                    mine[text] = found
                continue
            self._hold(name, text, stored)
            return changed
        raise ConditionFailedError(f"transaction {text} is contended: try again")

    async def ping(self, name: StreamName, txn_id: int, lease_ms: int) -> TxnState:
        """Extend the lease of an open transaction; gives its state."""
        if lease_ms > TXN_LEASE_MAX_MS:
            raise LeaseTooLargeError(f"a lease of {lease_ms:,} ms is over {TXN_LEASE_MAX_MS:,} ms")
        now = self._flow.clock.now_ms()

        def extend(held: Transaction) -> Transaction:
            if held.state is not TxnState.OPEN:
                return held
            if now + lease_ms > held.max_ms:
                raise ExecutionTimeExceededError(f"transaction {txn_text(txn_id)} is as old as any may get")
            return replace(held, lease_ms=lease_ms, expires_ms=now + max(lease_ms, 0))

        return await self._decide(name, txn_id, extend)

    async def commit(self, name: StreamName, txn_id: int, writer_id: str, commit_time: int | None) -> None:
        """Decide to commit; durable when this returns, merged soon after."""
        self._commit_number += 1
        number = self._commit_number

        def decide(held: Transaction) -> Transaction:
            if held.state is not TxnState.OPEN:
                return held
            return replace(
                held,
                state=TxnState.COMMITTING,
                writer_id=writer_id,
                commit_time=commit_time,
                commit_number=number,
            )

        state = await self._decide(name, txn_id, decide)
        if state in (TxnState.ABORTING, TxnState.ABORTED):
            raise TransactionFailedError(f"transaction {txn_text(txn_id)} was aborted or has timed out")
        if state is TxnState.COMMITTING:
            self.kick(name)

    async def abort(self, name: StreamName, txn_id: int) -> None:
        with freeing_room():
            state = await self._decide(name, txn_id, _aborting)
        if state in (TxnState.COMMITTING, TxnState.COMMITTED):
            raise TransactionFailedError(f"transaction {txn_text(txn_id)} is committed: too late to abort it")
        if state is TxnState.ABORTING:
            self._spawn_abort(name, txn_text(txn_id))

    async def _decide(self, name: StreamName, txn_id: int, change: Callable[[Transaction], Transaction]) -> TxnState:
        try:
            return (await self._change(name, txn_text(txn_id), change)).state
        except TransactionNotFoundError:
            return await self.state(name, txn_id)

    # --- ends ------------------------------------------------------------------------------------

    def kick(self, name: StreamName) -> None:
        """See to it that the stream's committing transactions are merged soon."""
        if name.key in self._committing:
            return
        self._committing.add(name.key)
        self._flow.tasks.spawn(self._commit(name))

    async def _commit(self, name: StreamName) -> None:
        try:
            async with self._flow.lock(name):
                self._committing.discard(name.key)  # later ones start another pass
                with freeing_room():  # it takes next to none, and its transactions' segments go
                    await self._flow.persist(f"commit in {name}", lambda: self._commit_pass(self, name), locked=name)
        finally:
            self._committing.discard(name.key)

    def _spawn_abort(self, name: StreamName, text: str) -> None:
        async def abort() -> None:
            with freeing_room():
                await self._flow.persist(f"abort of {text} in {name}", lambda: self._finish_abort(name, text))

        self._flow.tasks.spawn(abort())

    async def _finish_abort(self, name: StreamName, text: str) -> None:
        held = self._live.get(name.key, {}).get(text)
        if held is None:
            return
        try:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.reference == held.value.epoch:
                segments: Sequence[SegmentRange] = stream.segments
            else:
                segments = (await self._flow.metadata.history(name)).epoch(held.value.epoch)
        except NotFoundError:
            segments = ()  # the stream is gone, and its segments with it
        await together(
            self._flow.segments.delete(
                transaction_segment_name(name.segment(copy_id(s.id, held.value.epoch)), int(text, 16))
            )
            for s in segments
        )
        await self.complete(name, [text], TxnState.ABORTED)

    async def complete(self, name: StreamName, texts: Sequence[str], state: TxnState) -> None:
        """Move transactions to the finished ones."""
        now = self._flow.clock.now_ms()
        day = self._flow.metadata.day(now)
        await self._open_day(day)
        done = CompletedTransaction(state, now)
        keys = [f"{name.key}/{text}" for text in texts]
        await self._flow.metadata.completed(day).put_all([(key, done, ANY_VERSION) for key in keys])
        await self._table.remove(keys)
        mine = self._live.get(name.key, {})
        for text in texts:
            mine.pop(text, None)
        if not mine:
            self._live.pop(name.key, None)

    async def _open_day(self, day: int) -> None:
        """Make the table for transactions that finish on `day`, and drop those of days long gone."""
        if day in self._days:
            return
        numbers = self._flow.metadata.numbers
        await self._flow.metadata.completed(day).create()
        oldest = await numbers.get("completed", fresh=True)
        first = oldest.value.value if oldest else day
        for old in range(first, day - 1):
            await self._flow.metadata.completed(old).drop()
        await numbers.put("completed", Number(min(max(first, day - 1), day)), ANY_VERSION)
        self._days = {day}

    async def end_all(self, name: StreamName) -> None:
        """Before the stream is sealed: abort what is open, and finish what is decided. The caller holds
        the stream's lock."""
        for text in self.live(name, TxnState.OPEN):
            try:
                await self._change(name, text, _aborting)
            except TransactionNotFoundError:
                continue
        for text in self.live(name, TxnState.ABORTING):
            await self._finish_abort(name, text)
        await self._commit_pass(self, name)

    # --- leases ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the unfinished transactions. An open one gets a fresh lease: its client couldn't ping while
        nobody listened."""
        now = self._flow.clock.now_ms()
        async for key, record in self._table.scan():
            owner, _, text = key.rpartition("/")
            scope, stream = owner.split("/")
            name = StreamName(scope, stream)
            held = record.value
            self._commit_number = max(self._commit_number, held.commit_number)
            self._live.setdefault(owner, {})[text] = record
            if held.state is TxnState.OPEN:
                expires = min(max(held.expires_ms, now + held.lease_ms), max(held.max_ms, now))
                fresh = Versioned(replace(held, expires_ms=expires), record.version)
                self._hold(name, text, fresh)

    def resume(self) -> None:
        """Finish what is decided, in the background."""
        for owner, held in list(self._live.items()):
            scope, stream = owner.split("/")
            name = StreamName(scope, stream)
            for text, record in held.items():
                if record.value.state is TxnState.COMMITTING:
                    self.kick(name)
                elif record.value.state is TxnState.ABORTING:
                    self._spawn_abort(name, text)

    async def expire(self) -> None:
        """Abort transactions whose lease has run out, for ever."""
        while True:
            await self._flow.clock.sleep(TXN_TICK_MS / 1000)
            try:
                await self._expire_due()
            except Exception:
                log.exception("expired transactions could not be aborted; that is tried again")

    async def _expire_due(self) -> None:
        now = self._flow.clock.now_ms()
        while self._deadlines and self._deadlines[0][0] + TXN_GRACE_MS <= now:
            _, owner, text = heapq.heappop(self._deadlines)
            held = self._live.get(owner, {}).get(text)
            if held is None or held.value.state is not TxnState.OPEN:
                continue
            scope, stream = owner.split("/")
            name = StreamName(scope, stream)
            allowed = held.value.expires_ms + self._grace_ms(name, held.value)
            if now < allowed:
                heapq.heappush(self._deadlines, (max(allowed - TXN_GRACE_MS, now + 1), owner, text))
                continue
            expired = held.value.expires_ms

            def due(held: Transaction, expired: int = expired) -> Transaction:
                return _aborting(held) if held.expires_ms == expired else held  # else pinged meanwhile

            try:
                changed = await self._change(name, text, due)
            except TransactionNotFoundError:
                continue
            except BaseException:
                heapq.heappush(self._deadlines, (now, owner, text))
                raise
            if changed.state is TxnState.ABORTING:
                log.info("transaction %s of %s has timed out", text, name)
                self._spawn_abort(name, text)

    def _grace_ms(self, name: StreamName, held: Transaction) -> int:
        if held.lease_ms != _RUST_LEASE_MS:
            return TXN_GRACE_MS
        others = sum(
            1
            for record in self._live.get(name.key, {}).values()
            if record.value.state is TxnState.OPEN and record.value.lease_ms == _RUST_LEASE_MS
        )
        return max(others - 1, 0) * _RUST_LEASE_MS + TXN_GRACE_MS


def _aborting(held: Transaction) -> Transaction:
    return replace(held, state=TxnState.ABORTING) if held.state is TxnState.OPEN else held


def _check_open(name: StreamName, stream: Stream) -> None:
    if stream.state is not StreamState.ACTIVE:
        raise StreamSealedError(name.key)
