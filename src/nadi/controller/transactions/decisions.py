"""Transactions from start to end: pings, the decision to commit or abort, and what remains of them.

An unfinished transaction is one record in one table for all streams, mirrored in memory (`leases`); each change is
conditional on the record's version. The decision is durable before the reply; segments are merged
(`commit`) or deleted after it. A finished one moves to a table of its own time (`finished`).

    OPEN -> COMMITTING -> COMMITTED
    OPEN -> ABORTING   -> ABORTED        (requested, lease expired, or the stream is being sealed)

Transactions of a stream that are committed together: one change of their table makes all COMMITTING, or none.

They are merged in one batch, each segment's in one command, unless the stream was scaled between their beginnings: then
those of each epoch are. The cut behind which they lie is kept with their outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nadi.backoff import Tries
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import copy_id
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, Number, RollWork, StreamState, Transaction, TxnState
from nadi.controller.state.segments import together
from nadi.controller.state.store import ABSENT, Versioned, freeing_room
from nadi.controller.time.marks import note_commits
from nadi.controller.transactions import commit
from nadi.controller.transactions.leases import Finished, Leases, Live
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    NotFoundError,
    StreamNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_ID_BLOCK, TXN_LEASE_MAX_MS, TXN_LEASE_MIN_MS, TXN_MAX_EXECUTION_MS
from nadi.naming import transaction_segment_name

log = logging.getLogger(__name__)


class LeaseTooLargeError(InvalidArgumentError):
    """The requested lease is over the limit."""


class ExecutionTimeExceededError(InvalidArgumentError):
    """The transaction would live longer than any may."""


class Begun(NamedTuple):
    txn_id: int
    ranges: tuple[EpochSegment, ...]


def txn_text(txn_id: int) -> str:
    """A transaction id as it stands in keys and segment names: 32 hex digits."""
    return f"{txn_id:032x}"


class Transactions:
    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self.table = flow.metadata.transactions
        self.finished = Finished(flow.metadata, flow.clock)
        self.leases = Leases(flow.clock)
        self._ids: tuple[int, int] = (0, 0)  # next, end of the block
        self._ids_lock = asyncio.Lock()
        self._commit_number = 0
        self._committing: set[str] = set()
        self.to_its_end = flow.tasks.to_its_end

    # --- begin -----------------------------------------------------------------------------------

    async def create(self, name: StreamName, lease_ms: int) -> Begun:
        """Start a transaction: when this returns, its segments exist."""
        if not TXN_LEASE_MIN_MS <= lease_ms <= TXN_LEASE_MAX_MS:
            raise InvalidArgumentError(
                f"a lease of {lease_ms:,} ms is outside {TXN_LEASE_MIN_MS:,} to {TXN_LEASE_MAX_MS:,} ms"
            )
        stream = await self._flow.metadata.open_stream(name)
        txn_id = stream.reference << 96 | await self._next_number()
        now = self._flow.clock.now_ms()
        record = Transaction(TxnState.OPEN, stream.reference, now, lease_ms, now + lease_ms, now + TXN_MAX_EXECUTION_MS)
        text = txn_text(txn_id)
        self.leases.hold(name, text, await self.table.put(f"{name.key}/{text}", record, ABSENT))
        ranges = tuple(EpochSegment(copy_id(s.id, stream.reference), s.low, s.high) for s in stream.segments)
        segments = [transaction_segment_name(name.segment(s.id), txn_id) for s in ranges]
        try:
            await together(self._flow.segments.create_segment(s, stream.config, fixed=True) for s in segments)
            # The stream may have been sealed meanwhile: either that saw this transaction or this sees that.
            now_there = await self._flow.metadata.open_stream(name, fresh=True)
            if now_there.created_ms != stream.created_ms:  # another of the name: what is written would go nowhere
                raise StreamNotFoundError(*name)
            if self._state(name, text) is not TxnState.OPEN:  # its lease is over, or the stream is sealed by now
                raise UnavailableError(f"a transaction of {name} ended while it was begun: begin it again")
        except BaseException:
            with contextlib.suppress(ClosedError):  # nobody will learn its id: don't let it wait for its lease
                self._flow.tasks.spawn(self._give_up(name, txn_id, segments))
            raise
        return Begun(txn_id, ranges)

    async def _give_up(self, name: StreamName, txn_id: int, segments: Sequence[str]) -> None:
        with contextlib.suppress(NadiError):
            await self.abort(name, txn_id)
        with freeing_room():  # it may have ended, and its stream too, before they were all there
            delete, what = self._flow.segments.delete, f"abort of {txn_text(txn_id)} in {name}"
            await self._flow.persist(what, lambda: together(delete(segment) for segment in segments))

    async def _next_number(self) -> int:
        async with self._ids_lock:
            number, end = self._ids
            if number == end:
                numbers = self._flow.metadata.numbers
                end = (
                    await numbers.change("transaction", "the number of transactions", _next_block, fresh=True)
                ).value.value
                number = end - TXN_ID_BLOCK
            self._ids = (number + 1, end)
            return number

    # --- questions -------------------------------------------------------------------------------

    @property
    def unfinished_count(self) -> int:
        return len(self.leases)

    def live(self, name: StreamName, state: TxnState) -> dict[str, Transaction]:
        """The stream's unfinished transactions in that state, by id text."""
        mine = self.leases.of(name).items()
        return {text: held.record.value for text, held in mine if held.record.value.state is state}

    def _state(self, name: StreamName, text: str) -> TxnState | None:
        held = self.leases.find(name, text)
        return held.record.value.state if held else None

    async def state(self, name: StreamName, txn_id: int) -> TxnState:
        """The state of a transaction; TransactionNotFoundError if it is unknown or long finished."""
        text = txn_text(txn_id)
        live = self._state(name, text)
        if live is not None:
            return live
        found = await self.finished.find(name, text)
        if found is not None:
            return found.state
        live = self._state(name, text)
        if live is not None:
            return live
        raise TransactionNotFoundError(text)

    async def completed(self, name: StreamName) -> list[tuple[int, TxnState]]:
        """The stream's most recently finished transactions, newest first."""
        stream = (await self._flow.metadata.stream(name)).value
        return [(int(text, 16), state) for text, state in await self.finished.newest(name, stream)]

    # --- changes ---------------------------------------------------------------------------------

    async def _change(self, name: StreamName, text: str, change: Callable[[Transaction], Transaction]) -> Transaction:
        """Apply `change` to the live record; if another change was first, apply it again to the newest version. What is
        decided is carried out, also if the caller has gone away, or isn't answered, while it was stored."""
        return await self._flow.tasks.to_its_end(self._changed(name, text, change))

    async def _changed(self, name: StreamName, text: str, change: Callable[[Transaction], Transaction]) -> Transaction:
        held = self.leases.find(name, text)
        if held is None:
            raise TransactionNotFoundError(text)
        before = held.record

        async def changed(found: Transaction | None) -> Transaction:
            if found is None:
                self.leases.end(name, [text])
            if found is None or self.leases.find(name, text) is None:  # it has ended meanwhile
                raise TransactionNotFoundError(text)
            wanted = change(found)
            return found if wanted == found else wanted

        try:
            stored = await self.table.change(f"{name.key}/{text}", f"transaction {text}", changed, known=before)
        except UnavailableError:
            self.learn(name, [text])
            raise
        if stored is not before:
            self.note(name, text, stored)
        return stored.value

    def note(self, name: StreamName, text: str, record: Versioned[Transaction]) -> None:
        """Take in what a transaction's record says; if it is newly known to be decided, by whomever, carry that out."""
        before, state = self._state(name, text), record.value.state
        self.leases.hold(name, text, record)
        if state is before:
            return
        if state is TxnState.COMMITTING:
            self.kick(name)
        elif state is TxnState.ABORTING:
            self._spawn_abort(name, text)

    def learn(self, name: StreamName, texts: Sequence[str]) -> None:
        """Find out in the background what became of a change that got no answer."""

        async def look() -> None:
            found = await self.table.get_all([f"{name.key}/{text}" for text in texts])
            for text, record in zip(texts, found, strict=True):
                if record is None:
                    self.leases.end(name, [text])
                elif self.leases.find(name, text) is not None:
                    self.note(name, text, record)

        with contextlib.suppress(ClosedError):  # the next controller reads all of them
            self._flow.tasks.spawn(self._flow.persist(f"a look at transactions of {name}", look))

    async def ping(self, name: StreamName, txn_id: int, lease_ms: int) -> TxnState:
        """Extend the lease of an open transaction; return its state."""
        if lease_ms > TXN_LEASE_MAX_MS:
            raise LeaseTooLargeError(f"a lease of {lease_ms:,} ms is over {TXN_LEASE_MAX_MS:,} ms")
        now, held = self._flow.clock.now_ms(), self.leases.find(name, txn_text(txn_id))
        left_ms = held.life_ends_ms - self._flow.clock.monotonic_ms() if held is not None else 0

        def extend(held: Transaction) -> Transaction:
            if held.state is not TxnState.OPEN:
                return held
            if lease_ms > left_ms:
                raise ExecutionTimeExceededError(f"transaction {txn_text(txn_id)} is as old as any may get")
            return replace(held, lease_ms=lease_ms, expires_ms=now + max(lease_ms, 0), max_ms=now + left_ms)

        return await self._decide(name, txn_id, extend)

    def take_commit_numbers(self, count: int) -> int:
        """The first of so many, by which what is committed is ordered."""
        first = self._commit_number + 1
        self._commit_number += count
        return first

    async def commit(self, name: StreamName, txn_id: int, writer_id: str, commit_time: int | None) -> None:
        """Decide to commit; durable when this returns, merged soon after."""
        number = self.take_commit_numbers(1)

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

    async def abort(self, name: StreamName, txn_id: int) -> None:
        with freeing_room():
            state = await self._decide(name, txn_id, _aborting)
        if state in (TxnState.COMMITTING, TxnState.COMMITTED):
            raise TransactionFailedError(f"transaction {txn_text(txn_id)} is committed: too late to abort it")

    async def _decide(self, name: StreamName, txn_id: int, change: Callable[[Transaction], Transaction]) -> TxnState:
        try:
            return (await self._change(name, txn_text(txn_id), change)).state
        except TransactionNotFoundError:
            return await self.state(name, txn_id)

    # --- ends ------------------------------------------------------------------------------------

    def kick(self, name: StreamName) -> None:
        """Make sure that the stream's committing transactions are merged soon."""
        if name.key in self._committing:
            return
        self._committing.add(name.key)
        self._flow.tasks.spawn(self._commit(name))

    async def _commit(self, name: StreamName) -> None:
        try:
            async with self._flow.lock(name):
                self._committing.discard(name.key)  # later ones start another pass
                with freeing_room():  # it needs almost none, and the transactions' segments are freed
                    await self._flow.persist(f"commit in {name}", lambda: self._commit_pass(name), locked=name)
        finally:
            self._committing.discard(name.key)

    async def _commit_pass(self, name: StreamName) -> None:
        """Merge all committing transactions of a stream. The caller holds its lock."""
        flow = self._flow
        while committing := self.live(name, TxnState.COMMITTING):
            epoch = min(txn.epoch for txn in committing.values())
            batch = commit.next_batch({text: txn for text, txn in committing.items() if txn.epoch == epoch})
            stream = (await flow.metadata.stream(name)).value
            assert stream.state is not StreamState.SEALED, "sealing waits for committing transactions"
            if stream.reference == epoch:
                positions = await commit.merge(flow, name, stream.segments, epoch, batch)
                await note_commits(flow, name, {text: committing[text] for text in batch}, positions)
                cuts = {text: positions[last] for text, last in commit.last_of_groups(committing, batch).items()}
                await self.complete(name, batch, TxnState.COMMITTED, cuts)
                continue
            history = await flow.metadata.history(name)
            merge, restore = history.plan_roll(stream.epoch, epoch, flow.clock.now_ms())
            await flow.within(name, RollWork(epoch, tuple(batch), merge, restore))

    async def roll_steps(self, name: StreamName, work: RollWork) -> None:
        """Merge a batch of an older epoch, in two epochs of its own."""
        flow, batch = self._flow, list(work.txn_ids)
        await commit.roll(flow, name, work)
        committing = {text: txn for text, txn in self.live(name, TxnState.COMMITTING).items() if text in set(batch)}
        grouped = commit.last_of_groups(committing, [text for text in batch if text in committing])
        ends: dict[int, int] = {}
        if grouped or any(txn.commit_time is not None for txn in committing.values()):
            ends = {s.id: await flow.segments.length(name.segment(s.id)) for s in work.merge.added}
        # all events of the batch lie before the ends of the merge's segments
        await note_commits(flow, name, committing, dict.fromkeys(committing, ends))
        await self.complete(name, batch, TxnState.COMMITTED, dict.fromkeys(grouped, ends))

    def _spawn_abort(self, name: StreamName, text: str) -> None:
        async def abort() -> None:
            with freeing_room():
                await self._flow.persist(f"abort of {text} in {name}", lambda: self._finish_abort(name, text))

        self._flow.tasks.spawn(abort())

    async def _finish_abort(self, name: StreamName, text: str) -> None:
        held = self.leases.find(name, text)
        if held is None:
            return
        epoch = held.record.value.epoch
        try:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.reference == epoch:
                segments: Sequence[EpochSegment] = stream.segments
            else:
                segments = (await self._flow.metadata.history(name)).epoch(epoch)
        except NotFoundError:
            segments = ()  # the stream is gone, and its segments with it
        await together(
            self._flow.segments.delete(transaction_segment_name(name.segment(copy_id(s.id, epoch)), int(text, 16)))
            for s in segments
        )
        await self.complete(name, [text], TxnState.ABORTED)

    async def complete(
        self, name: StreamName, texts: Sequence[str], state: TxnState, cuts: Mapping[str, dict[int, int]] | None = None
    ) -> None:
        """cuts: behind which each lies, of those that were committed together with others."""
        stream = await self._flow.metadata.find_stream(name)
        await self.finished.add(name, stream.value if stream is not None else None, texts, state, cuts)
        await self.table.remove([f"{name.key}/{text}" for text in texts])
        self.leases.end(name, texts)

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
        await self._commit_pass(name)

    # --- leases ----------------------------------------------------------------------------------

    async def load(self) -> None:
        async for key, record in self.table.scan():
            owner, _, text = key.rpartition("/")
            self._commit_number = max(self._commit_number, record.value.commit_number)
            self.leases.hold(StreamName.of(owner), text, record)

    def resume(self) -> None:
        """Finish what is decided, in the background."""
        for name, text, held in self.leases.all():
            if held.record.value.state is TxnState.COMMITTING:
                self.kick(name)
            elif held.record.value.state is TxnState.ABORTING:
                self._spawn_abort(name, text)

    async def expire_due(self) -> None:
        """Abort transactions whose lease has expired."""
        now = self._flow.clock.monotonic_ms()
        while (found := self.leases.take_due(now)) is not None:
            name, text, held = found
            ends = held.lease_ends_ms

            def due(txn: Transaction, held: Live = held, ends: int = ends) -> Transaction:
                return _aborting(txn) if held.lease_ends_ms == ends else txn  # else pinged meanwhile

            try:
                changed = await self._change(name, text, due)
            except TransactionNotFoundError:
                continue
            except BaseException:
                self.leases.put(now, name, text)
                raise
            if changed.state is TxnState.OPEN:
                self.leases.put(held.lease_ends_ms, name, text)
            elif changed.state is TxnState.ABORTING:
                log.info("transaction %s of %s has timed out", text, name)


