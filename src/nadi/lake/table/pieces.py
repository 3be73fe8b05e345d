"""Pieces of a table's files: rows that lie together and are read by themselves, so that many can read one file.

A Parquet file has its rows in groups. A piece is a stretch of the file's bytes, and has the groups that begin in it: so
a file's pieces have each row once, even where its manifest is wrong about its groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.limits import LAKE_FILE_PIECES, MIB

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField

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
        """Of the file, about."""
        end = self.file.file.file_size_in_bytes if self.high is None else self.high
        return int(end) - self.low


def pieces_of(files: Iterable[FileScanTask]) -> list[FilePiece]:
    """All rows of the files, in order, in pieces of a MiB or more."""
    found = []
    for file in files:
        begins = [0, *_borders(file)]
        found += [FilePiece(file, low, high) for low, high in zip(begins, [*begins[1:], None], strict=True)]
    return found


def whole(files: Iterable[FileScanTask]) -> list[FilePiece]:
    """A piece for each file."""
    return [FilePiece(file, 0, None) for file in files]


def dealt(pieces: Sequence[FilePiece], most: int) -> list[tuple[FilePiece, ...]]:
    """The pieces dealt out to at most `most` readers, about equally much, each reader's in their order."""
    parts = min(most, len(pieces), -(-sum(one.size_bytes for one in pieces) // _LEAST_BYTES))
    loads: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(parts)]
    for at in sorted(range(len(pieces)), key=lambda at: pieces[at].size_bytes, reverse=True):
        size, number, mine = heapq.heappop(loads)
        mine.append(at)
        heapq.heappush(loads, (size + pieces[at].size_bytes, number, mine))
    return [tuple(pieces[at] for at in sorted(mine)) for _, _, mine in sorted(loads, key=lambda load: load[1])]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows of one segment of the stream from an offset to another."""

    segment: int
    low: int
    high: int

    def condition(self, segment: str, offset: str) -> Any:
        """What rows have in columns of these names."""
        at = pc.field(offset)
        return (pc.field(segment) == self.segment) & (at >= self.low) & (at < self.high)


def rows_of(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, schema: Schema, wanted: Stretch | None = None
) -> Iterator[pa.RecordBatch]:
    """Its rows with these columns of the table, as these are now. wanted: those alone, by columns that are read."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    if piece.file.file.file_format == "PARQUET":
        yield from _of_groups(piece, metadata, io, schema, wanted)
        return
    assert (piece.low, piece.high) == (0, None), "of a part nobody else could tell which rows are its own"
    for batch in ArrowScan(metadata, io, schema, AlwaysTrue()).to_record_batches([piece.file]):
        yield batch if wanted is None else batch.filter(wanted.condition(*_PLACE))


def _is_plain(file: FileScanTask) -> bool:
    """Whether its rows can be read without counting those before."""
    return not file.delete_files and file.file.file_format == "PARQUET"


def _borders(file: FileScanTask) -> Iterator[int]:
    size, last = file.file.file_size_in_bytes, 0
    least = max(_LEAST_BYTES, -(-size // LAKE_FILE_PIECES))
    for begins in sorted(file.file.split_offsets or ()) if _is_plain(file) else ():
        if begins - last >= least and size - begins >= least:
            yield begins
            last = begins


def _of_groups(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, wanted: Schema, some: Stretch | None
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
        only = None if some is None or deleted else some.condition(*map(found.find_column_name, _ids(wanted)))
        scanner = fragment.subset(row_group_ids=groups).scanner(schema=stored, columns=names, filter=only)
        row = 0
        for batch in scanner.to_batches():
            made = batch
            if found.fields != wanted.fields or batch.schema.types != as_wanted.types:
                made = _with_ids(batch, [*map(in_file.find_field, names)], wanted, as_wanted, others)
            if deleted:
                there = ~np.isin(np.arange(row, row + batch.num_rows), np.concatenate(deleted))
                row += batch.num_rows
                made = made.filter(pa.array(there))
            if deleted and some is not None:
                made = made.filter(some.condition(*_PLACE))
            yield made


def _ids(schema: Schema) -> list[int]:
    return [schema.find_field(name).field_id for name in _PLACE]


def _with_ids(
    batch: pa.RecordBatch, found: Sequence[NestedField], wanted: Schema, kinds: pa.Schema, others: Mapping[int, Any]
) -> pa.RecordBatch:
    """The batch with the columns that are wanted, found by their ids, also within columns. PyIceberg's own way makes
    empty lists and maps of those that are null. others: values of columns that aren't in the file."""
    columns = {field.name: column for field, column in zip(found, batch.columns, strict=True)}
    made = _fields(wanted.fields, found, columns, kinds, batch.num_rows, others)
    return pa.RecordBatch.from_arrays(made, schema=pa.schema([(one.name, one.type) for one in kinds]))


def _fields(
    wanted: Iterable[NestedField],
    found: Iterable[NestedField],
    columns: Mapping[str, pa.Array],
    kinds: Iterable[pa.Field],
    count: int,
    others: Mapping[int, Any] = MappingProxyType({}),
) -> list[pa.Array]:
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
