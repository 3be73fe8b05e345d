"""Converts events to a table's rows: the fields of their values, or their bytes, with position and times; and reads and
writes the mark in a snapshot's summary, the only record of the table's progress.

field, field, …      of the value; or `event`, the bytes, without a value format
_event               the bytes too, if they are kept
_segment_id, _offset the event's position in the stream
_append_time         when the server received it, exact to 1 to 10 seconds
_event_time          the last time that the stream's writers had noted before it

Every snapshot of the lake has the cut up to which the table has the stream, including those that only merge files.
Snapshots of other programs don't: the last one before them that has a cut counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.scan.scan import Scan, scan
from nadi.client.values.options import ReadTarget, value_options
from nadi.client.values.target import target_of
from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.lake.definition import LakeDefinition
from nadi.lake.table.catalogs import case_problem
from nadi.lake.table.error_mapping import LakeStoppedError
from nadi.lake.table.partitions import misplaced, partition_fields
from nadi.lake.table.reading import columns_named
from nadi.model.streamcut import StreamCut
from nadi.naming import APPEND_TIME, EVENT_TIME, VALUE

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CUT = "nadi.cut"
_MARK = "nadi.mark"


class ReadFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How events were decoded: the format and the version of the stored schema, or the DDL given."""

    format: str
    version: int | None = None
    ddl: str | None = None


class SnapshotMark(msgspec.Struct, frozen=True, kw_only=True):
    """The mark of a snapshot. cut: up to which the table has the stream. start: the cut where the snapshot's rows
    start; rows: their number. letters: number of invalid events of all snapshots up to this one; own_letters: of this
    one. reading: how events were decoded. segments: ids and key ranges of the rows' segments."""

    cut: str
    start: str
    rows: int = 0
    letters: int = 0
    own_letters: int = 0
    reading: ReadFormat | None = None
    segments: tuple[tuple[int, float, float], ...] = ()

    @property
    def end_cut(self) -> StreamCut:
        return StreamCut.from_text(self.cut)

    def without_rows(self, segments: tuple[tuple[int, float, float], ...]) -> SnapshotMark:
        """Return the mark of a snapshot at the same cut without new rows; segments: from `recorded_segments`."""
        return SnapshotMark(cut=self.cut, start=self.cut, letters=self.letters, reading=self.reading, segments=segments)

    def summary(self) -> dict[str, str]:
        """Return the properties for the snapshot's summary: the plain cut, for people, and the whole mark."""
        return {CUT: self.cut, _MARK: msgspec.json.encode(self).decode()}


def mark_of(snapshot: Snapshot) -> SnapshotMark | None:
    """Return the snapshot's mark; None if another program committed it."""
    text = snapshot.summary.additional_properties.get(_MARK) if snapshot.summary is not None else None
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=SnapshotMark)
    except msgspec.MsgspecError as error:
        raise LakeStoppedError(
            f"can't read the mark of snapshot {snapshot.snapshot_id} ({error}): use the nadi version that wrote it"
        ) from error


def newest_mark(table: Table, scope: str, stream: str) -> SnapshotMark | None:
    """Return the table's mark, or None if it doesn't have a snapshot yet. LakeStoppedError if no snapshot has a mark,
    or it is of another stream."""
    snapshot = table.current_snapshot()
    name = ".".join(table.name())
    if snapshot is None:
        return None
    while snapshot is not None and (mark := mark_of(snapshot)) is None:
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    if snapshot is not None and mark is not None:
        try:
            cut = mark.end_cut
        except InvalidStreamCutError as error:
            raise LakeStoppedError(
                f"can't read the cut of table {name} ({error}): roll it back to an earlier snapshot"
            ) from error
        if (cut.scope, cut.stream) != (scope, stream):
            raise LakeStoppedError(
                f"table {name} contains stream {cut.scope}/{cut.stream}, not {scope}/{stream}: give the lake another "
                "table"
            )
        return mark
    raise LakeStoppedError(
        f"no snapshot of table {name} records a stream position: another program wrote the table, or the lake's "
        "snapshots have expired. Give the lake another table, or roll the table back to a snapshot with "
        f"{CUT} in its summary"
    )


def recorded_segments(
    table: Table, snapshots: Iterable[Snapshot] | None = None
) -> tuple[tuple[int, float, float], ...]:
    """Return the ids and key ranges of all segments with rows in the table, from the marks of its snapshots; snapshots
    that merge files, or precede an expiry, repeat earlier ones. snapshots: only these."""
    segments: set[tuple[int, float, float]] = set()
    for snapshot in table.snapshots() if snapshots is None else snapshots:
        mark = mark_of(snapshot)
        segments |= set(mark.segments) if mark is not None else set()
    return tuple(sorted(segments))


