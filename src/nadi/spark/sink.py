"""Write rows as events in transactions: one per task, committed together by the driver after all tasks.

A task's transaction has a short lease while it is written, so that a killed task's transaction expires soon, and a long
one once it is handed to the driver, so that it survives the driver's restart.

A batch write into a stream with events is planned in the driver's process before any task runs. Spark rejects the modes
`errorifexists`, its default, and `ignore` for sources in Python; so users pass `append` and the option `save_mode`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from nadi.client.aio import StreamManager, Transaction
from nadi.client.stream_cuts.timestamps import HEAD, TAIL
from nadi.client.writing.transactions import release_transaction
from nadi.errors import InvalidArgumentError, NadiError, NotEmptyError, SegmentTruncatedError
from nadi.model.delivery import AT_MOST_ONCE, EXACTLY_ONCE
from nadi.model.streamcut import StreamCut
from nadi.naming import VALUE
from nadi.spark.columns import TYPES
from nadi.spark.connections import TaskClient, batch_of_task, begin_task, client_of
from nadi.spark.intents import Claims, SinkRecord, abort_all, application, commit_all
from nadi.spark.options.parsed import WriteOptions

_logger = logging.getLogger(__name__)
_WRITING_LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of a batch write.

    skips: nothing is written. former: after the write the stream is truncated at this cut; for a repeated write of an
    application, the cut of the first attempt.
    """

    skips: bool = False
    former: StreamCut | None = None


def check_overwrite(options: WriteOptions, *, overwrite: bool) -> None:
    if overwrite and not options.truncates:
        raise InvalidArgumentError(
            'mode("overwrite") would drop all events of the stream: also set .option("truncate", "true"), or '
            'append with .mode("append")'
        )
    if options.truncates and not overwrite:
        raise InvalidArgumentError("the option 'truncate' has no effect without mode(\"overwrite\")")
    if overwrite and options.save_mode != "append":
        raise InvalidArgumentError(
            f"the option 'save_mode' is {options.save_mode!r}: it can't be combined with mode(\"overwrite\")"
        )


async def plan_of(manager: StreamManager, options: WriteOptions) -> BatchPlan:
    """Return the plan; NotEmptyError if the stream has events and the options don't allow that."""
    if options.application is not None:
        name, version = options.application
        last = await SinkRecord(manager, options, application(name), skips=True).last()
        if last is not None and last.batch >= version:
            former = StreamCut.from_text(last.former) if last.batch == version and last.former else None
            return BatchPlan(last.batch > version or last.done, former)
    if options.save_mode == "append" and not options.truncates:
        return BatchPlan()
    cuts = manager.cuts(options.scope, options.stream)
    tail = await cuts.named(TAIL)
    if options.truncates:
        return BatchPlan(former=tail)
    if await cuts.bytes_between(await cuts.named(HEAD), tail) == 0:
        return BatchPlan()
    if options.save_mode == "ignore":
        return BatchPlan(skips=True)
    raise NotEmptyError(
        f"{options.scope}/{options.stream} already has events, and save_mode is errorifexists: write to another "
        "stream, or append"
    )


async def _drop(manager: StreamManager, former: StreamCut) -> None:
    """Truncate the stream at the cut, or at its head if others have truncated more. Called after the new events are
    written: a failure before leaves both."""
    try:
        await manager.truncate_stream(former)
    except InvalidArgumentError:  # in some segment, the head is after the cut
        cuts = manager.cuts(former.scope, former.stream)
        head = await cuts.named(HEAD)
        with suppress(SegmentTruncatedError):
            if not (await cuts.compare(former, head)).is_at_or_before:
                await manager.truncate_stream(await cuts.latest(former, head))


@dataclass(frozen=True, slots=True)
class SinkColumns:
    event: int
    routing_key: int | None

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> SinkColumns:
        """Find the columns by name, case-insensitively. InvalidArgumentError unless they exist with the right types,
        and for other columns except those of nadi's own reads, which aren't written."""
        names = schema.fieldNames()
        event = _position(names, options.event_column)
        if event is None:
            raise InvalidArgumentError(
                f"the rows lack the column {options.event_column!r} with the events, and have {', '.join(names)}: "
                f"add one{'' if options.value else ' (binary or string)'}, or set event_attribute_name"
            )
        kind = schema.fields[event].dataType
        if options.value is None and not isinstance(kind, BinaryType | StringType):
            raise InvalidArgumentError(
                f"the column {options.event_column!r} is {kind.simpleString()}: cast it to binary or string"
            )
        key_name = options.routing_key_column or "routing_key"
        key = _position(names, key_name)
        if key is None and options.routing_key_column is not None:
            raise InvalidArgumentError(f"the rows lack the column {key_name!r} for the routing key")
        if key is not None and not isinstance(schema.fields[key].dataType, StringType):
            raise InvalidArgumentError(f"the routing key column {key_name!r} must be a string: cast it")
        for index, name in enumerate(names):
            if index not in (event, key) and name.lower() not in (*TYPES, VALUE) and not options.takes_other_columns:
                raise InvalidArgumentError(
                    f"the column {name!r} wouldn't be written: an event is {options.event_column!r}, and its routing "
                    f"key {key_name!r}. Drop it, or include it in the event, as with to_json(struct(*))"
                )
        return cls(event, key)


