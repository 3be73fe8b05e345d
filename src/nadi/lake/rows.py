"""Events as a table's rows: the fields of their values, or their bytes, and where and when each came.

field, field, …      of the value; or `event`, the bytes, where nothing is said of values
_event               the bytes besides, if they are kept
_segment_id, _offset where the event lies in its stream
_append_time         when the server took it, to a second or ten
_event_time          what the stream's writers had noted of time before it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.scan.scan import Scan, scan
from nadi.client.values.options import Target, value_options
from nadi.client.values.target import target_of
from nadi.errors import InvalidArgumentError
from nadi.lake.definition import LakeDefinition
from nadi.lake.marks import Reading
from nadi.lake.table.catalogs import case_problem
from nadi.lake.table.partitions import misplaced, partition_fields
from nadi.lake.table.reaching import LakeStoppedError
from nadi.lake.table.reading import columns_named
from nadi.model.streamcut import StreamCut
from nadi.naming import APPEND_TIME, EVENT_TIME, VALUE

if TYPE_CHECKING:
    from pyiceberg.table import Table

EVENT = "event"
PLACES = {"segment_id": "_segment_id", "offset": "_offset", APPEND_TIME: "_append_time", EVENT_TIME: "_event_time"}
SEGMENT_ID, OFFSET, APPENDED = PLACES["segment_id"], PLACES["offset"], PLACES[APPEND_TIME]


@dataclass(frozen=True, slots=True)
class Found:
    """Rows, and how many events beside them are none."""

    rows: pa.RecordBatch
    letters: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How batches of a scan become rows. schema: of these; partition: columns with their transforms, of which each row
    has to have a value."""

    schema: pa.Schema
    partition: tuple[tuple[str, str], ...] = ()

    def of(self, batch: pa.RecordBatch) -> Found:
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
        return Found(rows, 0) if kept is None else Found(rows.take(kept), batch.num_rows - len(kept))


class Rows:
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
    def reading(self) -> Reading | None:
        target = self.target
        if target is None:
            return None
        return Reading(format=target.options.format, version=target.schema_id, ddl=target.options.ddl)

    def __iter__(self) -> Iterator[Found]:
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


def target_of_lake(manager: StreamManager, lake: LakeDefinition) -> Target | None:
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
