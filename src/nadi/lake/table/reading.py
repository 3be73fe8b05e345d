"""A table's files as Arrow: one piece after the other, some fetched ahead, what others have deleted left out.

A Parquet file has its rows in groups. A piece is a stretch of the file's bytes, and has the groups that begin in it: so
a file's pieces have each row once, even where its manifest is wrong about its groups.
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

from nadi.lake.table.error_mapping import STORAGE, reaching, wrong_file
from nadi.limits import LAKE_FILE_PIECES, LAKE_READ_AHEAD, MIB

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField


Condition = Callable[[str, str], Any]  # of a row, by the names that its file has for `_PLACE`
_PLACE = ("_segment_id", "_offset")
_LEAST_BYTES = MIB  # of a piece, unless its file has no more


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The rows of the groups that begin in a file from `low` on, and before `high` unless that is None."""

    file: FileScanTask
    low: int
    high: int | None

    @property
    def size_bytes(self) -> int:
        end = self.file.file.file_size_in_bytes if self.high is None else self.high
        return int(end) - self.low


def pieces_of(files: Iterable[FileScanTask]) -> list[FilePiece]:
    """All rows of the files, in order, in pieces of a MiB or more."""
    found = []
    for file in files:
        begins = [0, *_borders(file)]
        found += [FilePiece(file, low, high) for low, high in zip(begins, [*begins[1:], None], strict=True)]
    return found