def _position(names: Sequence[str], name: str) -> int | None:
    """Return the index of a column; InvalidArgumentError if several have that name, ignoring case."""
    matches = [index for index, column in enumerate(names) if column.lower() == name.lower()]
    if len(matches) > 1:
        raise InvalidArgumentError(
            f"the columns {', '.join(names[index] for index in matches)} all match {name!r}: keep one"
        )
    return matches[0] if matches else None


@dataclass
class TaskCommit(WriterCommitMessage):
    """A task's report to the driver; without a transaction if it had no rows."""

    transaction: UUID | None = None
    query_id: str | None = None


class _SinkWriter:
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = SinkColumns.of(schema, options)
        self._run = uuid4().hex  # of the query: set in the driver's process

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        begin_task()
        is_exact = self._options.delivery == EXACTLY_ONCE
        return self._write_transaction(iterator) if is_exact else self._write_now(iterator)

    def _write_transaction(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write a task's rows into a transaction, which is aborted on any error."""
        query_id, _ = batch_of_task() or (None, None)
        client = client_of(self._options.controller)
        txn: Transaction | None = None
        try:
            for events, keys in self._events(batches):
                if txn is None:
                    txn = client.run(self._begin(client))
                txn.write_batch(events, keys)
            if txn is not None:
                client.run(_hand_over(txn, self._options.transaction_timeout_ms))
        except BaseException:
            if txn is not None:
                client.run(_abort(txn))
            raise
        return TaskCommit(txn.txn_id if txn else None, query_id)

    def _write_now(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write a task's rows without a transaction: readable at once, and duplicated if the task is repeated. At most
        once, rows are skipped if another run has started this batch, or another attempt this task."""
        options, client = self._options, client_of(self._options.controller)
        key = (options.scope, options.stream)
        if options.delivery == AT_MOST_ONCE and not client.run(self._is_first(client)):
            _logger.warning(
                "a task's rows are not written to %s: an earlier attempt may have written them", options.stream
            )
            return TaskCommit()
        if key not in client.event_writers:
            client.event_writers[key] = client.run(client.manager.create_writer(*key))
        writer = client.event_writers[key]
        try:
            for events, keys in self._events(batches):
                client.run(writer.write_many(events, keys))
            client.run(writer.flush())
        except NadiError:
            client.event_writers.pop(key, None)  # its stream may have been deleted
            raise
        return TaskCommit()

    async def _is_first(self, client: TaskClient) -> bool:
        if self._options.application is not None:
            name, number = application(self._options.application[0]), self._options.application[1]
        else:
            batch = batch_of_task()
            assert batch is not None, "tasks of a streaming query know the query's id"
            name, number = batch
        claims = Claims(client.manager, self._options.scope, f"{name}/{self._options.stream}")
        return await claims.batch(number, self._run) and await claims.task(number, self._run)

    async def _begin(self, client: TaskClient) -> Transaction:
        key = (self._options.scope, self._options.stream)
        if key not in client.writers:
            client.writers[key] = await client.manager.create_transaction_writer(*key)
        return await client.writers[key].begin_txn(_WRITING_LEASE_MS)

    def _events(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Array, pa.Array | None]]:
        encode = None
        if self._options.target is not None:
            from nadi.client.values.parser import encoder  # loads the format's library, which most writes don't need

            encode = encoder(self._options.target)
        for batch in batches:
            if batch.num_rows == 0:
                continue
            events = batch.column(self._columns.event)
            if events.null_count:
                raise InvalidArgumentError(
                    f"the column {self._options.event_column!r} has a null: an event needs bytes"
                )
            keys = None if self._columns.routing_key is None else batch.column(self._columns.routing_key)
            yield events.cast(pa.binary()) if encode is None else pa.array(encode(events), pa.binary()), keys


async def _hand_over(txn: Transaction, lease_ms: int) -> None:
    await txn.flush()
    release_transaction(txn)  # also stops the pinger, which would shorten the lease again
    await txn.ping(lease_ms)


async def _abort(txn: Transaction) -> None:
    try:
        await txn.abort()
    except NadiError:
        release_transaction(txn)  # it expires with its lease


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[UUID]:
    return [m.transaction for m in messages if isinstance(m, TaskCommit) and m.transaction is not None]


class BatchWriter(_SinkWriter, DataSourceArrowWriter):
    """`df.write`: all or nothing, by one commit of all tasks' transactions."""

    def __init__(self, options: WriteOptions, schema: StructType, plan: BatchPlan) -> None:
        super().__init__(options, schema)
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return TaskCommit() if self._plan.skips else super().write(iterator)

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
        if self._plan.former is not None:
            client.run(_drop(client.manager, self._plan.former))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        options, client = self._options, client_of(self._options.controller)
        written = _transactions(messages)
        if options.application is None:
            client.run(abort_all(client.manager, options, written))
        else:
            client.run(SinkRecord(client.manager, options, application(options.application[0])).abort(written))


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch exactly once, despite crashes and repetitions (see `intents`)."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        client = client_of(self._options.controller)
        if (record := self._record(client, messages)) is not None:
            client.run(record.commit(batchId, _transactions(messages)))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        client = client_of(self._options.controller)
        if (record := self._record(client, messages)) is not None:
            client.run(record.abort(_transactions(messages)))

    def _record(self, client: TaskClient, messages: Sequence[WriterCommitMessage | None]) -> SinkRecord | None:
        for message in messages:
            if isinstance(message, TaskCommit) and self._options.delivery == EXACTLY_ONCE:
                assert message.query_id, "tasks of a streaming query know the query's id"
                return SinkRecord(client.manager, self._options, message.query_id)
        return None
