"""Make each batch of a sink take effect once despite crashes: a durable record of intent.

If Spark crashed before writing its commit log, it commits a batch again, with new tasks and so new transactions. So
there is one record per query (or application) and stream, changed only by compare-and-set:

    batch 7, [transactions], pending  →  commit them together, idempotent  →  batch 7, done, and the cut after it

If batch 7 is requested again, the recorded transactions are rolled forward and the new ones aborted. Invariant: a
query's transaction is committed only while the record contains it. A closed record rejects further batches: so another
query knows the last one, and continues after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.control.time_limit import TimeLimit
from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import successors_of
from nadi.errors import (
    ConflictError,
    EpochExpiredError,
    StreamRecreatedError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_BATCH_MAX
from nadi.model.streamcut import StreamCut
from nadi.spark.connections import attempt_of_task
from nadi.spark.ledger import ledger
from nadi.spark.options.parsed import WriteOptions

_COMMIT_TIMEOUT_S = 120.0
_FIRST_POLL_S = 0.001  # a small batch is merged within milliseconds


class Intent(msgspec.Struct, frozen=True):
    batch: int
    transactions: list[UUID]
    done: bool
    cut: str | None = None  # of the stream, after all of the batch's events, once known
    former: str | None = None  # the cut at which the stream is truncated after the commit
    is_closed: bool = False  # another query continues after this batch
    segment: int | None = None  # a segment of the stream: distinguishes it from a later stream of the same name


class Claims:
    """The claims of batches and tasks by runs of a query or application, which never start twice (at most once).

    There is one key for batches and one per task number, so the table has as many keys as a batch has tasks.
    """

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        self._claims, self._name = ledger(manager, scope, "the claim of", "claim/", _BatchClaim), name

    async def batch(self, number: int, run: str) -> bool:
        """Return whether this run of a query may write the batch: no other run has started it, or a later one."""
        return await self._claim(
            "", _BatchClaim(number, run), lambda stored: stored.batch == number and stored.work != run
        )

    async def task(self, batch: int, run: str) -> bool:
        """Return whether the current task may start its part: no other attempt has."""
        partition, stage, attempt = attempt_of_task()

        def is_started(stored: _BatchClaim) -> bool:
            return (stored.batch, stored.work) == (batch, run) and stored.attempts.get(stage, attempt) != attempt

        return await self._claim(f"/{partition}", _BatchClaim(batch, run, {stage: attempt}), is_started)

    async def _claim(self, key: str, claim: _BatchClaim, is_started: Callable[[_BatchClaim], bool]) -> bool:
        def claimed(stored: _BatchClaim | None) -> _BatchClaim | None:
            if stored is None:
                return claim
            if stored.batch > claim.batch or is_started(stored):
                return None
            if (stored.batch, stored.work) != (claim.batch, claim.work):
                return claim
            both = replace(stored, attempts=stored.attempts | claim.attempts)
            return None if both == stored else both

        stored = await self._claims.record(self._name + key).put(claimed)
        assert stored is not None, "the record exists now"
        is_mine = (stored.batch, stored.work) == (claim.batch, claim.work)
        return is_mine and claim.attempts.items() <= stored.attempts.items()


class _BatchClaim(msgspec.Struct, frozen=True):
    """attempts: the first attempt at the task by stage, as several stages may read a batch."""

    batch: int
    work: str  # of a run
    attempts: dict[int, int] = {}


class SinkRecord:
    """The record of one writer and one stream. writer: a query's id, or `application` of a name.

    skips: a batch before the last one was written long ago, so it is skipped instead of rejected. Writes to a deleted
    stream don't count for a new stream of the same name.
    """

    def __init__(self, manager: StreamManager, options: WriteOptions, writer: str, *, skips: bool = False) -> None:
        self._manager, self._options, self._skips = manager, options, skips
        self._name = writer if skips else f"query {writer}"
        self._record = ledger(manager, options.scope, "the intent of", "sink/", Intent).record(
            f"{writer}/{options.stream}"
        )

    async def last(self) -> Intent | None:
        """Return the last intent, done or pending."""
        return await self._of_this_stream(await self._record.find())

    async def commit(self, batch: int, transactions: Sequence[UUID], former: StreamCut | None = None) -> None:
        """Make the batch part of the stream if it isn't yet; return once it is readable. former: stored with it."""
        controller, scope, stream = stores_of(self._manager).controller, self._options.scope, self._options.stream

        async def next_step(stored: Intent | None) -> Intent | None:
            intent = await self._of_this_stream(stored)
            if intent is not None and (intent.is_closed or intent.batch > batch):
                await abort_all(self._manager, self._options, transactions)
                if self._skips:
                    return None
                raise self._rejection(batch, intent)
            if intent is not None and not intent.done:
                finished = await self._finished(intent)
                if finished.done:
                    return finished
                if intent.batch == batch and not set(transactions) & set(intent.transactions):
                    return replace(intent, transactions=list(transactions))  # the same rows, written again
                raise TransactionFailedError(
                    f"batch {intent.batch} of {self._name} can't be committed to {scope}/{stream}: its transactions "
                    "were aborted or have expired. Raise transaction_timeout_ms above a query's longest downtime, and "
                    "have that batch written again"
                )
            if intent is not None and intent.batch == batch:
                await abort_all(self._manager, self._options, set(transactions) - set(intent.transactions))
                return None
            cut = intent.cut if intent is not None and not transactions else None
            current = await controller.current_segments(scope, stream) if self._skips else []
            segment = current[0].segment_id if current else None  # None for a sealed stream, which accepts no batch
            return Intent(batch, list(transactions), False, cut, _text(former), segment=segment)

        while True:
            stored = await self._record.put(next_step)
            assert stored is not None, "the record exists now"
            if stored.is_closed or stored.batch > batch or (stored.batch == batch and stored.done):
                return

    async def settle(self) -> int:
        """Complete a pending commit; return the last batch in the stream, -1 if there is none."""
        intent = await self.last()
        return -1 if intent is None else _last(await self._finished(intent))

    async def close(self) -> int:
        """Close the record: complete a pending commit and reject further batches. Return the last batch, -1 if there is
        none."""

        async def closed(stored: Intent | None) -> Intent | None:
            last = stored or Intent(-1, [], True)
            if last.is_closed:
                return None
            last = await self._finished(last)
            return replace(last, batch=_last(last), done=True, is_closed=True)

        stored = await self._record.put(closed)
        assert stored is not None, "the record exists now"
        return stored.batch

    async def abort(self, transactions: Sequence[UUID]) -> None:
        """Abort those transactions that aren't recorded."""
        intent = await self.last()
        recorded = intent.transactions if intent is not None else []
        await abort_all(self._manager, self._options, set(transactions) - set(recorded))

    # --- inside -----------------------------------------------------------------------------

    def _rejection(self, batch: int, intent: Intent) -> ConflictError:
        stream = f"{self._options.scope}/{self._options.stream}"
        if intent.is_closed:
            return ConflictError(
                f"batch {batch} of {self._name} is not written to {stream}: another query has replaced it after batch "
                f"{intent.batch}, as its checkpoint was considered lost (startAt, output). Don't start it again"
            )
        return ConflictError(
            f"batch {batch} of {self._name} was requested after batch {intent.batch} was written to {stream}: its "
            "checkpoint is older than the stream; use a new checkpoint"
        )

    async def _of_this_stream(self, intent: Intent | None) -> Intent | None:
        """Return the intent, or None if an application wrote it to a stream that was deleted since."""
        if intent is None or not self._skips:
            return intent
        segment = intent.segment
        if segment is None and intent.cut is not None:  # of an earlier version
            segment = min(StreamCut.from_text(intent.cut).positions)
        if segment is None:
            return intent
        try:
            await successors_of(stores_of(self._manager), self._options.scope, self._options.stream, segment)
        except StreamRecreatedError:
            return None
        except EpochExpiredError:  # the segment was forgotten after many scalings
            pass
        return intent

    async def _finished(self, intent: Intent) -> Intent:
        """Return the intent, done if its batch is in the stream; pending if it never can be, as all its transactions
        are lost. TransactionFailedError if it may be partly written, or the outcome is unknown."""
        if intent.done:
            return intent
        subject = f"batch {intent.batch} of {self._name}"
        try:
            cut = await commit_all(self._manager, self._options, intent.transactions, subject)
        except TransactionFailedError:
            if len(intent.transactions) > TXN_BATCH_MAX:
                raise  # it may be partly written
            controller, scope, stream = stores_of(self._manager).controller, self._options.scope, self._options.stream
            for txn_id in intent.transactions:  # if one was aborted, all were
                with suppress(TransactionNotFoundError):
                    if await controller.transaction_state(scope, stream, txn_id) in ("ABORTING", "ABORTED"):
                        return intent
            raise TransactionFailedError(
                f"{subject} may or may not be in {scope}/{stream}: its commit began so long ago that its transactions "
                "are forgotten. Check whether its rows are there, and start after or before them with a new checkpoint "
                "and another 'groupId' (or 'txnAppId')"
            ) from None
        return replace(intent, done=True, cut=_text(cut) or intent.cut)