def _aborting(held: Transaction) -> Transaction:
    return replace(held, state=TxnState.ABORTING) if held.state is TxnState.OPEN else held


async def _next_block(held: Number | None) -> Number:
    return Number((held.value if held is not None else 1) + TXN_ID_BLOCK)


class Commit(NamedTuple):
    """is_merged: readers can see all. cut: behind all events, if that is known."""

    is_merged: bool
    cut: dict[int, int] | None


async def commit_together(
    transactions: Transactions, name: StreamName, txn_ids: Sequence[int], writer_id: str, commit_time: int | None
) -> None:
    """Decide to commit all; those committed already stay so. TransactionFailedError if one has ended otherwise."""
    await transactions.to_its_end(_commit_together(transactions, name, txn_ids, writer_id, commit_time))


async def _commit_together(
    transactions: Transactions, name: StreamName, txn_ids: Sequence[int], writer_id: str, commit_time: int | None
) -> None:
    texts = list(dict.fromkeys(map(txn_text, txn_ids)))
    tries = Tries(f"{len(texts)} transactions of {name}")
    while True:
        states = {text: await transactions.state(name, int(text, 16)) for text in texts}
        lost = [text for text, state in states.items() if state in (TxnState.ABORTING, TxnState.ABORTED)]
        if lost:
            raise TransactionFailedError(f"transaction {lost[0]} was aborted or has timed out")
        still_open = [text for text, state in states.items() if state is TxnState.OPEN]
        if await _decided(transactions, name, still_open, writer_id, commit_time):
            return
        await _refresh(transactions, name, still_open)
        await tries.lost()


