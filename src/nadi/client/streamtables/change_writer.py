"""The changes of a table, written to another stream as they come, each exactly once.

A round reads what was written since the last one, up to a cut, makes changes of it, and stores these in a transaction.
Then one record, by compare-and-set, says which transaction has what lies up to which cut; then the transaction is
committed, and the record says that. Who is killed

- before the record was changed leaves a transaction that nobody knows of, which ends with its lease, and the round is
  made again by whoever is next;
- after it leaves a record, and whoever is next commits.

Of two at once the second to change the record finds it changed, and stops; its transaction is never committed. A
transaction that was recorded and yet can't be committed, since nobody came before its lease ran out, is made again.
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
from nadi.client.segments.info import what_became_of
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
    """Write the changes of a stream table into the stream of another one, from where it was left: by default from the
    stream's head on. Return how many were written by this call.

    to: a stream table of the same scope with a column `_change_type`, or a stream, on which one is defined: its events
    are JSON. end: where to stop; else it goes on until `stop` is set, and looks every so many seconds. on_progress:
    called with the number so far. Each change is there once, however often this is begun, in order per key.

    ConflictError if another process has begun to write the same changes. on_unknown_commit: what to do if the last
    transaction of an earlier call ended so long ago that the server has forgotten whether it was committed: raise
    ConflictError, take its changes for written, or write them again.
    """
    check_seconds(every, "every")
    if on_unknown_commit not in ("raise", "written", "again"):
        raise InvalidArgumentError(f"on_unknown_commit is 'raise', 'written' or 'again', not {on_unknown_commit!r}")
    source = stream_table(manager, scope, name)
    following = Following(manager, source, _target(manager, source, to))
    return following.run(end, stop or threading.Event(), every, on_progress, on_unknown_commit)


def _target(manager: StreamManager, source: StreamTable, to: str) -> StreamTable:
    scope, definition = source.definition.scope, source.definition
    if to in (definition.name, definition.stream):
        raise InvalidArgumentError(f"the changes of {scope}/{definition.name} can't be written into itself")
    try:
        return stream_table(manager, scope, to)
    except StreamTableNotFoundError:
        columns = pa.struct([*source.layout.fields, pa.field(CHANGE, pa.string())])
        with suppress(AlreadyExistsError):  # somebody else was faster
            manager.stream_tables(scope).define(
                to,
                value_schema=to_ddl(columns),
                key=definition.key,
                event_time=definition.event_time,
                note=f"changes of {definition.name}",
            )
        return stream_table(manager, scope, to)


def _with_columns(manager: StreamManager, fields: Sequence[pa.Field], target: StreamTable) -> StreamTable:
    """The table with columns for all these, as far as its definition names its columns."""
    definition = target.definition
    there = set(target.schema.names)
    missing = [field for field in fields if field.name not in there]
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


class Following:
    """Writes the changes of one table into the stream of another. step: called with the name of each step."""

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
            raise InvalidArgumentError(f"{target.definition.name} is a table of the stream that changes: take another")
        self._plan()
        self._cuts = manager.cuts(self._scope, source.definition.stream)
        self._thread, core = inside(manager)
        self._stores = stores_of(core)
        to = target.definition.name
        kind: RecordKind[ChangesRecord] = RecordKind(
            "the progress of the changes in",
            self._scope,
            "delete the table `{}` that they are written to, and write them anew".format,
            NotFoundError,
            lambda _, value: msgspec.json.decode(value, type=ChangesRecord),
            prefix=PROGRESS_PREFIX,
        )
        self._progress = Catalog(self._stores, self._scope, STREAM_TABLES_TABLE, kind).record(to, waits=True)
        self._record: ChangesRecord | None = None  # as this process read or wrote it last
        self._state: LatestByKey | None = None  # None: more than memory may hold

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
            record = self._settled(writer, self._begun(), on_unknown_commit)
            at = StreamCut.from_text(record.at)
            self._check_stream(at)
            self._state = self._state_at(at)
            while not stop.is_set():
                at = StreamCut.from_text(record.at)
                to = self._next(at, last)
                if to is None and last is not None:
                    break
                if to is None:
                    stop.wait(every_s)
                    continue
                self._follow(at)
                record, more = self._round(writer, record, at, to)
                count += more
                if on_progress is not None:
                    on_progress(count)
        return count

    # --- inside -----------------------------------------------------------------------------

    def _plan(self) -> None:
        """For the columns that the source has now."""
        source, target = self._source, self._target
        self._layout = source.layout
        if target.definition.key != source.definition.key:
            raise InvalidArgumentError(
                f"the key of table {self._scope}/{target.definition.name} isn't that of "
                f"{source.definition.name}, {', '.join(source.definition.key)}: define it so, for changes of a key "
                "have an order only under the same routing key"
            )
        schema = changes_schema(self._layout)
        self._names = [CHANGE, *(field.name for field in self._layout.fields if field.name != CHANGE)]
        target = self._target = _with_columns(self._manager, self._layout.fields, target)
        self._encode = RowEncoder(target.definition, target.target, pa.schema([schema.field(n) for n in self._names]))

    def _follow(self, at: StreamCut) -> None:
        """Go on with the columns that the source has got since; ConflictError if one has gone, or is another."""
        self._source = stream_table(self._manager, self._scope, self._source.definition.name)
        layout = self._source.layout
        if layout == self._layout:
            return
        if not set(self._layout.fields) <= set(layout.fields) or layout.key != self._layout.key:
            raise ConflictError(
                f"the columns of {self._scope}/{self._source.definition.name} have changed: define the table of its "
                "changes so, too, and begin again"
            )
        self._plan()
        self._state = self._state_at(at)

    def _cut(self, end: Place | None) -> StreamCut | None:
        if end is None or isinstance(end, StreamCut):
            return end
        return self._cuts.at(end) if isinstance(end, datetime) else self._cuts.named(end, end=True)

    def _begun(self) -> ChangesRecord:
        key = (self._source.definition.stream, *self._source.definition.key)
        found = self._record = self._thread.run(self._progress.find())
        if found is None:
            found = ChangesRecord(self._stream, self._source.definition.name, key, self._cuts.head().as_text())
            self._put(found)
        if (found.table, found.key) != (self._source.definition.name, key):
            raise ConflictError(
                f"{self._scope}/{self._stream} has the changes of table {found.table} of stream {found.key[0]} by "
                f"{', '.join(found.key[1:])}: write others to another stream"
            )
        return found

    def _put(self, record: ChangesRecord) -> None:
        """ConflictError if another process has changed it since it was read."""

        def replaced(stored: ChangesRecord | None) -> ChangesRecord:
            if stored != self._record:
                raise ConflictError(
                    f"how far the changes in {self._scope}/{self._target.definition.name} are written was changed by "
                    "another process, which writes them now: this one stops"
                )
            return record

        self._thread.run(self._progress.put(replaced, lambda stored: stored == record))
        self._record = record

    def _settled(
        self, writer: TransactionalEventWriter, record: ChangesRecord, on_unknown_commit: IfUnknown
    ) -> ChangesRecord:
        """The record with nothing left to commit."""
        if not record.transaction:
            return record
        is_written = on_unknown_commit == "written"
        try:
            writer.get_txn(record.transaction).commit(wait=True)
            is_written = True
        except TransactionFailedError:  # its lease had run out
            is_written = False
        except TransactionNotFoundError as error:
            if on_unknown_commit == "raise":
                raise ConflictError(
                    f"the server has forgotten whether transaction {record.transaction} of stream "
                    f"{self._scope}/{self._stream} was committed. Look whether that stream ends with the changes of "
                    f"{self._scope}/{record.table} up to {record.next}: if it does, continue with "
                    "on_unknown_commit='written', else with 'again'"
                ) from error
        settled = replace(record, at=record.next if is_written else record.at, next="", transaction="")
        self._put(settled)
        return settled

    def _check_stream(self, at: StreamCut) -> None:
        """StreamRecreatedError if the cut is one of a stream that another stands for by now."""
        found = self._thread.run(what_became_of(self._stores, segment_name(at.scope, at.stream, max(at.positions))))
        if isinstance(found, StreamRecreatedError):
            to = f"{self._scope}/{self._stream}"
            raise StreamRecreatedError(
                at.scope,
                at.stream,
                f"{to} has the old one's changes. Write the new one's to another stream; or delete {to}, make it anew, "
                "and begin again",
            )

    def _state_at(self, at: StreamCut) -> LatestByKey | None:
        self._cuts.bytes_between(at, self._cuts.tail())  # TruncatedError if what comes next is gone
        state = LatestByKey(self._layout, keeps_deleted=True)
        for rows in self._source.placed_rows(self._layout, None, at):
            state.add(rows)
            if state.is_too_large:
                return None
        return state

    def _next(self, at: StreamCut, last: StreamCut | None) -> StreamCut | None:
        """Up to where the next round goes; None if there is nothing."""
        to = last if last is not None else self._cuts.tail()
        if last is not None and self._cuts.compare(at, last).is_at_or_after:
            return None
        size = self._cuts.bytes_between(at, to)
        events = STREAM_TABLE_ROUND_EVENTS
        while size > STREAM_TABLE_ROUND_BYTES:
            found = self._cuts.earliest(self._cuts.after(at, events), to)
            size = self._cuts.bytes_between(at, found)
            if events == 1 or size <= STREAM_TABLE_ROUND_BYTES * 2:
                return found
            events = max(1, events * STREAM_TABLE_ROUND_BYTES // size)
        return to if size else None

    def _round(
        self, writer: TransactionalEventWriter, record: ChangesRecord, at: StreamCut, to: StreamCut
    ) -> tuple[ChangesRecord, int]:
        after = replace(record, at=to.as_text())
        txn: Transaction | None = None
        count = 0
        try:
            for found in self._changes(at, to):
                for batch in found.select(self._names).combine_chunks().to_batches(STREAM_TABLE_BATCH_ROWS):
                    if not batch.num_rows:
                        continue
                    made = self._encode.of(batch)
                    if txn is None:
                        txn = writer.begin_txn()
                        self._step("begun")
                    txn.write_batch(list(made.events), made.keys)
                    count += len(made.events)
            if txn is not None:
                txn.flush()
                self._step("written")
                self._put(replace(record, next=after.at, transaction=str(txn.txn_id)))
        except BaseException:
            if txn is not None:  # nobody knows of it; or, if that is uncertain, it ends with its lease or is committed
                with suppress(NadiError):
                    self._give_up(txn)
            raise
        if txn is not None:
            self._step("recorded")
            txn.commit(wait=True)
            self._step("committed")
        self._put(after)
        self._step("done")
        return after, count

    def _give_up(self, txn: Transaction) -> None:
        found = self._thread.run(self._progress.find())
        if found is None or found.transaction != str(txn.txn_id):
            txn.abort()

    def _changes(self, at: StreamCut, to: StreamCut) -> Iterator[pa.Table]:
        rows = self._source.placed_rows(self._layout, at, to)
        if self._state is None:
            yield from changes_of(self._layout, self._source.placed_rows(self._layout, None, at), rows)
            return
        for window in windows(rows):
            found, new = changed(self._layout, self._state.rows(), window)
            yield found
            self._state.add(new)
        if self._state.is_too_large:
            self._state = None
