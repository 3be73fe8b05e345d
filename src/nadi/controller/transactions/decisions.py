"""Transactions from start to end: pings, the decision to commit or abort, the merge, and the recorded outcome.
An unfinished transaction is one record in one table for all streams, mirrored in memory (`leases`); each change is
conditional on the record's version. The decision is durable before the reply; segments are merged or deleted after it.

    OPEN -> COMMITTING -> COMMITTED
    OPEN -> ABORTING   -> ABORTED        (requested, lease expired, or the stream is being sealed)

One change of the table makes all transactions of a group commit COMMITTING, or none. A batch to be merged contains
transactions of one epoch, the lowest first, in commit order. If the stream still has that epoch's ranges, each active
segment merges the transactions' segments of its number in one command. An absent source was merged before, so a batch
can be merged again after a crash. If the stream was scaled meanwhile, two epochs are added ("rolling transaction"):
first the transactions' old ranges again, sealed as soon as everything is merged, then the current ranges again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nadi import errors, limits
from nadi.backoff import Tries
from nadi.controller.engine.workflows import Workflows, seal_and_measure, switch
from nadi.controller.event_time import check_writer, note_commits
from nadi.controller.state.history import copy_id
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, Number, RollWork, StreamState, TransactionRecord, TxnState
from nadi.controller.state.segments import ABSENT, Versioned, freeing_space, together
from nadi.controller.transactions.leases import Finished, Leases, Live
from nadi.naming import transaction_segment_name

log = logging.getLogger(__name__)


class LeaseTooLargeError(errors.InvalidArgumentError):
    """The requested lease exceeds the limit."""


class ExecutionTimeExceededError(errors.InvalidArgumentError):
    """The transaction would exceed its maximum lifetime."""


class BegunTransaction(NamedTuple):
    txn_id: int
    ranges: tuple[EpochSegment, ...]


class CommitOutcome(NamedTuple):
    """is_merged: readers can see all events. cut: a cut after all of them, if known."""

    is_merged: bool
    cut: dict[int, int] | None


def txn_text(txn_id: int) -> str:
    """Return a transaction id as used in keys and segment names: 32 hex digits."""
    return f"{txn_id:032x}"


class Transactions:
    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self.table = flow.metadata.transactions
        self._finished = Finished(flow.metadata, flow.clock)
        self.leases = Leases(flow.clock)
        self._ids: tuple[int, int] = (0, 0)  # next, end of the block
        self._ids_lock = asyncio.Lock()
        self._commit_number = 0
        self._committing: set[str] = set()

    async def create(self, name: StreamName, lease_ms: int) -> BegunTransaction:
        """Start a transaction; its segments exist on return."""
        if not limits.TXN_LEASE_MIN_MS <= lease_ms <= limits.TXN_LEASE_MAX_MS:
            raise errors.InvalidArgumentError(
                f"a lease of {lease_ms:,} ms is outside the range {limits.TXN_LEASE_MIN_MS:,} to "
                f"{limits.TXN_LEASE_MAX_MS:,} ms"
            )
        stream = await self._flow.metadata.open_stream(name)
        txn_id = stream.reference << 96 | await self._next_number()
        now = self._flow.clock.now_ms()
        record = TransactionRecord(
            TxnState.OPEN, stream.reference, now, lease_ms, now + lease_ms, now + limits.TXN_MAX_EXECUTION_MS
        )
        text = txn_text(txn_id)
        self.leases.hold(name, text, await self.table.put(f"{name.key}/{text}", record, ABSENT))
        ranges = tuple(EpochSegment(copy_id(s.id, stream.reference), s.low, s.high) for s in stream.segments)
        segments = [transaction_segment_name(name.segment(s.id), txn_id) for s in ranges]
        try:
            await together(self._flow.segments.create_segment(s, stream.config, fixed=True) for s in segments)
            # The stream may have been sealed meanwhile: either sealing saw this transaction, or this check sees that.
            current = await self._flow.metadata.open_stream(name, fresh=True)
            if current.created_ms != stream.created_ms:  # recreated: events written to this transaction would be lost
                raise errors.StreamNotFoundError(*name)
            if self._state(name, text) is not TxnState.OPEN:  # its lease expired, or the stream was sealed
                raise errors.UnavailableError(f"a transaction of {name} ended while it was starting: start it again")
        except BaseException:
            with contextlib.suppress(errors.ClosedError):  # nothing else could end it before its lease expires
                self._flow.tasks.spawn(self._abandon(name, txn_id, segments))
            raise
        return BegunTransaction(txn_id, ranges)

    async def _abandon(self, name: StreamName, txn_id: int, segments: Sequence[str]) -> None:
        with contextlib.suppress(errors.NadiError):
            await self._abort(name, txn_id)
        with freeing_space():  # the transaction, or even its stream, may have ended before all segments were created
            delete, subject = self._flow.segments.delete, f"abort of {txn_text(txn_id)} in {name}"
            await self._flow.persist(subject, lambda: together(delete(segment) for segment in segments))

    async def _next_number(self) -> int:
        async with self._ids_lock:
            number, end = self._ids
            if number == end:
                numbers, subject = self._flow.metadata.numbers, "the number of transactions"

                async def next_block(stored: Number | None) -> Number:
                    return Number((stored.value if stored is not None else 1) + limits.TXN_ID_BLOCK)

                end = (await numbers.change("transaction", subject, next_block, fresh=True)).value.value
                number = end - limits.TXN_ID_BLOCK
            self._ids = (number + 1, end)
            return number

    def live(self, name: StreamName, state: TxnState) -> dict[str, TransactionRecord]:
        own = self.leases.of(name).items()
        return {text: lease.record.value for text, lease in own if lease.record.value.state is state}

    def _state(self, name: StreamName, text: str) -> TxnState | None:
        live = self.leases.find(name, text)
        return live.record.value.state if live else None

    async def state(self, name: StreamName, txn_id: int) -> TxnState:
        """Return the state of a transaction; TransactionNotFoundError if it is unknown or long finished."""
        text = txn_text(txn_id)
        if (state := self._state(name, text)) is not None:
            return state
        if (outcome := await self._finished.find(name, text)) is not None:
            return outcome.state
        if (state := self._state(name, text)) is not None:
            return state
        raise errors.TransactionNotFoundError(text)

    async def completed(self, name: StreamName) -> list[tuple[int, TxnState]]:
        stream = (await self._flow.metadata.stream(name)).value
        return [(int(text, 16), state) for text, state in await self._finished.newest(name, stream)]

    async def _change(
        self, name: StreamName, text: str, change: Callable[[TransactionRecord], TransactionRecord]
    ) -> TransactionRecord:
        """Apply `change` to the live record, again if another change came first. Runs to completion even if the caller
        is cancelled."""
        return await self._flow.tasks.run_to_completion(self._changed(name, text, change))

    async def _changed(
        self, name: StreamName, text: str, change: Callable[[TransactionRecord], TransactionRecord]
    ) -> TransactionRecord:
        live = self.leases.find(name, text)
        if live is None:
            raise errors.TransactionNotFoundError(text)
        before = live.record

        async def changed(current: TransactionRecord | None) -> TransactionRecord:
            if current is None:
                self.leases.end(name, [text])
            if current is None or self.leases.find(name, text) is None:  # ended meanwhile
                raise errors.TransactionNotFoundError(text)
            updated = change(current)
            return current if updated == current else updated

        try:
            stored = await self.table.change(f"{name.key}/{text}", f"transaction {text}", changed, known=before)
        except errors.UnavailableError:
            self._refresh_later(name, [text])
            raise
        if stored is not before:
            self._note(name, text, stored)
        return stored.value

    def _note(self, name: StreamName, text: str, record: Versioned[TransactionRecord]) -> None:
        """Adopt a transaction's record; if it newly became decided, by any controller, carry the decision out."""
        before, state = self._state(name, text), record.value.state
        self.leases.hold(name, text, record)
        if state is before:
            return
        if state is TxnState.COMMITTING:
            self._start_commits(name)
        elif state is TxnState.ABORTING:
            self._spawn_abort(name, text)

    def _refresh_later(self, name: StreamName, texts: Sequence[str]) -> None:
        """Determine in the background the outcome of a change that got no reply."""
        with contextlib.suppress(errors.ClosedError):  # the next controller loads all records anyway
            self._flow.tasks.spawn(
                self._flow.persist(f"reloading transactions of {name}", lambda: self._refresh(name, texts))
            )

    async def _refresh(self, name: StreamName, texts: Sequence[str]) -> None:
        records = await self.table.get_all([f"{name.key}/{text}" for text in texts])
        for text, record in zip(texts, records, strict=True):
            if record is None:
                self.leases.end(name, [text])
            elif self.leases.find(name, text) is not None:
                self._note(name, text, record)

    async def ping(self, name: StreamName, txn_id: int, lease_ms: int) -> TxnState:
        if lease_ms > limits.TXN_LEASE_MAX_MS:
            raise LeaseTooLargeError(
                f"a lease of {lease_ms:,} ms exceeds the maximum of {limits.TXN_LEASE_MAX_MS:,} ms"
            )
        now, live = self._flow.clock.now_ms(), self.leases.find(name, txn_text(txn_id))
        left_ms = live.life_ends_ms - self._flow.clock.monotonic_ms() if live is not None else 0

        def extend(live: TransactionRecord) -> TransactionRecord:
            if live.state is not TxnState.OPEN:
                return live
            if lease_ms > left_ms:
                raise ExecutionTimeExceededError(f"transaction {txn_text(txn_id)} has reached its maximum lifetime")
            return replace(live, lease_ms=lease_ms, expires_ms=now + max(lease_ms, 0), max_ms=now + left_ms)

        return await self._decide(name, txn_id, extend)

    async def commit(self, name: StreamName, txn_id: int, writer_id: str = "", commit_time: int | None = None) -> None:
        """Decide to commit; durable on return, merged soon after. TransactionFailedError if it was aborted."""
        await self._commit_all(name, [txn_id], writer_id, commit_time, is_group=False)

    async def abort(self, name: StreamName, txn_id: int) -> None:
        await self._flow.metadata.stream(name)
        await self._abort(name, txn_id)

    async def _abort(self, name: StreamName, txn_id: int) -> None:
        with freeing_space():
            state = await self._decide(name, txn_id, _aborting)
        if state in (TxnState.COMMITTING, TxnState.COMMITTED):
            raise errors.TransactionFailedError(f"transaction {txn_text(txn_id)} is already committed")

    async def _decide(
        self, name: StreamName, txn_id: int, change: Callable[[TransactionRecord], TransactionRecord]
    ) -> TxnState:
        try:
            return (await self._change(name, txn_text(txn_id), change)).state
        except errors.TransactionNotFoundError:
            return await self.state(name, txn_id)

    async def commit_together(
        self, name: StreamName, txn_ids: Sequence[int], writer_id: str = "", commit_time: int | None = None
    ) -> None:
        """Decide to commit all; committed ones stay so. TransactionFailedError if one was aborted."""
        if not 0 < len(txn_ids) <= limits.TXN_BATCH_MAX:
            raise errors.InvalidArgumentError(
                f"{len(txn_ids):,} transactions can't be committed together: give 1 to {limits.TXN_BATCH_MAX:,}"
            )
        await self._commit_all(name, txn_ids, writer_id, commit_time, is_group=True)

    async def _commit_all(
        self, name: StreamName, txn_ids: Sequence[int], writer_id: str, commit_time: int | None, *, is_group: bool
    ) -> None:
        if writer_id:
            check_writer(writer_id)
        await self._flow.metadata.stream(name)
        texts, clock = list(dict.fromkeys(map(txn_text, txn_ids))), self._flow.clock
        tries = Tries(f"{len(texts)} transactions of {name}", sleep=clock.sleep, chance=clock.chance)

        async def commit() -> None:
            while True:
                states = {text: await self.state(name, int(text, 16)) for text in texts}
                lost = [text for text, state in states.items() if state in (TxnState.ABORTING, TxnState.ABORTED)]
                if lost:
                    raise errors.TransactionFailedError(f"transaction {lost[0]} was aborted or its lease expired")
                still_open = [text for text, state in states.items() if state is TxnState.OPEN]
                if await self._decide_all(name, still_open, writer_id, commit_time, is_group=is_group):
                    return
                await self._refresh(name, still_open)
                await tries.lost()

        await self._flow.tasks.run_to_completion(commit())

    async def _decide_all(
        self, name: StreamName, texts: Sequence[str], writer_id: str, commit_time: int | None, *, is_group: bool
    ) -> bool:
        """Commit all in one change; return False, having changed none, if one of them changed meanwhile."""
        first, leases = self._commit_number + 1, self.leases.of(name)
        self._commit_number += len(texts)  # determines the order of merging
        if any(text not in leases for text in texts):
            return False
        changes = []
        for number, text in enumerate(texts, first):
            record, group = leases[text].record, first if is_group else 0
            committing = replace(
                record.value, state=TxnState.COMMITTING, writer_id=writer_id, commit_time=commit_time, group=group
            )
            changes.append((f"{name.key}/{text}", replace(committing, commit_number=number), record.version))
        try:
            stored = await self.table.put_all(changes) if changes else []
        except errors.ConditionFailedError:
            return False
        except errors.UnavailableError:
            self._refresh_later(name, texts)
            raise
        for text, record in zip(texts, stored, strict=True):
            self._note(name, text, record)
        return True

    async def find_commit(self, name: StreamName, txn_ids: Sequence[int]) -> CommitOutcome:
        """Return whether all are merged, and the cut after them; TransactionFailedError if one isn't committed."""
        await self._flow.metadata.stream(name)
        cuts = []
        for txn_id in txn_ids:
            state, text = await self.state(name, txn_id), txn_text(txn_id)
            if state is TxnState.COMMITTING:
                return CommitOutcome(False, None)
            if state is not TxnState.COMMITTED:
                raise errors.TransactionFailedError(f"transaction {text} is {state.name}, not committed")
            outcome = await self._finished.find(name, text)
            if outcome is not None and outcome.cut is not None:
                cuts.append(outcome.cut)
        # later merges have later epochs, or the same epoch and later offsets
        return CommitOutcome(True, max(cuts, key=lambda cut: (max(cut) >> 32, sum(cut.values())), default=None))

    def _start_commits(self, name: StreamName) -> None:
        if name.key not in self._committing:
            self._committing.add(name.key)
            self._flow.tasks.spawn(self._commit(name))

    async def _commit(self, name: StreamName) -> None:
        try:
            async with self._flow.lock(name):
                self._committing.discard(name.key)  # later ones start another pass
                with freeing_space():  # needs almost no space, and frees the transactions' segments
                    await self._flow.persist(f"commit in {name}", lambda: self._commit_pass(name), locked=name)
        finally:
            self._committing.discard(name.key)

    async def _commit_pass(self, name: StreamName) -> None:
        """Merge all committing transactions of a stream. The caller has its lock."""
        flow = self._flow
        while committing := self.live(name, TxnState.COMMITTING):
            epoch = min(txn.epoch for txn in committing.values())
            batch = next_batch({text: txn for text, txn in committing.items() if txn.epoch == epoch})
            stream = (await flow.metadata.stream(name)).value
            assert stream.state is not StreamState.SEALED, "sealing waits for committing transactions"
            if stream.reference == epoch:
                positions = await merge(flow, name, stream.segments, epoch, batch)
                await note_commits(flow, name, {text: committing[text] for text in batch}, positions)
                cuts = {text: positions[last] for text, last in last_of_groups(committing, batch).items()}
                await self.complete(name, batch, TxnState.COMMITTED, cuts)
                continue
            history = await flow.metadata.history(name)
            merged, restored = history.plan_roll(stream.epoch, epoch, flow.clock.now_ms())
            await flow.within(name, RollWork(epoch, tuple(batch), merged, restored))

    async def roll_steps(self, name: StreamName, work: RollWork) -> None:
        flow, batch = self._flow, list(work.txn_ids)
        await roll(flow, name, work)
        committing = {text: txn for text, txn in self.live(name, TxnState.COMMITTING).items() if text in set(batch)}
        grouped = last_of_groups(committing, [text for text in batch if text in committing])
        ends: dict[int, int] = {}
        if grouped or any(txn.commit_time is not None for txn in committing.values()):
            ends = {s.id: await flow.segments.length(name.segment(s.id)) for s in work.merge.added}
        # all events of the batch precede the ends of the merge's segments
        await note_commits(flow, name, committing, dict.fromkeys(committing, ends))
        await self.complete(name, batch, TxnState.COMMITTED, dict.fromkeys(grouped, ends))

    def _spawn_abort(self, name: StreamName, text: str) -> None:
        async def abort() -> None:
            with freeing_space():
                await self._flow.persist(f"abort of {text} in {name}", lambda: self._finish_abort(name, text))

        self._flow.tasks.spawn(abort())

    async def _finish_abort(self, name: StreamName, text: str) -> None:
        live = self.leases.find(name, text)
        if live is None:
            return
        epoch = live.record.value.epoch
        try:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.reference == epoch:
                segments: Sequence[EpochSegment] = stream.segments
            else:
                segments = (await self._flow.metadata.history(name)).epoch(epoch)
        except errors.NotFoundError:
            segments = ()  # deleted together with the stream
        await together(
            self._flow.segments.delete(transaction_segment_name(name.segment(copy_id(s.id, epoch)), int(text, 16)))
            for s in segments
        )
        await self.complete(name, [text], TxnState.ABORTED)

    async def complete(
        self, name: StreamName, texts: Sequence[str], state: TxnState, cuts: Mapping[str, dict[int, int]] | None = None
    ) -> None:
        """Record the outcome of transactions. cuts: after each transaction of a group commit."""
        stream = await self._flow.metadata.find_stream(name)
        await self._finished.add(name, stream.value if stream is not None else None, texts, state, cuts)
        await self.table.remove([f"{name.key}/{text}" for text in texts])
        self.leases.end(name, texts)

    async def end_all(self, name: StreamName) -> None:
        """Abort open transactions and finish decided ones, before the stream is sealed. The caller has its lock."""
        for text in self.live(name, TxnState.OPEN):
            try:
                await self._change(name, text, _aborting)
            except errors.TransactionNotFoundError:
                continue
        for text in self.live(name, TxnState.ABORTING):
            await self._finish_abort(name, text)
        await self._commit_pass(name)

    async def load(self) -> None:
        async for key, record in self.table.scan():
            owner, _, text = key.rpartition("/")
            self._commit_number = max(self._commit_number, record.value.commit_number)
            self.leases.hold(StreamName.of(owner), text, record)

    def resume(self) -> None:
        for name, text, live in self.leases.all():
            if live.record.value.state is TxnState.COMMITTING:
                self._start_commits(name)
            elif live.record.value.state is TxnState.ABORTING:
                self._spawn_abort(name, text)

    async def expire_due(self) -> None:
        now = self._flow.clock.monotonic_ms()
        for name, text, live in self.leases.take_due(now):
            ends = live.lease_ends_ms

            def due(txn: TransactionRecord, live: Live = live, ends: int = ends) -> TransactionRecord:
                return _aborting(txn) if live.lease_ends_ms == ends else txn  # else it was pinged meanwhile

            try:
                changed = await self._change(name, text, due)
            except errors.TransactionNotFoundError:
                continue
            except BaseException:
                self.leases.due_ms = now
                raise
            if changed.state is TxnState.ABORTING:
                log.info("the lease of transaction %s of %s has expired", text, name)


