"""A table's files as Arrow: one piece after the other, some fetched ahead, what others have deleted left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nadi.lake.table.pieces import FilePiece, Stretch, rows_of, whole
from nadi.lake.table.reaching import STORAGE, reaching, wrong_file
from nadi.limits import LAKE_READ_AHEAD

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata


def columns_of(table: Table) -> pa.Schema:
    """The table's columns, with the types that scans have."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([small(field) for field in schema_to_pyarrow(table.schema(), include_field_ids=False)])


def small(field: pa.Field) -> pa.Field:
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
    """The names of its columns, without those within them."""
    return [field.name for field in table.schema().fields]


def has_one_name_each(metadata: TableMetadata) -> bool:
    """Whether each column that the table has had since its first schema is there under the same name and type, and no
    other had that name, so that reading its files by name gives the table's values. Not if a schema was forgotten, or
    files may have names of their own."""
    from pyiceberg.schema import Schema, sanitize_column_names

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
    batches = list(TableFiles.of(table).read(whole(files), names, Stretch(segment, low, high)))
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
        nothing: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        slim = table.metadata.model_copy(update=nothing)
        return cls(slim, table.metadata_location, dict(table.io.properties))

    @property
    def names(self) -> set[str]:
        return {field.name for field in self.metadata.schema().fields}

    def read(
        self, pieces: Sequence[FilePiece], names: Sequence[str], wanted: Stretch | None = None
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