async def _decided(
    transactions: Transactions, name: StreamName, texts: Sequence[str], writer_id: str, commit_time: int | None
) -> bool:
    """False if one of them was changed meanwhile, and so none is now."""
    first = transactions.take_commit_numbers(len(texts))
    changes = []
    for number, text in enumerate(texts, first):
        held = transactions.leases.find(name, text)
        if held is None:
            return False
        wanted = replace(
            held.record.value,
            state=TxnState.COMMITTING,
            writer_id=writer_id,
            commit_time=commit_time,
            commit_number=number,
            group=first,
        )
        changes.append((f"{name.key}/{text}", wanted, held.record.version))
    try:
        stored = await transactions.table.put_all(changes) if changes else []
    except ConditionFailedError:
        return False
    except UnavailableError:
        transactions.learn(name, texts)
        raise
    for text, record in zip(texts, stored, strict=True):
        transactions.note(name, text, record)
    return True


async def _refresh(transactions: Transactions, name: StreamName, texts: Sequence[str]) -> None:
    """Take note of what another call has made of them."""
    found = await transactions.table.get_all([f"{name.key}/{text}" for text in texts])
    for text, record in zip(texts, found, strict=True):
        if record is None:
            transactions.leases.end(name, [text])
        elif transactions.leases.find(name, text) is not None:
            transactions.note(name, text, record)


async def find_commit(transactions: Transactions, name: StreamName, txn_ids: Sequence[int]) -> Commit:
    """Whether all are merged, and behind which cut; TransactionFailedError if one isn't committed."""
    cuts = []
    for txn_id in txn_ids:
        state = await transactions.state(name, txn_id)
        if state is TxnState.COMMITTING:
            return Commit(False, None)
        if state is not TxnState.COMMITTED:
            raise TransactionFailedError(f"transaction {txn_text(txn_id)} is {state.name}, and not committed")
        found = await transactions.finished.find(name, txn_text(txn_id))
        if found is not None and found.cut is not None:
            cuts.append(found.cut)
    # what was merged later has later epochs, or the same and later offsets
    return Commit(True, max(cuts, key=lambda cut: (max(cut) >> 32, sum(cut.values())), default=None))