def _aborting(record: TransactionRecord) -> TransactionRecord:
    return replace(record, state=TxnState.ABORTING) if record.state is TxnState.OPEN else record


def next_batch(committing: Mapping[str, TransactionRecord]) -> list[str]:
    """Return the next transactions to merge at once, in commit order; group commits stay together."""
    batch = sorted(committing, key=lambda text: committing[text].commit_number)
    end = min(limits.TXN_COMMIT_BATCH, len(batch))
    while end < len(batch) and committing[batch[end]].group == committing[batch[end - 1]].group != 0:
        end += 1
    return batch[:end]


def last_of_groups(committing: Mapping[str, TransactionRecord], batch: Sequence[str]) -> dict[str, str]:
    """Map each transaction of the batch that belongs to a group commit to the group's last one in the batch."""
    last = {committing[text].group: text for text in batch}
    return {text: last[committing[text].group] for text in batch if committing[text].group}


async def merge(
    flow: Workflows, name: StreamName, targets: Sequence[EpochSegment], epoch: int, batch: list[str]
) -> dict[str, dict[int, int]]:
    """Merge the batch into the targets; return each transaction's end in each target."""
    ends = await together(
        flow.segments.merge(name.segment(target.id), _sources(name, target, epoch, batch)) for target in targets
    )
    return {
        text: {target.id: end for target, end in zip(targets, ends_of_txn, strict=True)}
        for text, *ends_of_txn in zip(batch, *ends, strict=True)
    }


