"""Rows to events, in transactions: one for each task, committed together by the driver when all tasks are done.

A task's transaction has a short lease while it is written, so that a killed task's is soon gone, and a
long one once it is handed to the driver, so that it outlives a driver's restart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from nadi.client.aio import Transaction
from nadi.client.writing.transactions import let_go
from nadi.errors import InvalidArgumentError, NadiError
from nadi.model.delivery import AT_MOST_ONCE, EXACTLY_ONCE
from nadi.naming import VALUE
from nadi.spark.connections import Client, batch_of_task, begin_task, client_of
from nadi.spark.intents import Claims, SinkRecord, abort_all, application, commit_all
from nadi.spark.options.columns import TYPES
from nadi.spark.options.write import WriteOptions
from nadi.spark.writing.modes import BatchPlan, drop_former

_logger = logging.getLogger(__name__)
_WRITING_LEASE_MS = 60_000


@dataclass
class Written(WriterCommitMessage):
    """What a task reports to the driver; no transaction if it had no rows."""

    transaction: UUID | None
    query_id: str | None


@dataclass(frozen=True, slots=True)
class Columns:
    """The positions of the event and its routing key in a row."""

    event: int
    routing_key: int | None

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> Columns:
        """Find the columns by their names, in upper or lower case. InvalidArgumentError unless they exist and have the
        right types, and for any other column but those of nadi's own reads, which aren't written."""
        names = schema.fieldNames()
        event = _position(names, options.event_column)
        if event is None:
            raise InvalidArgumentError(
                f"the rows have no column {options.event_column!r} to be written as events, only {', '.join(names)}: "
                f"make one{'' if options.value else ' (binary or string)'}, or name one with event_attribute_name"
            )
        kind = schema.fields[event].dataType
        if options.value is None and not isinstance(kind, BinaryType | StringType):
            raise InvalidArgumentError(
                f"the column {options.event_column!r} is {kind.simpleString()}: cast it to binary or string"
            )
        key_name = options.routing_key_column or "routing_key"
        key = _position(names, key_name)
        if key is None and options.routing_key_column is not None:
            raise InvalidArgumentError(f"the rows have no column {key_name!r} for the routing key")
        if key is not None and not isinstance(schema.fields[key].dataType, StringType):
            raise InvalidArgumentError(f"the routing key column {key_name!r} must be a string: cast it")
        for at, name in enumerate(names):
            if at not in (event, key) and name.lower() not in (*TYPES, VALUE) and not options.takes_other_columns:
                raise InvalidArgumentError(
                    f"the column {name!r} has no effect: an event is {options.event_column!r}, and its routing key "
                    f"{key_name!r}. Leave it out, or put it into the event, as with to_json(struct(*))"
                )
        return cls(event, key)


def _position(names: Sequence[str], wanted: str) -> int | None:
    """Where a column is; InvalidArgumentError if several have that name, in upper or lower case."""
    alike = [at for at, name in enumerate(names) if name.lower() == wanted.lower()]
    if len(alike) > 1:
        raise InvalidArgumentError(
            f"the columns {', '.join(names[at] for at in alike)} could each be {wanted!r}: keep one"
        )
    return alike[0] if alike else None


def write_rows(options: WriteOptions, columns: Columns, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write a task's rows into a transaction of its own; it is aborted if anything goes wrong."""
    begin_task()
    query_id, _ = batch_of_task() or (None, None)
    client = client_of(options.controller)
    txn: Transaction | None = None
    try:
        for events, keys in _events(options, columns, batches):
            if txn is None:
                txn = client.run(_begin(client, options))
            txn.write_batch(events, keys)
        if txn is not None:
            client.run(_hand_over(txn, options.transaction_timeout_ms))
    except BaseException:
        if txn is not None:
            client.run(_abort(txn))
        raise
    return Written(txn.txn_id if txn else None, query_id)


