"""Pieces of a table's files: rows that lie together and are read by themselves, so that many can read one file.

A Parquet file has its rows in groups. A piece is a stretch of the file's bytes, and has the groups that begin in it: so
a file's pieces have each row once, even where its manifest is wrong about its groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nadi.limits import LAKE_FILE_PIECES, MIB

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata

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


def rows_of(
    piece: FilePiece, metadata: TableMetadata, io: FileIO, schema: Schema, wanted: BooleanExpression | None = None
) -> Iterator[pa.RecordBatch]:
    """Its rows with these columns of the table, as these are now. wanted: those alone, of a whole file."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    if wanted is None and _is_plain(piece.file):
        yield from _of_groups(piece, metadata, io, schema)
        return
    assert (piece.low, piece.high) == (0, None), "of a part nobody else could tell which rows are its own"
    yield from ArrowScan(metadata, io, schema, wanted or AlwaysTrue()).to_record_batches([piece.file])


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


def _of_groups(piece: FilePiece, metadata: TableMetadata, io: FileIO, wanted: Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import (
        _get_column_projection_values,
        _to_requested_schema,
        pyarrow_to_schema,
        schema_to_pyarrow,
    )
    from pyiceberg.schema import prune_columns
    from pyiceberg.types import ListType, MapType

    kept = {one for one in wanted.field_ids if not isinstance(wanted.find_type(one), ListType | MapType)}
    to_us = metadata.format_version <= 2  # older tables have no nanoseconds
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
        scanner = fragment.subset(row_group_ids=groups).scanner(schema=stored, columns=names)
        for batch in scanner.to_batches():
            if found.fields == wanted.fields and batch.schema.types == as_wanted.types:
                yield batch
            elif batch.num_rows:
                yield _to_requested_schema(
                    wanted,
                    found,
                    batch,
                    downcast_ns_timestamp_to_us=to_us,
                    projected_missing_fields=others,
                    allow_timestamp_tz_mismatch=True,
                )


def _begins(group: Any) -> int:
    first = group.column(0)
    in_dictionary = first.dictionary_page_offset
    return int(first.data_page_offset if in_dictionary is None else min(in_dictionary, first.data_page_offset))
