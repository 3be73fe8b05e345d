"""Events as a table's rows: the fields of their values, or their bytes, and where and when each came; and what a
snapshot's summary says of the stream, the one record of how far a table is.

field, field, …      of the value; or `event`, the bytes, where nothing is said of values
_event               the bytes besides, if they are kept
_segment_id, _offset where the event lies in its stream
_append_time         when the server took it, to a second or ten
_event_time          what the stream's writers had noted of time before it

Every snapshot that the lake commits has the cut up to which the table holds the stream, also one that only joins files.
Others' snapshots have none: the newest one before them that has counts.
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
    """What events were read as: format and, of these, the schema's number in the store or the fields given."""

    format: str
    version: int | None = None
    ddl: str | None = None


class SnapshotMark(msgspec.Struct, frozen=True, kw_only=True):
    """cut: up to which the table has the stream. start: the cut at which the snapshot's own rows begin; rows: how many
    it has. letters: of all snapshots so far, these rows' included, events that were no rows; own_letters: of these.
    reading: how they were read. segments: ids and key ranges of those in which the rows lay."""

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
        """Of a snapshot at the same cut that has no rows of its own; it says what `segments_told` found."""
        return SnapshotMark(cut=self.cut, start=self.cut, letters=self.letters, reading=self.reading, segments=segments)

    def summary(self) -> dict[str, str]:
        """For the snapshot: the cut by itself, for whoever looks, and the whole mark."""
        return {CUT: self.cut, _MARK: msgspec.json.encode(self).decode()}


def mark_of(snapshot: Snapshot) -> SnapshotMark | None:
    """What the snapshot says; None if it is another's."""
    text = snapshot.summary.additional_properties.get(_MARK) if snapshot.summary is not None else None
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=SnapshotMark)
    except msgspec.MsgspecError as error:
        raise LakeStoppedError(
            f"snapshot {snapshot.snapshot_id} has a mark that can't be read ({error}): use the nadi that wrote it"
        ) from error


def newest_mark(table: Table, scope: str, stream: str) -> SnapshotMark | None:
    """How far the table is; None if it has no snapshot yet. LakeStoppedError if that isn't known, or it is
    another's."""
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
            raise LakeStoppedError(f"the cut that table {name} stands at can't be read: {error}") from error
        if (cut.scope, cut.stream) != (scope, stream):
            raise LakeStoppedError(
                f"table {name} has stream {cut.scope}/{cut.stream}, not {scope}/{stream}: give the lake a table of its "
                "own"
            )
        return mark
    raise LakeStoppedError(
        f"no snapshot of table {name} says how far it has the stream: its rows are others', or the snapshots that said "
        "it were expired behind others'. Give the lake a table of its own, or roll the table back to a snapshot with "
        f"{CUT} in its summary"
    )


def segments_told(table: Table, snapshots: Iterable[Snapshot] | None = None) -> tuple[tuple[int, float, float], ...]:
    """All segments of which the table has rows, with their keys, as far as its snapshots say: one that joins files says
    what those before it did, and so does one before which others are expired. snapshots: what these say alone."""
    found: set[tuple[int, float, float]] = set()
    for snapshot in table.snapshots() if snapshots is None else snapshots:
        mark = mark_of(snapshot)
        found |= set(mark.segments) if mark is not None else set()
    return tuple(sorted(found))


EVENT = "event"
PLACES = {"segment_id": "_segment_id", "offset": "_offset", APPEND_TIME: "_append_time", EVENT_TIME: "_event_time"}
SEGMENT_ID, OFFSET, APPENDED = PLACES["segment_id"], PLACES["offset"], PLACES[APPEND_TIME]


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """LakeRows, and how many events beside them are none."""

    rows: pa.RecordBatch
    letters: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How batches of a scan become rows. schema: of these; partition: columns with their transforms, of which each row
    has to have a value."""

    schema: pa.Schema
    partition: tuple[tuple[str, str], ...] = ()

    def of(self, batch: pa.RecordBatch) -> DecodedRows:
        columns: list[pa.Array] = []
        kept = None
        if VALUE in batch.schema.names:
            value = batch.column(VALUE)
            if value.null_count:
                kept = pa.array(np.flatnonzero(value.is_valid().to_numpy(zero_copy_only=False)))
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
            all_kept = np.arange(batch.num_rows) if kept is None else kept.to_numpy()
            kept = pa.array(np.setdiff1d(all_kept, list(wrong)))
        return DecodedRows(rows, 0) if kept is None else DecodedRows(rows.take(kept), batch.num_rows - len(kept))


class LakeRows:
    """What lies between two cuts as rows: the one way from a scan to a table, for the writer and the union."""

    def __init__(self, manager: StreamManager, lake: LakeDefinition, start: StreamCut, end: StreamCut) -> None:
        self._lake = lake
        names = ([VALUE, *([EVENT] if lake.keep_events else [])] if lake.value_format else [EVENT]) + list(PLACES)
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
                fields += [pa.field(one.name, stored_type(one.type, one.name)) for one in column.type]
            elif column.name == EVENT and self._lake.value_format:
                fields.append(pa.field("_event", pa.binary()))
            else:
                fields.append(pa.field(PLACES.get(column.name, column.name), column.type))
        names = [field.name for field in fields]
        problem = case_problem(fields)
        if problem is None and (twice := next((name for name in names if names.count(name) > 1), None)):
            problem = f"{twice!r} has the name of another column: rename it"
        if problem is not None:
            raise LakeStoppedError(f"of the fields of events, {problem}")
        return pa.schema(fields)


def check_places(table: Table) -> None:
    """LakeStoppedError unless the table has the columns that say of each row where it lies and when it came."""
    there = columns_named(table)
    for name in PLACES.values():
        if name not in there:
            raise LakeStoppedError(
                f"table {'.'.join(table.name())} has no column {name!r} any more, by which a lake finds its rows: "
                "another engine has renamed or dropped it. Give it its name back, or roll the table back"
            )


def target_of_lake(manager: StreamManager, lake: LakeDefinition) -> ReadTarget | None:
    """What the stream's events are read as now; None without a format."""
    value = value_options(lake.value_format, lake.value_schema, None, None)
    if value is None:
        return None
    thread, core = inside(manager)
    target = thread.run(target_of(core, value, lake.scope, [lake.stream], lambda _: True))
    assert target is not None, "whichever is found is wanted"
    if not pa.types.is_struct(target.kind):
        raise InvalidArgumentError(
            f"the values of {lake.full_name} are {target.kind}, and have no fields to be columns: make the lake "
            "without a format, of the events' bytes"
        )
    return target


def stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    """A column's type as Iceberg has it."""
    types = pa.types
    if types.is_struct(kind):
        if not kind.num_fields:
            raise InvalidArgumentError(f"{path} is a struct without fields, of which no column can be made")
        return pa.struct([pa.field(one.name, stored_type(one.type, f"{path}.{one.name}")) for one in kind])
    if types.is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, f"{path}.element")))
    if types.is_map(kind):
        return pa.map_(stored_type(kind.key_type, f"{path}.key"), stored_type(kind.item_type, f"{path}.value"))
    if types.is_integer(kind) and kind.bit_width < 32:
        return pa.int32()
    if types.is_duration(kind):
        return pa.int64()  # of microseconds
    return kind
