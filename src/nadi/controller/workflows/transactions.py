"""Transactions from begin to end: leases, pings, the decision to commit or abort, and what is left of them.

An unfinished transaction is one record in one table for all streams, mirrored in memory; each change is
conditional on the record's version. The decision is durable before the reply; segments are merged
(`commit`) or deleted after it. A finished one moves to a table of its own time (`finished`).

    OPEN -> COMMITTING -> COMMITTED
    OPEN -> ABORTING   -> ABORTED        (asked for, lease run out, or the stream is being sealed)

Leases run by the monotonic clock, so nothing that happens to the wall clock ends one or keeps one alive. That clock
means nothing to the next process: a start gives each open transaction its whole lease, for its client couldn't ping
meanwhile, within what it had left of the longest time that any may take when it was pinged last.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from nadi.controller.engine.finished import Finished
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import copy_id
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import (
    Number,
    SegmentRange,
    Stream,
    StreamState,
    Transaction,
    TxnState,
)
from nadi.controller.state.segments import together
from nadi.controller.state.store import ABSENT, Versioned, freeing_room
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    NotFoundError,
    StreamSealedError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.limits import (
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


class LeaseTooLargeError(InvalidArgumentError):
    """The lease asked for is over the limit."""


class ExecutionTimeExceededError(InvalidArgumentError):
    """The transaction would live longer than any may."""


class Begun(NamedTuple):
    txn_id: int
    ranges: tuple[SegmentRange, ...]


_DEADLINES_MORE = 1_000  # than twice the open transactions, before those of others are dropped


@dataclass(slots=True)
class _Live:
    """An unfinished transaction. Its ends are on the monotonic clock: of its lease, and of the longest time that any
    may take. queued: it has its one entry among the deadlines."""

    record: Versioned[Transaction]
    lease_ends_ms: int
    life_ends_ms: int
    queued: bool = False


def txn_text(txn_id: int) -> str:
    """A transaction id as it stands in keys and segment names: 32 hex digits."""
    return f"{txn_id:032x}"


class Transactions:
    def __init__(self, flow: Workflows, commit_pass: Callable[[Transactions, StreamName], Awaitable[None]]):
        self._flow = flow
        self._table = flow.metadata.transactions
        self._commit_pass = commit_pass
        self._finished = Finished(flow.metadata, flow.clock)
        self._live: dict[str, dict[str, _Live]] = {}
        self._deadlines: list[tuple[int, str, str]] = []  # (monotonic time, stream key, id), a heap
        self._deadlines_most = _DEADLINES_MORE
        self._ids: tuple[int, int] = (0, 0)  # next, end of the block
        self._ids_lock = asyncio.Lock()
        self._commit_number = 0
        self._committing: set[str] = set()

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
        """Take the record as the newest. An open one has its lease from now on: this is a begin, a ping or a start."""
        now, stored = self._flow.clock.monotonic_ms(), record.value
        mine = self._live.setdefault(name.key, {})
        held = mine.get(text)
        if held is None:
            held = mine[text] = _Live(record, now, now + _life_left_ms(stored))
        elif held.record.version > record.version:
            return  # somebody else was quicker
        held.record = record
        if stored.state is not TxnState.OPEN:
            return
        held.lease_ends_ms = min(now + max(stored.lease_ms, 0), held.life_ends_ms)
        if not held.queued:
            held.queued = True
            heapq.heappush(self._deadlines, (held.lease_ends_ms, name.key, text))
            if len(self._deadlines) > self._deadlines_most:
                self._forget_deadlines()

    def _forget_deadlines(self) -> None:
        """Drop those of transactions that have ended: a lease may last a week."""
        open_ones = [
            (held, owner, text)
            for owner, mine in self._live.items()
            for text, held in mine.items()
            if held.record.value.state is TxnState.OPEN
        ]
        self._deadlines = [(held.lease_ends_ms, owner, text) for held, owner, text in open_ones]
        heapq.heapify(self._deadlines)
        self._deadlines_most = _DEADLINES_MORE + 2 * len(self._deadlines)

    # --- questions -------------------------------------------------------------------------------

    @property
    def unfinished_count(self) -> int:
        return sum(map(len, self._live.values()))

    def live(self, name: StreamName, state: TxnState) -> dict[str, Transaction]:
        """The stream's unfinished transactions in that state, by id text."""
        mine = self._live.get(name.key, {})
        return {text: held.record.value for text, held in mine.items() if held.record.value.state is state}

    def _find(self, name: StreamName, text: str) -> _Live | None:
        return self._live.get(name.key, {}).get(text)

    def _state(self, name: StreamName, text: str) -> TxnState | None:
        held = self._find(name, text)
        return held.record.value.state if held else None

    async def state(self, name: StreamName, txn_id: int) -> TxnState:
        """The state of a transaction; TransactionNotFoundError if it is unknown or long finished."""
        text = txn_text(txn_id)
        live = self._state(name, text)
        if live is not None:
            return live
        found = await self._finished.find(name, text)
        if found is not None:
            return found.state
        live = self._state(name, text)
        if live is not None:
            return live
        raise TransactionNotFoundError(text)

    async def completed(self, name: StreamName) -> list[tuple[int, TxnState]]:
        """The stream's most recently finished transactions, newest first."""
        stream = (await self._flow.metadata.stream(name)).value
        return [(int(text, 16), state) for text, state in await self._finished.newest(name, stream)]

    # --- changes ---------------------------------------------------------------------------------

    async def _change(self, name: StreamName, text: str, change: Callable[[Transaction], Transaction]) -> Transaction:
        """Apply `change` to the live record, again on its newest version if somebody else was first."""
        for _ in range(_TRIES):
            held = self._find(name, text)
            if held is None:
                raise TransactionNotFoundError(text)
            before = held.record
            changed = change(before.value)
            if changed == before.value:
                return changed
            try:
                stored = await self._table.put(f"{name.key}/{text}", changed, before.version)
            except ConditionFailedError:
                found = await self._table.get(f"{name.key}/{text}", fresh=True)
                still = self._find(name, text)
                if found is None:
                    self._live.get(name.key, {}).pop(text, None)
                elif still is not None and found.version > still.record.version:
                    self._hold(name, text, found)
                continue
            self._hold(name, text, stored)
            return changed
        raise ConditionFailedError(f"transaction {text} is contended: try again")

    async def ping(self, name: StreamName, txn_id: int, lease_ms: int) -> TxnState:
        """Extend the lease of an open transaction; gives its state."""
        if lease_ms > TXN_LEASE_MAX_MS:
            raise LeaseTooLargeError(f"a lease of {lease_ms:,} ms is over {TXN_LEASE_MAX_MS:,} ms")
        now, held = self._flow.clock.now_ms(), self._find(name, txn_text(txn_id))
        left_ms = held.life_ends_ms - self._flow.clock.monotonic_ms() if held is not None else 0

        def extend(held: Transaction) -> Transaction:
            if held.state is not TxnState.OPEN:
                return held
            if lease_ms > left_ms:
                raise ExecutionTimeExceededError(f"transaction {txn_text(txn_id)} is as old as any may get")
            return replace(held, lease_ms=lease_ms, expires_ms=now + max(lease_ms, 0), max_ms=now + left_ms)

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
        held = self._find(name, text)
        if held is None:
            return
        epoch = held.record.value.epoch
        try:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.reference == epoch:
                segments: Sequence[SegmentRange] = stream.segments
            else:
                segments = (await self._flow.metadata.history(name)).epoch(epoch)
        except NotFoundError:
            segments = ()  # the stream is gone, and its segments with it
        await together(
            self._flow.segments.delete(transaction_segment_name(name.segment(copy_id(s.id, epoch)), int(text, 16)))
            for s in segments
        )
        await self.complete(name, [text], TxnState.ABORTED)

    async def complete(self, name: StreamName, texts: Sequence[str], state: TxnState) -> None:
        """Move transactions to the finished ones."""
        stream = await self._flow.metadata.find_stream(name)
        await self._finished.add(name, stream.value if stream is not None else None, texts, state)
        await self._table.remove([f"{name.key}/{text}" for text in texts])
        mine = self._live.get(name.key, {})
        for text in texts:
            mine.pop(text, None)
        if not mine:
            self._live.pop(name.key, None)

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
        """Load the unfinished transactions."""
        async for key, record in self._table.scan():
            owner, _, text = key.rpartition("/")
            scope, stream = owner.split("/")
            self._commit_number = max(self._commit_number, record.value.commit_number)
            self._hold(StreamName(scope, stream), text, record)

    def resume(self) -> None:
        """Finish what is decided, in the background."""
        for owner, held in list(self._live.items()):
            scope, stream = owner.split("/")
            name = StreamName(scope, stream)
            for text, live in held.items():
                if live.record.value.state is TxnState.COMMITTING:
                    self.kick(name)
                elif live.record.value.state is TxnState.ABORTING:
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
        now = self._flow.clock.monotonic_ms()
        while self._deadlines and self._deadlines[0][0] + TXN_GRACE_MS <= now:
            _, owner, text = heapq.heappop(self._deadlines)
            held = self._live.get(owner, {}).get(text)
            if held is None or held.record.value.state is not TxnState.OPEN:
                continue
            scope, stream = owner.split("/")
            name = StreamName(scope, stream)
            ends = held.lease_ends_ms
            allowed = ends + self._grace_ms(name, held.record.value)
            if now < allowed:
                heapq.heappush(self._deadlines, (max(allowed - TXN_GRACE_MS, now + 1), owner, text))
                continue

            def due(txn: Transaction, held: _Live = held, ends: int = ends) -> Transaction:
                return _aborting(txn) if held.lease_ends_ms == ends else txn  # else pinged meanwhile

            try:
                changed = await self._change(name, text, due)
            except TransactionNotFoundError:
                continue
            except BaseException:
                heapq.heappush(self._deadlines, (now, owner, text))
                raise
            if changed.state is TxnState.OPEN:
                heapq.heappush(self._deadlines, (held.lease_ends_ms, owner, text))
            elif changed.state is TxnState.ABORTING:
                log.info("transaction %s of %s has timed out", text, name)
                self._spawn_abort(name, text)

    def _grace_ms(self, name: StreamName, held: Transaction) -> int:
        if held.lease_ms != _RUST_LEASE_MS:
            return TXN_GRACE_MS
        others = sum(
            1
            for live in self._live.get(name.key, {}).values()
            if live.record.value.state is TxnState.OPEN and live.record.value.lease_ms == _RUST_LEASE_MS
        )
        return max(others - 1, 0) * _RUST_LEASE_MS + TXN_GRACE_MS


def _aborting(held: Transaction) -> Transaction:
    return replace(held, state=TxnState.ABORTING) if held.state is TxnState.OPEN else held


def _life_left_ms(stored: Transaction) -> int:
    """How much longer it might have been kept open when it was begun or pinged last: never less than its lease then."""
    lease_ms = max(stored.lease_ms, 0)
    pinged_ms = stored.expires_ms - lease_ms
    return min(max(stored.max_ms - pinged_ms, lease_ms), TXN_MAX_EXECUTION_MS)


def _check_open(name: StreamName, stream: Stream) -> None:
    if stream.state is not StreamState.ACTIVE:
        raise StreamSealedError(name.key)