def dealt(pieces: Sequence[FilePiece], most: int) -> list[tuple[FilePiece, ...]]:
    """The pieces dealt out to at most `most` readers, about equally much, each reader's in their order."""
    parts = min(most, len(pieces), -(-sum(one.size_bytes for one in pieces) // _LEAST_BYTES))
    loads: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(parts)]
    for at in sorted(range(len(pieces)), key=lambda at: pieces[at].size_bytes, reverse=True):
        size, number, mine = heapq.heappop(loads)
        mine.append(at)
        heapq.heappush(loads, (size + pieces[at].size_bytes, number, mine))
    return [tuple(pieces[at] for at in sorted(mine)) for _, _, mine in sorted(loads, key=lambda load: load[1])]


def rows_of(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, schema: Schema, wanted: Condition | None = None
) -> Iterator[pa.RecordBatch]:
    """Its rows with these columns of the table, as these are now. wanted: those alone, by columns that are read."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    if piece.file.file.file_format == "PARQUET":
        yield from _of_groups(piece, metadata, io, schema, wanted)
        return
    assert (piece.low, piece.high) == (0, None), "of a part nobody else could tell which rows are its own"
    for batch in ArrowScan(metadata, io, schema, AlwaysTrue()).to_record_batches([piece.file]):
        yield batch if wanted is None else batch.filter(wanted(*_PLACE))


def _borders(file: FileScanTask) -> Iterator[int]:
    size, last = file.file.file_size_in_bytes, 0
    least = max(_LEAST_BYTES, -(-size // LAKE_FILE_PIECES))
    if file.delete_files or file.file.file_format != "PARQUET":
        return  # its rows can't be read without counting those before
    for begins in sorted(file.file.split_offsets or ()):
        if begins - last >= least and size - begins >= least:
            yield begins
            last = begins


def _of_groups(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, wanted: Schema, some: Condition | None
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

    kept = {one for one in wanted.field_ids if not isinstance(wanted.find_type(one), ListType | MapType)}
    to_us = metadata.format_version <= 2  # older tables have no nanoseconds
    deleted = [one.to_numpy() for one in _read_all_delete_files(io, [piece.file]).get(piece.file.file.file_path, ())]
    source = io.new_input(piece.file.file.file_path)  # by which `reaching` names the file
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
        found = prune_columns(in_file, kept, select_full_types=False)
        spec = metadata.specs().get(piece.file.file.spec_id)
        others = _get_column_projection_values(piece.file.file, wanted, metadata.schema(), spec, in_file.field_ids)
        as_wanted = schema_to_pyarrow(wanted, include_field_ids=False)
        names = [one.name for one in found.columns]
        ids = [] if some is None or deleted else [wanted.find_field(name).field_id for name in _PLACE]
        only = some(*map(found.find_column_name, ids)) if some is not None and ids else None
        scanner = fragment.subset(row_group_ids=groups).scanner(schema=stored, columns=names, filter=only)
        row = 0
        for batch in scanner.to_batches():
            made = batch
            if found.fields != wanted.fields or batch.schema.types != as_wanted.types:
                columns = dict(zip(names, batch.columns, strict=True))
                fields = map(in_file.find_field, names)
                made = pa.RecordBatch.from_arrays(
                    _fields(wanted.fields, fields, columns, as_wanted, batch.num_rows, others),
                    schema=pa.schema([(kind.name, kind.type) for kind in as_wanted]),
                )
            if deleted:
                there = ~np.isin(np.arange(row, row + batch.num_rows), np.concatenate(deleted))
                row += batch.num_rows
                made = made.filter(pa.array(there))
            if deleted and some is not None:
                made = made.filter(some(*_PLACE))
            yield made


def _fields(
    wanted: Iterable[NestedField],
    found: Iterable[NestedField],
    columns: Mapping[str, pa.Array],
    kinds: Iterable[pa.Field],
    count: int,
    others: Mapping[int, Any] = MappingProxyType({}),
) -> list[pa.Array]:
    """The columns that are wanted, found by their ids, also within columns; PyIceberg's own way makes empty lists and
    maps of those that are null. others: values of columns that aren't in the file."""
    by_id = {field.field_id: field for field in found}
    made = []
    for field, kind in zip(wanted, kinds, strict=True):
        one = by_id.get(field.field_id)
        if one is not None:
            made.append(_as_wanted(columns[one.name], one.field_type, field.field_type, kind.type))
        else:
            value = others.get(field.field_id, field.initial_default)
            made.append(pa.repeat(pa.scalar(value, kind.type), count))
    return made


def _as_wanted(column: pa.Array, found: IcebergType, wanted: IcebergType, kind: pa.DataType) -> pa.Array:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(found, StructType) and isinstance(wanted, StructType):
        columns = {field.name: one for field, one in zip(found.fields, column.flatten(), strict=True)}
        parts = _fields(wanted.fields, found.fields, columns, kind, len(column))
        return pa.StructArray.from_arrays(parts, fields=[*kind], mask=column.is_null())
    if isinstance(found, ListType) and isinstance(wanted, ListType):
        values = _as_wanted(column.flatten(), found.element_type, wanted.element_type, kind.value_type)
        is_large = pa.types.is_large_list(kind)
        borders = _borders_of(pc.list_value_length(column), column, pa.int64() if is_large else pa.int32())
        return (pa.LargeListArray if is_large else pa.ListArray).from_arrays(borders, values, type=kind)
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        column = column.take(pa.array(np.arange(len(column))))  # without what lies beside a slice
        keys = _as_wanted(column.keys, found.key_type, wanted.key_type, kind.key_type)
        items = _as_wanted(column.items, found.value_type, wanted.value_type, kind.item_type)
        return pa.MapArray.from_arrays(_borders_of(np.diff(column.offsets), column, pa.int32()), keys, items, type=kind)
    return pc.cast(column, options=pc.CastOptions(kind, allow_time_truncate=True))


def _borders_of(lengths: Any, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Where each list's values begin among all of them, null for a null."""
    sizes = pc.fill_null(pa.array(lengths), 0).to_numpy(zero_copy_only=False)
    is_null = np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(np.append(0, np.cumsum(sizes)), kind, mask=is_null)


def _begins(group: Any) -> int:
    first = group.column(0)
    in_dictionary = first.dictionary_page_offset
    return int(first.data_page_offset if in_dictionary is None else min(in_dictionary, first.data_page_offset))


def columns_of(table: Table) -> pa.Schema:
    """The table's columns, with the types that scans have."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([small(field) for field in schema_to_pyarrow(table.schema(), include_field_ids=False)])


def small(field: pa.Field) -> pa.Field:
    """The column with 32-bit lengths instead of 64-bit ones, also within it."""
    return pa.field(field.name, _small(field.type), field.nullable)


def _small(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([small(one) for one in kind])
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(small(kind.value_field))
    if types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return kind


def columns_named(table: Table) -> list[str]:
    return [field.name for field in table.schema().fields]


def has_one_name_each(metadata: TableMetadata) -> bool:
    """Whether each column that the table has had since its first schema is there under the same name and type, and no
    other had that name, so that reading its files by name gives the table's values. Not if a schema was forgotten, or
    files may have names of their own."""
    from pyiceberg.schema import sanitize_column_names

    def columns(schema: Schema) -> dict[int, tuple[str, str]]:
        fields = {name: schema.find_field(name) for name in schema.column_names}
        return {
            field.field_id: (name, str(field.field_type) if field.field_type.is_primitive else "")
            for name, field in fields.items()
        }

    schema = metadata.schema()
    if {one.schema_id for one in metadata.schemas} != set(range(len(metadata.schemas))):
        return False
    if metadata.name_mapping() is not None or sanitize_column_names(schema) != schema:
        return False
    if any(field.initial_default is not None for field in map(schema.find_field, schema.field_ids)):
        return False
    now = columns(schema)
    return all(columns(one).items() <= now.items() for one in metadata.schemas)


def files_of(table: Table, snapshot: int | None = None) -> list[FileScanTask]:
    """What a snapshot names, its newest if none is given."""
    with reaching(STORAGE):
        return list(table.scan(snapshot_id=snapshot).plan_files())


def window(table: Table, snapshot: int, segment: int, low: int, high: int) -> pa.Table:
    """A snapshot's rows of one segment of the stream, from an offset to another, in no order."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan

    names = columns_named(table)
    of_segment = EqualTo("_segment_id", segment)
    wanted = And(of_segment, GreaterThanOrEqual("_offset", low), LessThan("_offset", high))
    with reaching(STORAGE):
        files = list(table.scan(row_filter=wanted, snapshot_id=snapshot).plan_files())
    whole = [FilePiece(file, 0, None) for file in files]

    def is_within(segment_id: str, offset: str) -> Any:
        at = pc.field(offset)
        return (pc.field(segment_id) == segment) & (at >= low) & (at < high)

    batches = list(TableFiles.of(table).read(whole, names, is_within))
    if not batches:
        return columns_of(table).empty_table()
    return pa.concat_tables([pa.Table.from_batches([one]) for one in batches], promote_options="permissive")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What it takes to read a table's files in any process: its columns through all changes, and how its storage is
    reached, credentials included."""

    metadata: TableMetadata
    location: str
    properties: dict[str, str]

    @classmethod
    def of(cls, table: Table) -> TableFiles:
        """Without its snapshots, of which there may be thousands."""
        lists: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": []}
        slim = table.metadata.model_copy(update=lists | {"refs": {}, "current_snapshot_id": None})
        return cls(slim, table.metadata_location, dict(table.io.properties))

    @property
    def names(self) -> set[str]:
        return {field.name for field in self.metadata.schema().fields}

    def read(
        self, pieces: Sequence[FilePiece], names: Sequence[str], wanted: Condition | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these pieces, with these columns; those alone that are wanted, of whole files.

        LakeStoppedError for a damaged file; UnavailableError, with its name, for one that is gone.
        """
        from pyiceberg.io import load_file_io

        schema = self.metadata.schema().select(*names)
        io = load_file_io(self.properties, self.location)

        def fetched(piece: FilePiece) -> list[pa.RecordBatch]:
            try:
                with reaching(STORAGE):
                    return list(rows_of(piece, self.metadata, io, schema, wanted))
            except Exception as error:  # whatever damage leads to
                found = wrong_file(io, piece.file)
                if found is None:
                    raise
                raise found from error

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
                for one in waiting:
                    one.cancel()
