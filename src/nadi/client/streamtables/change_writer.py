"""Write the changes of a table to another stream as they happen, each exactly once.

A round reads the rows written since the last one, up to a cut, computes their changes, and stores these in a
transaction. Then a record is updated by compare-and-set: it names the transaction and the cut. Then the transaction is
committed, and the record updated again. A process killed

- before the first update leaves an unrecorded transaction, which expires with its lease; the next process repeats the
  round;
- after it leaves a record, and the next process commits the transaction.

Of two concurrent processes, the second one's compare-and-set fails and it stops; its transaction is never committed. A
recorded transaction that expired before it was committed is written again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from nadi.client.blocking.classes import Transaction, TransactionalEventWriter
from nadi.client.blocking.face import inside
from nadi.client.blocking.manager import StreamManager
from nadi.client.control.arguments import check_seconds, checking
from nadi.client.definitions.columns import CHANGE
from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import resolve_missing
from nadi.client.serializers.types import to_ddl
from nadi.client.streamtables.changes import changed, changes_of, changes_schema
from nadi.client.streamtables.encoded import RowEncoder
from nadi.client.streamtables.latest_rows import LatestByKey, windows
from nadi.client.streamtables.table import Place, StreamTable, stream_table
from nadi.client.tables.catalog import Catalog, RecordKind
from nadi.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    NadiError,
    NotFoundError,
    StreamRecreatedError,
    StreamTableNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.limits import (
    STREAM_TABLE_BATCH_ROWS,
    STREAM_TABLE_LEASE_MS,
    STREAM_TABLE_ROUND_BYTES,
    STREAM_TABLE_ROUND_EVENTS,
)
from nadi.model.named_records import PROGRESS_PREFIX, ChangesRecord
from nadi.model.streamcut import StreamCut
from nadi.naming import STREAM_TABLES_TABLE, segment_name

IfUnknown = Literal["raise", "written", "again"]


@checking
def write_changes(
    manager: StreamManager,
    scope: str,
    name: str,
    to: str,
    *,
    end: Place | None = None,
    stop: threading.Event | None = None,
    every: float = 1.0,
    on_progress: Callable[[int], None] | None = None,
    on_unknown_commit: IfUnknown = "raise",
) -> int:
    """Write the changes of a stream table into the stream of another, continuing after those written before, or from
    the stream's head. Return the number of changes written by this call.

    to: a stream table of the same scope with a column `_change_type`, or a stream, on which such a table of JSON events
    is defined. end: where to stop; without it the call continues until `stop` is set, polling every `every` seconds.
    on_progress: called with the number so far. Each change is written exactly once, in order per key, however often the
    call is repeated.

    ConflictError if another process writes the same changes. on_unknown_commit: what to do if the last transaction of
    an earlier call ended so long ago that the server has forgotten whether it was committed: raise ConflictError,
    assume that its changes are written, or write them again.
    """
    check_seconds(every, "every")
    if on_unknown_commit not in ("raise", "written", "again"):
        raise InvalidArgumentError(f"on_unknown_commit is 'raise', 'written' or 'again', not {on_unknown_commit!r}")
    source = stream_table(manager, scope, name)
    writer = ChangeWriter(manager, source, _target(manager, source, to))
    return writer.run(end, stop or threading.Event(), every, on_progress, on_unknown_commit)


def _target(manager: StreamManager, source: StreamTable, to: str) -> StreamTable:
    scope, definition = source.definition.scope, source.definition
    if to in (definition.name, definition.stream):
        raise InvalidArgumentError(
            f"the changes of {scope}/{definition.name} can't be written into its own stream: choose another table"
        )
    try:
        return stream_table(manager, scope, to)
    except StreamTableNotFoundError:
        columns = pa.struct([*source.layout.fields, pa.field(CHANGE, pa.string())])
        with suppress(AlreadyExistsError):  # another process was faster
            manager.stream_tables(scope).define(
                to,
                value_schema=to_ddl(columns),
                key=definition.key,
                event_time=definition.event_time,
                note=f"changes of {definition.name}",
            )
        return stream_table(manager, scope, to)


def _with_columns(manager: StreamManager, fields: Sequence[pa.Field], target: StreamTable) -> StreamTable:
    """Add missing columns to the table, if its definition lists its columns."""
    definition = target.definition
    existing = set(target.schema.names)
    missing = [field for field in fields if field.name not in existing]
    if not missing or definition.value_schema is None:
        return target
    text, end = definition.value_schema.strip(), ""
    if text.lower().startswith("struct<"):
        text, end = text[:-1], ">"
    return StreamTable(
        manager,
        manager.stream_tables(definition.scope).define(
            definition.name,
            stream=definition.stream,
            value_format=definition.value_format,
            value_schema=f"{text}, {to_ddl(pa.struct(missing))}{end}",
            value_mode=definition.value_mode,
            key=definition.key,
            event_time=definition.event_time,
            note=definition.note,
            replace=True,
        ),
    )


class ChangeWriter:
    """Writes the changes of one table into the stream of another. step: called with the name of each step, for
    tests."""

    def __init__(
        self,
        manager: StreamManager,
        source: StreamTable,
        target: StreamTable,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._manager, self._source, self._target, self._step = manager, source, target, step
        self._scope, self._stream = target.definition.scope, target.definition.stream
        if self._stream == source.definition.stream:
            raise InvalidArgumentError(
                f"{target.definition.name} is a table of the source's stream: write to another table"
            )
        self._plan()
        self._cuts = manager.cuts(self._scope, source.definition.stream)
        self._thread, core = inside(manager)
        self._stores = stores_of(core)
        to = target.definition.name
        kind: RecordKind[ChangesRecord] = RecordKind(
            "the progress of the changes in",
            self._scope,
            "delete the target table `{}` and write the changes again".format,
            NotFoundError,
            lambda _, value: msgspec.json.decode(value, type=ChangesRecord),
            prefix=PROGRESS_PREFIX,
        )
        self._progress = Catalog(self._stores, self._scope, STREAM_TABLES_TABLE, kind).record(to, waits=True)
        self._record: ChangesRecord | None = None  # as last read or written by this process
        self._state: LatestByKey | None = None  # None: too large for memory

    def run(
        self,
        end: Place | None,
        stop: threading.Event,
        every_s: float,
        on_progress: Callable[[int], None] | None,
        on_unknown_commit: IfUnknown,
    ) -> int:
        last = self._cut(end)
        count = 0
        with self._manager.create_transaction_writer(
            self._scope, self._stream, lease_ms=STREAM_TABLE_LEASE_MS
        ) as writer:
            record = self._resolve_pending(writer, self._load_record(), on_unknown_commit)
            position = StreamCut.from_text(record.at)
            self._check_stream(position)
            self._state = self._state_at(position)
            while not stop.is_set():
                position = StreamCut.from_text(record.at)
                to = self._next(position, last)
                if to is None and last is not None:
                    break
                if to is None:
                    stop.wait(every_s)
                    continue
                self._update_columns(position)
                record, more = self._round(writer, record, position, to)
                count += more
                if on_progress is not None:
                    on_progress(count)
        return count

    # --- inside -----------------------------------------------------------------------------

    def _plan(self) -> None:
        """Derive the layout and encoder from the source's current columns."""
        source, target = self._source, self._target
        self._layout = source.layout
        if target.definition.key != source.definition.key:
            raise InvalidArgumentError(
                f"the key of table {self._scope}/{target.definition.name} differs from that of "
                f"{source.definition.name}, {', '.join(source.definition.key)}: define it with the same key, as only "
                "changes with the same routing key are ordered"
            )
        schema = changes_schema(self._layout)
        self._names = [CHANGE, *(field.name for field in self._layout.fields if field.name != CHANGE)]
        target = self._target = _with_columns(self._manager, self._layout.fields, target)
        self._encode = RowEncoder(target.definition, target.target, pa.schema([schema.field(n) for n in self._names]))

    def _update_columns(self, position: StreamCut) -> None:
        """Adopt columns added to the source; ConflictError if one was removed or changed."""
        self._source = stream_table(self._manager, self._scope, self._source.definition.name)
        layout = self._source.layout
        if layout == self._layout:
            return
        if not set(self._layout.fields) <= set(layout.fields) or layout.key != self._layout.key:
            raise ConflictError(
                f"columns of {self._scope}/{self._source.definition.name} were removed or changed: change the table of "
                "its changes accordingly, and start again"
            )
        self._plan()
        self._state = self._state_at(position)

    def _cut(self, end: Place | None) -> StreamCut | None:
        if end is None or isinstance(end, StreamCut):
            return end
        return self._cuts.at(end) if isinstance(end, datetime) else self._cuts.named(end, end=True)

    def _load_record(self) -> ChangesRecord:
        key = (self._source.definition.stream, *self._source.definition.key)
        record = self._record = self._thread.run(self._progress.find())
        if record is None:
            record = ChangesRecord(self._stream, self._source.definition.name, key, self._cuts.head().as_text())
            self._put(record)
        if (record.table, record.key) != (self._source.definition.name, key):
            raise ConflictError(
                f"{self._scope}/{self._stream} has the changes of table {record.table} of stream {record.key[0]} by "
                f"{', '.join(record.key[1:])}: write other changes to another stream"
            )
        return record

    def _put(self, record: ChangesRecord) -> None:
        """Store the record; ConflictError if another process has changed it since it was read."""

        def updated(stored: ChangesRecord | None) -> ChangesRecord:
            if stored != self._record:
                raise ConflictError(
                    f"another process writes the changes in {self._scope}/{self._target.definition.name} and has "
                    "updated their progress: this one stops"
                )
            return record

        self._thread.run(self._progress.put(updated, lambda stored: stored == record))
        self._record = record

    def _resolve_pending(
        self, writer: TransactionalEventWriter, record: ChangesRecord, on_unknown_commit: IfUnknown
    ) -> ChangesRecord:
        """Commit a pending transaction, or discard an expired one; return the updated record."""
        if not record.transaction:
            return record
        is_written = on_unknown_commit == "written"
        try:
            writer.get_txn(record.transaction).commit(wait=True)
            is_written = True
        except TransactionFailedError:  # its lease has expired
            is_written = False
        except TransactionNotFoundError as error:
            if on_unknown_commit == "raise":
                raise ConflictError(
                    f"the server has forgotten whether transaction {record.transaction} of stream "
                    f"{self._scope}/{self._stream} was committed. Check whether that stream ends with the changes of "
                    f"{self._scope}/{record.table} up to {record.next}: if so, continue with "
                    "on_unknown_commit='written', else with 'again'"
                ) from error
        resolved = replace(record, at=record.next if is_written else record.at, next="", transaction="")
        self._put(resolved)
        return resolved

    def _check_stream(self, position: StreamCut) -> None:
        """Raise StreamRecreatedError if the cut belongs to a stream that was deleted and created again."""
        error = self._thread.run(
            resolve_missing(self._stores, segment_name(position.scope, position.stream, max(position.positions)))
        )
        if isinstance(error, StreamRecreatedError):
            to = f"{self._scope}/{self._stream}"
            raise StreamRecreatedError(
                position.scope,
                position.stream,
                f"{to} contains changes of the deleted stream. Write those of the new stream to another one; or delete "
                f"and recreate {to}, and start again",
            )

    def _state_at(self, position: StreamCut) -> LatestByKey | None:
        self._cuts.bytes_between(position, self._cuts.tail())  # raises TruncatedError if the next events were truncated
        state = LatestByKey(self._layout, keeps_deleted=True)
        for rows in self._source.placed_rows(self._layout, None, position):
            state.add(rows)
            if state.is_too_large:
                return None
        return state

    def _next(self, position: StreamCut, last: StreamCut | None) -> StreamCut | None:
        """Return the end of the next round; None if there is nothing to read."""
        to = last if last is not None else self._cuts.tail()
        if last is not None and self._cuts.compare(position, last).is_at_or_after:
            return None
        size = self._cuts.bytes_between(position, to)
        events = STREAM_TABLE_ROUND_EVENTS
        while size > STREAM_TABLE_ROUND_BYTES:
            cut = self._cuts.earliest(self._cuts.after(position, events), to)
            size = self._cuts.bytes_between(position, cut)
            if events == 1 or size <= STREAM_TABLE_ROUND_BYTES * 2:
                return cut
            events = max(1, events * STREAM_TABLE_ROUND_BYTES // size)
        return to if size else None

    def _round(
        self, writer: TransactionalEventWriter, record: ChangesRecord, position: StreamCut, to: StreamCut
    ) -> tuple[ChangesRecord, int]:
        after = replace(record, at=to.as_text())
        txn: Transaction | None = None
        count = 0
        try:
            for changes in self._changes(position, to):
                for batch in changes.select(self._names).combine_chunks().to_batches(STREAM_TABLE_BATCH_ROWS):
                    if not batch.num_rows:
                        continue
                    encoded = self._encode.of(batch)
                    if txn is None:
                        txn = writer.begin_txn()
                        self._step("begun")
                    txn.write_batch(list(encoded.events), encoded.keys)
                    count += len(encoded.events)
            if txn is not None:
                txn.flush()
                self._step("written")
                self._put(replace(record, next=after.at, transaction=str(txn.txn_id)))
        except BaseException:
            if txn is not None:  # unrecorded; if the outcome is unknown, it expires or is committed later
                with suppress(NadiError):
                    self._abort_unrecorded(txn)
            raise
        if txn is not None:
            self._step("recorded")
            txn.commit(wait=True)
            self._step("committed")
        self._put(after)
        self._step("done")
        return after, count

    def _abort_unrecorded(self, txn: Transaction) -> None:
        record = self._thread.run(self._progress.find())
        if record is None or record.transaction != str(txn.txn_id):
            txn.abort()

    def _changes(self, position: StreamCut, to: StreamCut) -> Iterator[pa.Table]:
        rows = self._source.placed_rows(self._layout, position, to)
        if self._state is None:
            yield from changes_of(self._layout, self._source.placed_rows(self._layout, None, position), rows)
            return
        for window in windows(rows):
            changes, new = changed(self._layout, self._state.rows(), window)
            yield changes
            self._state.add(new)
        if self._state.is_too_large:
            self._state = None
