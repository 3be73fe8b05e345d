"""Each batch of a streaming query's sink takes effect once, whatever crashes: a durable record of intent.

Spark asks to commit a batch again if it crashed before writing its own commit log, with new tasks and so
new transactions. So there is one record per (query, stream), changed only by compare-and-set:

    batch 7, [transactions], pending  →  commit each of them, idempotent  →  batch 7, done

If batch 7 is requested again, the recorded transactions are rolled forward and the new ones aborted. What
always holds: a query's transaction is committed only while it is in the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from nadi.backoff import Tries
from nadi.client.aio import ABSENT, StreamManager, Table
from nadi.client.control.patience import TimeLimit
from nadi.client.manager.streams import stores_of
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    ConflictError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.spark.options.write import WriteOptions

TABLE = "spark-sinks"
_COMMIT_TIMEOUT_S = 120.0


class Intent(msgspec.Struct, frozen=True):
    """What the record holds."""

    batch: int
    transactions: list[UUID]
    done: bool


class SinkRecord:
    """The record of one query and one stream."""

    def __init__(self, manager: StreamManager, options: WriteOptions, query_id: str) -> None:
        self._manager, self._options, self._query_id = manager, options, query_id
        self._table: Table = manager.table(options.scope, TABLE)
        self._key = f"{query_id}/{options.stream}".encode()

    async def commit(self, batch: int, transactions: Sequence[UUID]) -> None:
        """Make the batch part of the stream if it isn't yet; return once readers can see it."""
        await self._table.create()
        tries = Tries(f"the record of query {self._query_id}")
        while True:
            held = await self._table.get(self._key)
            intent = msgspec.json.decode(held.value, type=Intent) if held else None
            version = held.version if held else ABSENT
            if intent is not None and intent.batch > batch:
                await abort_all(self._manager, self._options, transactions)
                raise ConflictError(
                    f"batch {batch} of query {self._query_id} comes after batch {intent.batch} was written to "
                    f"{self._options.scope}/{self._options.stream}: its checkpoint is older than the stream; use a new "
                    "checkpoint"
                )
            if intent is not None and not intent.done:
                what = f"batch {intent.batch} of query {self._query_id}"
                await commit_all(self._manager, self._options, intent.transactions, what)
                is_stored = await self._put(Intent(intent.batch, intent.transactions, True), version)
            elif intent is not None and intent.batch == batch:
                extra = set(transactions) - set(intent.transactions)
                await abort_all(self._manager, self._options, extra)
                return
            else:
                is_stored = await self._put(Intent(batch, list(transactions), False), version)
            if not is_stored:
                await tries.lost()

    async def abort(self, transactions: Sequence[UUID]) -> None:
        """Abort those transactions that aren't recorded."""
        await self._table.create()
        held = await self._table.get(self._key)
        kept = msgspec.json.decode(held.value, type=Intent).transactions if held else []
        await abort_all(self._manager, self._options, set(transactions) - set(kept))

    async def _put(self, intent: Intent, version: int) -> bool:
        """False if the record has to be read again: another driver changed it, or the reply was lost."""
        try:
            await self._table.put(self._key, msgspec.json.encode(intent), version)
        except ClosedError:
            raise
        except (ConditionFailedError, UnavailableError):
            return False
        return True


async def commit_all(manager: StreamManager, options: WriteOptions, transactions: Sequence[UUID], what: str) -> None:
    """Commit in order and, unless the options say otherwise, wait until readers can see all; those already committed
    stay as they are.

    TransactionFailedError, naming `what`, if one was aborted or has timed out.
    """
    controller, scope, stream = stores_of(manager).controller, options.scope, options.stream
    for txn_id in transactions:
        try:
            await controller.commit_transaction(scope, stream, txn_id)
        except (TransactionFailedError, TransactionNotFoundError) as error:
            raise _lost(what, scope, stream, txn_id) from error
    if not options.waits_for_readers:
        return
    late = f"{what} is not committed yet after {_COMMIT_TIMEOUT_S} s: start again"
    async with TimeLimit(_COMMIT_TIMEOUT_S, lambda: late):
        for txn_id in transactions:
            while (state := await controller.transaction_state(scope, stream, txn_id)) != "COMMITTED":
                if state in ("ABORTING", "ABORTED"):
                    raise _lost(what, scope, stream, txn_id)
                await asyncio.sleep(options.poll_s)


async def abort_all(manager: StreamManager, options: WriteOptions, transactions: Iterable[UUID]) -> None:
    """Abort what can be aborted; the rest ends with its lease."""
    controller, scope, stream = stores_of(manager).controller, options.scope, options.stream
    for txn_id in transactions:
        try:
            await controller.abort_transaction(scope, stream, txn_id)
        except (ConflictError, TransactionNotFoundError, UnavailableError):
            continue


def _lost(what: str, scope: str, stream: str, txn_id: UUID) -> TransactionFailedError:
    return TransactionFailedError(
        f"{what} can't be committed to {scope}/{stream}: its transaction {txn_id} was aborted or has timed out, "
        "and what it held is lost. Raise transaction_timeout_ms above the longest time that a query may be "
        "down; to write that batch again, start from its offsets with a new checkpoint"
    )