EVENT = "event"
SOURCE_COLUMNS = {
    "segment_id": "_segment_id",
    "offset": "_offset",
    APPEND_TIME: "_append_time",
    EVENT_TIME: "_event_time",
}
SEGMENT_ID, OFFSET, APPENDED = SOURCE_COLUMNS["segment_id"], SOURCE_COLUMNS["offset"], SOURCE_COLUMNS[APPEND_TIME]


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Valid rows, and the number of invalid events."""

    rows: pa.RecordBatch
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How batches of a scan become rows. schema: of the rows; partition: columns with transforms, which need a value in
    each row."""

    schema: pa.Schema
    partition: tuple[tuple[str, str], ...] = ()

    def of(self, batch: pa.RecordBatch) -> DecodedRows:
        columns: list[pa.Array] = []
        valid = None
        if VALUE in batch.schema.names:
            value = batch.column(VALUE)
            if value.null_count:
                valid = pa.array(np.flatnonzero(value.is_valid().to_numpy(zero_copy_only=False)))
            columns += value.flatten()
        columns += [batch.column(name) for name in batch.schema.names if name != VALUE]
        rows = pa.RecordBatch.from_arrays(
            [
                column if column.type == field.type else column.cast(field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ],
            schema=self.schema,
        )
        if wrong := misplaced(self.partition, rows):
            all_valid = np.arange(batch.num_rows) if valid is None else valid.to_numpy()
            valid = pa.array(np.setdiff1d(all_valid, list(wrong)))
        return DecodedRows(rows, 0) if valid is None else DecodedRows(rows.take(valid), batch.num_rows - len(valid))


class LakeRows:
    """The events between two cuts as rows, for the writer and the union."""

    def __init__(self, manager: StreamManager, lake: LakeDefinition, start: StreamCut, end: StreamCut) -> None:
        self._lake = lake
        names = ([VALUE, *([EVENT] if lake.keep_events else [])] if lake.value_format else [EVENT]) + list(
            SOURCE_COLUMNS
        )
        self.target = target_of_lake(manager, lake)
        self.scan: Scan = scan(
            manager,
            lake.scope,
            lake.stream,
            start=start,
            end=end,
            columns=names,
            event_time_unit=lake.event_time_unit,
            value_format=lake.value_format,
            value_schema=lake.value_schema,
            value_version=None if self.target is None else self.target.schema_id,
        )
        self.shape = Shape(self._named(self.scan.schema), tuple(partition_fields(lake.partition)))

    @property
    def schema(self) -> pa.Schema:
        return self.shape.schema

    @property
    def reading(self) -> ReadFormat | None:
        target = self.target
        if target is None:
            return None
        return ReadFormat(format=target.options.format, version=target.schema_id, ddl=target.options.ddl)

    def __iter__(self) -> Iterator[DecodedRows]:
        return map(self.shape.of, self.scan.batches())

    def _named(self, scanned: pa.Schema) -> pa.Schema:
        fields: list[pa.Field] = []
        for column in scanned:
            if column.name == VALUE:
                fields += [pa.field(field.name, stored_type(field.type, field.name)) for field in column.type]
            elif column.name == EVENT and self._lake.value_format:
                fields.append(pa.field("_event", pa.binary()))
            else:
                fields.append(pa.field(SOURCE_COLUMNS.get(column.name, column.name), column.type))
        names = [field.name for field in fields]
        problem = case_problem(fields)
        if problem is None and (duplicate := next((name for name in names if names.count(name) > 1), None)):
            problem = f"{duplicate!r} is also the name of another column: rename the field"
        if problem is not None:
            raise LakeStoppedError(f"the fields of events can't be columns: {problem}")
        return pa.schema(fields)


def check_position_columns(table: Table) -> None:
    """Raise LakeStoppedError unless the table has the columns with each row's position and time."""
    present = columns_named(table)
    for name in SOURCE_COLUMNS.values():
        if name not in present:
            raise LakeStoppedError(
                f"table {'.'.join(table.name())} lacks the column {name!r}, which the lake needs: another engine has "
                "renamed or dropped it. Restore the name, or roll the table back"
            )


def target_of_lake(manager: StreamManager, lake: LakeDefinition) -> ReadTarget | None:
    """Return how the stream's events are decoded now; None without a format."""
    value = value_options(lake.value_format, lake.value_schema, None, None)
    if value is None:
        return None
    thread, core = inside(manager)
    target = thread.run(target_of(core, value, lake.scope, [lake.stream], lambda _: True))
    assert target is not None, "any value type is accepted"
    if not pa.types.is_struct(target.kind):
        raise InvalidArgumentError(
            f"the values of {lake.full_name} are {target.kind}, which doesn't have fields: create the lake without a "
            "format, to store the events' bytes"
        )
    return target


def stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return a column's type in Iceberg."""
    types = pa.types
    if types.is_struct(kind):
        if not kind.num_fields:
            raise InvalidArgumentError(
                f"{path} is a struct without fields, which can't be a column: add a field to the schema"
            )
        return pa.struct([pa.field(field.name, stored_type(field.type, f"{path}.{field.name}")) for field in kind])
    if types.is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, f"{path}.element")))
    if types.is_map(kind):
        return pa.map_(stored_type(kind.key_type, f"{path}.key"), stored_type(kind.item_type, f"{path}.value"))
    if types.is_integer(kind) and kind.bit_width < 32:
        return pa.int32()
    if types.is_duration(kind):
        return pa.int64()  # microseconds
    return kind
