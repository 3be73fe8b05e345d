"""Each batch of a sink takes effect once, whatever crashes: a durable record of intent.

Spark asks to commit a batch again if it crashed before writing its own commit log, with new tasks and so
new transactions. So there is one record per query (or application) and stream, changed only by compare-and-set:

    batch 7, [transactions], pending  →  commit them together, idempotent  →  batch 7, done, behind its stream cut

If batch 7 is requested again, the recorded transactions are rolled forward and the new ones aborted. What
always holds: a query's transaction is committed only while it is in the record. A record that is closed takes no batch
any more: so another query knows what was the last, and goes on behind it.
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
from nadi.client.segments.info import following
from nadi.errors import (
    ConflictError,
    EpochGoneError,
    StreamRecreatedError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_TOGETHER_MAX
from nadi.model.streamcut import StreamCut
from nadi.spark.connections import attempt_of_task
from nadi.spark.ledger import ledger
from nadi.spark.options.parsed import WriteOptions

_COMMIT_TIMEOUT_S = 120.0
_FIRST_POLL_S = 0.001  # a small batch is merged within a few


class Intent(msgspec.Struct, frozen=True):
    batch: int
    transactions: list[UUID]
    done: bool
    cut: str | None = None  # of the stream, behind all of the batch's events, once that is known
    former: str | None = None  # another, before which everything is dropped after the commit
    is_closed: bool = False  # another query goes on behind this batch
    segment: int | None = None  # one that the stream had: none of another stream that is made under its name later


class Claims:
    """Which batch of a query or application was begun last, and by which task: nobody begins it again (at most once).

    There is a key for batches, and one for each number of a task, so that a table has as many as a batch has tasks.
    """

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        self._claims, self._name = ledger(manager, scope, "the claim of", "claim/", _BatchClaim), name

    async def batch(self, number: int, run: str) -> bool:
        """Whether this run of a query may write the batch: no other has begun it, or a later one."""
        return await self._claim(
            "", _BatchClaim(number, run), lambda found: found.batch == number and found.work != run
        )

    async def task(self, batch: int, run: str) -> bool:
        """Whether the task that this process runs may begin its part: no other attempt at it has."""
        partition, stage, attempt = attempt_of_task()

        def is_begun(found: _BatchClaim) -> bool:
            return (found.batch, found.work) == (batch, run) and found.attempts.get(stage, attempt) != attempt

        return await self._claim(f"/{partition}", _BatchClaim(batch, run, {stage: attempt}), is_begun)

    async def _claim(self, key: str, mine: _BatchClaim, is_begun: Callable[[_BatchClaim], bool]) -> bool:
        def claimed(stored: _BatchClaim | None) -> _BatchClaim | None:
            if stored is None:
                return mine
            if stored.batch > mine.batch or is_begun(stored):
                return None
            if (stored.batch, stored.work) != (mine.batch, mine.work):
                return mine
            both = replace(stored, attempts=stored.attempts | mine.attempts)
            return None if both == stored else both

        stored = await self._claims.record(self._name + key).put(claimed)
        assert stored is not None, "there is one now"
        is_mine = (stored.batch, stored.work) == (mine.batch, mine.work)
        return is_mine and mine.attempts.items() <= stored.attempts.items()


class _BatchClaim(msgspec.Struct, frozen=True):
    """attempts: the first at the task, by stage: a batch is read by several."""

    batch: int
    work: str  # of a run
    attempts: dict[int, int] = {}


class SinkRecord:
    """The record of one writer and one stream. writer: a query's id, or `application` of a name.

    skips: a batch before the last one was written long ago, so it is passed over instead of being refused. What was
    written to a stream that was deleted since counts for nothing in one that is made anew under its name.
    """

    def __init__(self, manager: StreamManager, options: WriteOptions, writer: str, *, skips: bool = False) -> None:
        self._manager, self._options, self._skips = manager, options, skips
        self._name = writer if skips else f"query {writer}"
        self._record = ledger(manager, options.scope, "the intent of", "sink/", Intent).record(
            f"{writer}/{options.stream}"
        )

    async def last(self) -> Intent | None:
        """What was written last, or is being written."""
        return await self._of_this_stream(await self._record.find())

    async def commit(self, batch: int, transactions: Sequence[UUID], former: StreamCut | None = None) -> None:
        """Make the batch part of the stream if it isn't yet; return once readers can see it. former: kept with it."""
        controller, scope, stream = stores_of(self._manager).controller, self._options.scope, self._options.stream

        async def next_step(stored: Intent | None) -> Intent | None:
            intent = await self._of_this_stream(stored)
            if intent is not None and (intent.is_closed or intent.batch > batch):
                await abort_all(self._manager, self._options, transactions)
                if self._skips:
                    return None
                raise self._passed(batch, intent)
            if intent is not None and not intent.done:
                ended = await self._finished(intent)
                if ended.done:
                    return ended
                if intent.batch == batch and not set(transactions) & set(intent.transactions):
                    return replace(intent, transactions=list(transactions))  # the same rows, written again
                raise TransactionFailedError(
                    f"batch {intent.batch} of {self._name} can't be committed to {scope}/{stream}: its transactions "
                    "were aborted or have timed out. Raise transaction_timeout_ms above the longest time that a query "
                    "may be down, and have that batch written again"
                )
            if intent is not None and intent.batch == batch:
                await abort_all(self._manager, self._options, set(transactions) - set(intent.transactions))
                return None
            behind = intent.cut if intent is not None and not transactions else None
            current = await controller.current_segments(scope, stream) if self._skips else []
            segment = current[0].segment_id if current else None  # none of a sealed stream, which takes no batch
            return Intent(batch, list(transactions), False, behind, _text(former), segment=segment)

        while True:
            stored = await self._record.put(next_step)
            assert stored is not None, "there is one now"
            if stored.is_closed or stored.batch > batch or (stored.batch == batch and stored.done):
                return

    async def settle(self) -> int:
        """Return the last batch that is in the stream, after what was being committed; -1 if there was none."""
        found = await self.last()
        return -1 if found is None else _last(await self._finished(found))

    async def close(self) -> int:
        """End the writer: what it was committing is in the stream, and no batch of it comes any more. Return its last
        batch, -1 if there was none."""

        async def closed(stored: Intent | None) -> Intent | None:
            last = stored or Intent(-1, [], True)
            if last.is_closed:
                return None
            last = await self._finished(last)
            return replace(last, batch=_last(last), done=True, is_closed=True)

        stored = await self._record.put(closed)
        assert stored is not None, "there is one now"
        return stored.batch

    async def abort(self, transactions: Sequence[UUID]) -> None:
        """Abort those transactions that aren't recorded."""
        intent = await self.last()
        kept = intent.transactions if intent is not None else []
        await abort_all(self._manager, self._options, set(transactions) - set(kept))

    # --- inside -----------------------------------------------------------------------------

    def _passed(self, batch: int, intent: Intent) -> ConflictError:
        stream = f"{self._options.scope}/{self._options.stream}"
        if intent.is_closed:
            return ConflictError(
                f"batch {batch} of {self._name} is not written to {stream}: another query has taken its place behind "
                f"batch {intent.batch}, for which its checkpoint was taken for lost (startAt, output). Don't start it "
                "again"
            )
        return ConflictError(
            f"batch {batch} of {self._name} comes after batch {intent.batch} was written to {stream}: its checkpoint "
            "is older than the stream; use a new checkpoint"
        )

    async def _of_this_stream(self, intent: Intent | None) -> Intent | None:
        """None for what an application wrote to a stream that was deleted since."""
        if intent is None or not self._skips:
            return intent
        segment = intent.segment
        if segment is None and intent.cut is not None:  # of an earlier version
            segment = min(StreamCut.from_text(intent.cut).positions)
        if segment is None:
            return intent
        try:
            await following(stores_of(self._manager), self._options.scope, self._options.stream, segment)
        except StreamRecreatedError:
            return None
        except EpochGoneError:  # it had so many scalings since that the segment is forgotten
            pass
        return intent

    async def _finished(self, intent: Intent) -> Intent:
        """The intent once its batch is in the stream; itself, not done, if it never can be, for all its transactions
        are lost. TransactionFailedError if some of it may be there, or nobody knows."""
        if intent.done:
            return intent
        what = f"batch {intent.batch} of {self._name}"
        try:
            cut = await commit_all(self._manager, self._options, intent.transactions, what)
        except TransactionFailedError:
            if len(intent.transactions) > TXN_TOGETHER_MAX:
                raise  # some of it may be there
            controller, scope, stream = stores_of(self._manager).controller, self._options.scope, self._options.stream
            for txn_id in intent.transactions:  # if one was aborted, all were
                with suppress(TransactionNotFoundError):
                    if await controller.transaction_state(scope, stream, txn_id) in ("ABORTING", "ABORTED"):
                        return intent
            raise TransactionFailedError(
                f"{what} may be in {scope}/{stream} or not: it was being committed so long ago that its transactions "
                "are forgotten. Look whether its rows are there, and start behind or before them with a new checkpoint "
                "and another 'groupId' (or 'txnAppId')"
            ) from None
        return replace(intent, done=True, cut=_text(cut) or intent.cut)