def _sources(name: StreamName, target: EpochSegment, epoch: int, batch: list[str]) -> list[str]:
    parent = name.segment(copy_id(target.id, epoch))
    return [transaction_segment_name(parent, int(text, 16)) for text in batch]


async def roll(flow: Workflows, name: StreamName, work: RollWork) -> None:
    """Add the two epochs of a rolling transaction, unless they exist; the batch is merged into the first."""
    stream = (await flow.metadata.stream(name)).value
    batch, merged, restored = list(work.txn_ids), work.merge, work.restore
    if stream.epoch >= restored.epoch:
        return

    async def merge_into(target: EpochSegment) -> None:
        segment = name.segment(target.id)
        await flow.segments.create_segment(segment, stream.config, fixed=True)
        await flow.segments.merge(segment, _sources(name, target, work.txn_epoch, batch), sealed_is_done=True)
        await flow.segments.seal(segment)

    await together(merge_into(target) for target in merged.added)
    await together(flow.segments.create_segment(name.segment(s.id), stream.config) for s in restored.added)
    await flow.metadata.publish(name, [merged, restored])
    await seal_and_measure(flow, name, merged.removed, f"{merged.epoch}")
    await seal_and_measure(flow, name, restored.removed, f"{restored.epoch}")
    await switch(flow, name, restored)