async def commit_all(
    manager: StreamManager, options: WriteOptions, transactions: Sequence[UUID], subject: str
) -> StreamCut | None:
    """Commit all transactions by one decision (several if the server's limit requires it) and, unless the options say
    otherwise, wait until all are readable. Return the cut after their events, if known. Committed ones stay committed.

    TransactionFailedError, naming the `subject`, if one was aborted or has expired.
    """
    controller, scope, stream = stores_of(manager).controller, options.scope, options.stream
    groups = [transactions[at : at + TXN_BATCH_MAX] for at in range(0, len(transactions), TXN_BATCH_MAX)]
    try:
        for group in groups:
            await controller.commit_together(scope, stream, group)
    except TransactionFailedError as error:
        raise TransactionFailedError(
            f"{subject} can't be committed to {scope}/{stream}: {error}. Raise transaction_timeout_ms above a query's "
            "longest downtime; to write the batch again, start from its offsets with a new checkpoint"
        ) from error
    if not options.waits_for_readers:
        return None
    late = f"{subject} is not committed after {_COMMIT_TIMEOUT_S} s: start the query again"
    cut: StreamCut | None = None
    async with TimeLimit(_COMMIT_TIMEOUT_S, lambda: late):
        for group in groups:
            pause_s = _FIRST_POLL_S
            while not (result := await controller.find_commit(scope, stream, group))[0]:
                await asyncio.sleep(min(pause_s, options.poll_s))
                pause_s *= 2
            cut = result[1]
    return cut


async def abort_all(manager: StreamManager, options: WriteOptions, transactions: Iterable[UUID]) -> None:
    """Abort the transactions where possible; the others expire with their leases."""
    controller, scope, stream = stores_of(manager).controller, options.scope, options.stream
    for txn_id in transactions:
        with suppress(ConflictError, TransactionNotFoundError, UnavailableError):
            await controller.abort_transaction(scope, stream, txn_id)


def application(name: str) -> str:
    """Return the writer's name for an application's writes."""
    return f"application {name}"


def _last(intent: Intent) -> int:
    return intent.batch if intent.done else intent.batch - 1


def _text(cut: StreamCut | None) -> str | None:
    return cut.as_text() if cut is not None else None