def write_now(options: WriteOptions, columns: Columns, batches: Iterator[pa.RecordBatch], run: str) -> Written:
    """Write a task's rows without a transaction: they can be read at once, and come twice if it is tried again. At most
    once, only if neither another run has begun this batch nor another attempt this task: then the rows are left out."""
    begin_task()
    client = client_of(options.controller)
    if options.delivery == AT_MOST_ONCE and not client.run(_is_first(client, options, run)):
        _logger.warning("a task's rows are left out of %s: they may be written already", options.stream)
        return Written(None, None)
    writer = client.run(client.event_writer(options.scope, options.stream))
    try:
        for events, keys in _events(options, columns, batches):
            client.run(writer.write_many(events, keys))
        client.run(writer.flush())
    except NadiError:
        client.forget_event_writer(options.scope, options.stream)  # its stream may have been deleted
        raise
    return Written(None, None)


async def _is_first(client: Client, options: WriteOptions, run: str) -> bool:
    if options.application is not None:
        name, number = application(options.application[0]), options.application[1]
    else:
        batch = batch_of_task()
        assert batch is not None, "a task of a streaming query has its id"
        name, number = batch
    claims = Claims(client.manager, options.scope, f"{name}/{options.stream}")
    return await claims.batch(number, run) and await claims.task(number, run)


def _events(
    options: WriteOptions, columns: Columns, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.Array, pa.Array | None]]:
    """The events of batches that have any, and their keys."""
    encode = None
    if options.target is not None:
        from nadi.client.values.parser import encoder  # and the format's library: most writes do without

        encode = encoder(options.target)
    for batch in batches:
        if batch.num_rows == 0:
            continue
        events = batch.column(columns.event)
        if events.null_count:
            raise InvalidArgumentError(f"a row's {options.event_column!r} is null: an event needs bytes")
        keys = None if columns.routing_key is None else batch.column(columns.routing_key)
        yield events.cast(pa.binary()) if encode is None else pa.array(encode(events), pa.binary()), keys


async def _begin(client: Client, options: WriteOptions) -> Transaction:
    writer = await client.transaction_writer(options.scope, options.stream)
    return await writer.begin_txn(_WRITING_LEASE_MS)


async def _hand_over(txn: Transaction, lease_ms: int) -> None:
    await txn.flush()
    let_go(txn)  # and with it the pinger, which would shorten the lease again
    await txn.ping(lease_ms)


async def _abort(txn: Transaction) -> None:
    try:
        await txn.abort()
    except NadiError:
        let_go(txn)  # it ends with its lease


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[UUID]:
    return [m.transaction for m in messages if isinstance(m, Written) and m.transaction is not None]


class _Writer:
    """What a task does, the same for both."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = Columns.of(schema, options)
        self._run = uuid4().hex  # of the query: made beside the driver

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._options.delivery == EXACTLY_ONCE:
            return write_rows(self._options, self._columns, iterator)
        return write_now(self._options, self._columns, iterator, self._run)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`: all or nothing, by one commit of all tasks' transactions."""

    def __init__(self, options: WriteOptions, schema: StructType, plan: BatchPlan) -> None:
        super().__init__(options, schema)
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._plan.skips:
            return Written(None, None)
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options, client = self._options, client_of(self._options.controller)
        written = _transactions(messages)
        if options.application is not None and options.delivery == EXACTLY_ONCE:
            name, version = options.application
            if not self._plan.skips:
                record = SinkRecord(client.manager, options, application(name), skips=True)
                client.run(record.commit(version, written, self._plan.former))
        else:
            client.run(commit_all(client.manager, options, written, "the rows of this write"))
        client.run(drop_former(client.manager, options, self._plan))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        options, client = self._options, client_of(self._options.controller)
        written = _transactions(messages)
        if options.application is None:
            client.run(abort_all(client.manager, options, written))
        else:
            record = SinkRecord(client.manager, options, application(options.application[0]))
            client.run(record.abort(written))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch exactly once, whatever is killed or rerun (see `intents`)."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        record, client = self._record(messages)
        if record is not None:
            client.run(record.commit(batchId, _transactions(messages)))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        record, client = self._record(messages)
        if record is not None:
            client.run(record.abort(_transactions(messages)))

    def _record(self, messages: Sequence[WriterCommitMessage | None]) -> tuple[SinkRecord | None, Client]:
        client = client_of(self._options.controller)
        for message in messages:
            if isinstance(message, Written) and self._options.delivery == EXACTLY_ONCE:
                assert message.query_id, "a task of a streaming query has its id"
                return SinkRecord(client.manager, self._options, message.query_id), client
        return None, client