async def commit_all(
    manager: StreamManager, options: WriteOptions, transactions: Sequence[UUID], what: str
) -> StreamCut | None:
    """Commit all by one decision (of more than the server takes, by a few) and, unless the options say otherwise, wait
    until readers can see all: a stream cut behind their events, if it is known. Those committed already stay so.

    TransactionFailedError, naming `what`, if one was aborted or has timed out.
    """
    controller, scope, stream = stores_of(manager).controller, options.scope, options.stream
    groups = [transactions[at : at + TXN_TOGETHER_MAX] for at in range(0, len(transactions), TXN_TOGETHER_MAX)]
    try:
        for group in groups:
            await controller.commit_together(scope, stream, group)
    except TransactionFailedError as error:
        raise TransactionFailedError(
            f"{what} can't be committed to {scope}/{stream}: {error}. Raise transaction_timeout_ms above the longest "
            "time that a query may be down; to write that batch again, start from its offsets with a new checkpoint"
        ) from error
    if not options.waits_for_readers:
        return None
    late = f"{what} is not committed yet after {_COMMIT_TIMEOUT_S} s: start again"
    cut: StreamCut | None = None
    async with TimeLimit(_COMMIT_TIMEOUT_S, lambda: late):
        for group in groups:
            pause_s = _FIRST_POLL_S
            while not (found := await controller.find_commit(scope, stream, group))[0]:
                await asyncio.sleep(min(pause_s, options.poll_s))
                pause_s *= 2
            cut = found[1]
    return cut


async def abort_all(manager: StreamManager, options: WriteOptions, transactions: Iterable[UUID]) -> None:
    """Abort what can be aborted; the rest ends with its lease."""
    controller, scope, stream = stores_of(manager).controller, options.scope, options.stream
    for txn_id in transactions:
        with suppress(ConflictError, TransactionNotFoundError, UnavailableError):
            await controller.abort_transaction(scope, stream, txn_id)


def application(name: str) -> str:
    """The writer that an application's writes are recorded for."""
    return f"application {name}"


def _last(ended: Intent) -> int:
    return ended.batch if ended.done else ended.batch - 1


def _text(cut: StreamCut | None) -> str | None:
    return cut.as_text() if cut is not None else None
