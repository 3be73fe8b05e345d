"""Reads a table's files as Arrow, piece by piece with some read-ahead, without rows that were deleted.

A Parquet file has its rows in groups. A piece is a byte range of the file with the groups that begin in it, so a file's
pieces have each row once, even if its manifest lists wrong groups.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.lake.table.error_mapping import STORAGE, file_error, mapped_errors
from nadi.limits import LAKE_FILE_PIECES, LAKE_READ_AHEAD, MIB

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField


Condition = Callable[[str, str], Any]  # a filter of rows, given the names of `_POSITION` in the file
_POSITION = ("_segment_id", "_offset")
_LEAST_BYTES = MIB  # least size of a piece, unless its file is smaller


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The rows of the groups that begin in a file at `low` or later, and before `high` unless that is None."""

    file: FileScanTask
    low: int
    high: int | None

    @property
    def size_bytes(self) -> int:
        end = self.file.file.file_size_in_bytes if self.high is None else self.high
        return int(end) - self.low


def pieces_of(files: Iterable[FileScanTask]) -> list[FilePiece]:
    """Divide the files into pieces of 1 MiB or more, in order."""
    pieces = []
    for file in files:
        starts = [0, *_borders(file)]
        pieces += [FilePiece(file, low, high) for low, high in zip(starts, [*starts[1:], None], strict=True)]
    return pieces


def distribute(pieces: Sequence[FilePiece], most: int) -> list[tuple[FilePiece, ...]]:
    """Distribute the pieces among at most `most` readers by size, keeping each reader's in order."""
    parts = min(most, len(pieces), -(-sum(piece.size_bytes for piece in pieces) // _LEAST_BYTES))
    loads: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(parts)]
    for at in sorted(range(len(pieces)), key=lambda at: pieces[at].size_bytes, reverse=True):
        size, number, assigned = heapq.heappop(loads)
        assigned.append(at)
        heapq.heappush(loads, (size + pieces[at].size_bytes, number, assigned))
    return [tuple(pieces[at] for at in sorted(assigned)) for _, _, assigned in sorted(loads, key=lambda load: load[1])]


def rows_of(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, schema: Schema, condition: Condition | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a piece's rows with the table's current columns. condition: only these rows, by columns that are read."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    if piece.file.file.file_format == "PARQUET":
        yield from _of_groups(piece, metadata, io, schema, condition)
        return
    assert (piece.low, piece.high) == (0, None), "only Parquet files can be read in parts"
    for batch in ArrowScan(metadata, io, schema, AlwaysTrue()).to_record_batches([piece.file]):
        yield batch if condition is None else batch.filter(condition(*_POSITION))


def _borders(file: FileScanTask) -> Iterator[int]:
    size, last = file.file.file_size_in_bytes, 0
    least = max(_LEAST_BYTES, -(-size // LAKE_FILE_PIECES))
    if file.delete_files or file.file.file_format != "PARQUET":
        return  # deleted rows are counted from the file's start
    for start in sorted(file.file.split_offsets or ()):
        if start - last >= least and size - start >= least:
            yield start
            last = start


def _of_groups(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, requested: Schema, condition: Condition | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import (
        _get_column_projection_values,
        _read_all_delete_files,
        pyarrow_to_schema,
        schema_to_pyarrow,
    )
    from pyiceberg.schema import prune_columns
    from pyiceberg.types import ListType, MapType

    ids_kept = {item for item in requested.field_ids if not isinstance(requested.find_type(item), ListType | MapType)}
    to_us = metadata.format_version <= 2  # older tables don't have nanoseconds
    deleted = [item.to_numpy() for item in _read_all_delete_files(io, [piece.file]).get(piece.file.file.file_path, ())]
    source = io.new_input(piece.file.file.file_path)  # `mapped_errors` finds the file's name here
    with source.open() as data:
        fragment = ds.ParquetFileFormat(pre_buffer=True).make_fragment(data)
        groups = [
            number
            for number in range(fragment.metadata.num_row_groups)
            if piece.low <= _begins(fragment.metadata.row_group(number)) and
            (piece.high is None or _begins(fragment.metadata.row_group(number)) < piece.high)
        ]  # fmt: skip
        if not groups:
            return
        stored = fragment.physical_schema
        in_file = pyarrow_to_schema(
            stored, metadata.name_mapping(), downcast_ns_timestamp_to_us=to_us, format_version=metadata.format_version
        )
        columns_found = prune_columns(in_file, ids_kept, select_full_types=False)
        spec = metadata.specs().get(piece.file.file.spec_id)
        defaults = _get_column_projection_values(piece.file.file, requested, metadata.schema(), spec, in_file.field_ids)
        as_wanted = schema_to_pyarrow(requested, include_field_ids=False)
        names = [item.name for item in columns_found.columns]
        ids = [] if condition is None or deleted else [requested.find_field(name).field_id for name in _POSITION]
        only = condition(*map(columns_found.find_column_name, ids)) if condition is not None and ids else None
        scanner = fragment.subset(row_group_ids=groups).scanner(schema=stored, columns=names, filter=only)
        row = 0
        for batch in scanner.to_batches():
            converted = batch
            if columns_found.fields != requested.fields or batch.schema.types != as_wanted.types:
                columns = dict(zip(names, batch.columns, strict=True))
                fields = map(in_file.find_field, names)
                converted = pa.RecordBatch.from_arrays(
                    _fields(requested.fields, fields, columns, as_wanted, batch.num_rows, defaults),
                    schema=pa.schema([(kind.name, kind.type) for kind in as_wanted]),
                )
            if deleted:
                present = ~np.isin(np.arange(row, row + batch.num_rows), np.concatenate(deleted))
                row += batch.num_rows
                converted = converted.filter(pa.array(present))
            if deleted and condition is not None:
                converted = converted.filter(condition(*_POSITION))
            yield converted


def _fields(
    requested: Iterable[NestedField],
    stored: Iterable[NestedField],
    columns: Mapping[str, pa.Array],
    kinds: Iterable[pa.Field],
    count: int,
    defaults: Mapping[int, Any] = MappingProxyType({}),
) -> list[pa.Array]:
    """Return the selected columns, found by id, also within columns; PyIceberg's own conversion turns null lists and
    maps into empty ones. defaults: values of columns that aren't in the file."""
    by_id = {field.field_id: field for field in stored}
    arrays = []
    for field, kind in zip(requested, kinds, strict=True):
        source = by_id.get(field.field_id)
        if source is not None:
            arrays.append(_converted(columns[source.name], source.field_type, field.field_type, kind.type))
        else:
            value = defaults.get(field.field_id, field.initial_default)
            arrays.append(pa.repeat(pa.scalar(value, kind.type), count))
    return arrays


def _converted(column: pa.Array, stored: IcebergType, requested: IcebergType, kind: pa.DataType) -> pa.Array:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(stored, StructType) and isinstance(requested, StructType):
        columns = {field.name: child for field, child in zip(stored.fields, column.flatten(), strict=True)}
        parts = _fields(requested.fields, stored.fields, columns, kind, len(column))
        return pa.StructArray.from_arrays(parts, fields=[*kind], mask=column.is_null())
    if isinstance(stored, ListType) and isinstance(requested, ListType):
        values = _converted(column.flatten(), stored.element_type, requested.element_type, kind.value_type)
        is_large = pa.types.is_large_list(kind)
        borders = _borders_of(pc.list_value_length(column), column, pa.int64() if is_large else pa.int32())
        return (pa.LargeListArray if is_large else pa.ListArray).from_arrays(borders, values, type=kind)
    if isinstance(stored, MapType) and isinstance(requested, MapType):
        column = column.take(pa.array(np.arange(len(column))))  # without values outside the slice
        keys = _converted(column.keys, stored.key_type, requested.key_type, kind.key_type)
        items = _converted(column.items, stored.value_type, requested.value_type, kind.item_type)
        return pa.MapArray.from_arrays(_borders_of(np.diff(column.offsets), column, pa.int32()), keys, items, type=kind)
    return pc.cast(column, options=pc.CastOptions(kind, allow_time_truncate=True))


def _borders_of(lengths: Any, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return where each list's values begin among all values, null for a null."""
    sizes = pc.fill_null(pa.array(lengths), 0).to_numpy(zero_copy_only=False)
    is_null = np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(np.append(0, np.cumsum(sizes)), kind, mask=is_null)


def _begins(group: Any) -> int:
    first = group.column(0)
    in_dictionary = first.dictionary_page_offset
    return int(first.data_page_offset if in_dictionary is None else min(in_dictionary, first.data_page_offset))


def columns_of(table: Table) -> pa.Schema:
    """Return the table's columns with the types of scans."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([small(field) for field in schema_to_pyarrow(table.schema(), include_field_ids=False)])


def small(field: pa.Field) -> pa.Field:
    """Return the column with 32-bit instead of 64-bit lengths, also within it."""
    return pa.field(field.name, _small(field.type), field.nullable)


def _small(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([small(child) for child in kind])
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(small(kind.value_field))
    if types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return kind


def columns_named(table: Table) -> list[str]:
    return [field.name for field in table.schema().fields]


def has_one_name_each(metadata: TableMetadata) -> bool:
    """Return whether reading the table's files by column name gives the table's values: each column that it has had
    since its first schema still has the same name and type, and no other column had that name. False if schemas were
    forgotten, or files may have other names."""
    from pyiceberg.schema import sanitize_column_names

    def columns(schema: Schema) -> dict[int, tuple[str, str]]:
        fields = {name: schema.find_field(name) for name in schema.column_names}
        return {
            field.field_id: (name, str(field.field_type) if field.field_type.is_primitive else "")
            for name, field in fields.items()
        }

    schema = metadata.schema()
    if {old.schema_id for old in metadata.schemas} != set(range(len(metadata.schemas))):
        return False
    if metadata.name_mapping() is not None or sanitize_column_names(schema) != schema:
        return False
    if any(field.initial_default is not None for field in map(schema.find_field, schema.field_ids)):
        return False
    current = columns(schema)
    return all(columns(old).items() <= current.items() for old in metadata.schemas)


def files_of(table: Table, snapshot: int | None = None) -> list[FileScanTask]:
    """Return the files of a snapshot, by default the newest."""
    with mapped_errors(STORAGE):
        return list(table.scan(snapshot_id=snapshot).plan_files())


def window(table: Table, snapshot: int, segment: int, low: int, high: int) -> pa.Table:
    """Return a snapshot's rows of one segment within a range of offsets, unordered."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan

    names = columns_named(table)
    of_segment = EqualTo("_segment_id", segment)
    condition = And(of_segment, GreaterThanOrEqual("_offset", low), LessThan("_offset", high))
    with mapped_errors(STORAGE):
        files = list(table.scan(row_filter=condition, snapshot_id=snapshot).plan_files())
    pieces = [FilePiece(file, 0, None) for file in files]

    def is_within(segment_id: str, offset: str) -> Any:
        at = pc.field(offset)
        return (pc.field(segment_id) == segment) & (at >= low) & (at < high)

    batches = list(TableFiles.of(table).read(pieces, names, is_within))
    if not batches:
        return columns_of(table).empty_table()
    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="permissive")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """All that is needed to read a table's files in any process: its columns through all changes, and its storage's
    address and credentials."""

    metadata: TableMetadata
    location: str
    properties: dict[str, str]

    @classmethod
    def of(cls, table: Table) -> TableFiles:
        """Return the files of a table, without its (possibly thousands of) snapshots."""
        lists: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": []}
        slim = table.metadata.model_copy(update=lists | {"refs": {}, "current_snapshot_id": None})
        return cls(slim, table.metadata_location, dict(table.io.properties))

    @property
    def names(self) -> set[str]:
        return {field.name for field in self.metadata.schema().fields}

    def read(
        self, pieces: Sequence[FilePiece], names: Sequence[str], condition: Condition | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these pieces, with these columns; with a condition, only matching rows of whole files.

        LakeStoppedError for a damaged file; UnavailableError, with its name, for a missing one.
        """
        from pyiceberg.io import load_file_io

        schema = self.metadata.schema().select(*names)
        io = load_file_io(self.properties, self.location)

        def fetched(piece: FilePiece) -> list[pa.RecordBatch]:
            try:
                with mapped_errors(STORAGE):
                    return list(rows_of(piece, self.metadata, io, schema, condition))
            except Exception as error:  # damage may raise anything
                problem = file_error(io, piece.file)
                if problem is None:
                    raise
                raise problem from error

        waiting: deque[Future[list[pa.RecordBatch]]] = deque()
        with ThreadPoolExecutor(LAKE_READ_AHEAD, "nadi lake") as pool:
            try:
                for piece in pieces:
                    waiting.append(pool.submit(fetched, piece))
                    if len(waiting) > LAKE_READ_AHEAD:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
