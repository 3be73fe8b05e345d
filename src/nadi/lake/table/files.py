"""Data files of one attempt: rows divided by partition, written as they come, in bounded memory.

A file's name begins with its attempt (`attempts`), so whoever finds it knows whether a snapshot can still come to name
it. Files lie beside each other: Iceberg finds partitions by what its manifests say, not by folders.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table.attempts import data_file_name
from nadi.lake.table.partitions import Key, Partitions
from nadi.lake.table.reaching import STORAGE, reaching
from nadi.limits import LAKE_FILE_BYTES, LAKE_FILES_OPEN, LAKE_PENDING_BYTES, LAKE_ROW_GROUP_BYTES

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


def arrow_schema(table: Table) -> pa.Schema:
    """As its files have it, ids of fields included."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table.schema())


@dataclass(slots=True)
class _Open:
    path: str
    writer: Any
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0
    written_bytes: int = 0


class DataFiles:
    """Write batches of the table's schema; `close` gives the files, `abandon` removes them again."""

    def __init__(self, table: Table, attempt: UUID) -> None:
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.manifest import FileFormat

        self._table, self._attempt = table, attempt
        self._partitions = Partitions(table.metadata)
        self._model = FileFormatFactory.get(FileFormat.PARQUET)
        self._places = table.location_provider()
        self.schema = arrow_schema(table)
        self._open: dict[Key, _Open] = {}
        self._done: list[DataFile] = []
        self._paths: list[str] = []
        self._pending_bytes = 0
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for kind, column in zip(self.schema, batch.columns, strict=True):
            if not kind.nullable and column.null_count:
                raise LakeStoppedError(
                    f"column {kind.name!r} of table {'.'.join(self._table.name())} was made one that must not be "
                    "null, and an event lacks it: make it optional again. What lies before the table's cut is in it"
                )
        parts = list(self._partitions.of(batch))
        with reaching(STORAGE):
            for key, some in parts:
                self._add(key, some)
            while self._pending_bytes > LAKE_PENDING_BYTES:
                self._flush(max(self._open.values(), key=lambda one: one.pending_bytes))

    def close(self) -> list[DataFile]:
        with reaching(STORAGE):
            for key in list(self._open):
                self._finish(key)
        return self._done

    def abandon(self) -> None:
        """Remove what was written: nothing names it."""
        for one in self._open.values():
            if one.written_bytes:
                one.pending = []
                one.writer.close()
        self._open.clear()
        for path in self._paths:
            with suppress(FileNotFoundError):  # it wasn't begun, or another writer's sweep was faster
                self._table.io.delete(path)
        self._paths.clear()

    def _add(self, key: Key, batch: pa.RecordBatch) -> None:
        one = self._open.pop(key, None) or self._begun()
        self._open[key] = one  # the last one is the one used last
        one.pending.append(batch)
        one.pending_bytes += batch.nbytes
        self._pending_bytes += batch.nbytes
        if one.pending_bytes >= LAKE_ROW_GROUP_BYTES:
            self._flush(one)
        if one.written_bytes >= LAKE_FILE_BYTES:
            self._finish(key)
        while len(self._open) > LAKE_FILES_OPEN:
            self._finish(next(iter(self._open)))

    def _begun(self) -> _Open:
        path = self._places.new_data_location(data_file_name(self._attempt, len(self._paths)))
        self._paths.append(path)
        return _Open(
            path,
            self._model.create_writer(self._table.io.new_output(path), self._table.schema(), self._table.properties),
        )

    def _flush(self, one: _Open) -> None:
        one.writer.write(pa.Table.from_batches(one.pending, schema=self.schema))
        self._pending_bytes -= one.pending_bytes
        one.written_bytes += one.pending_bytes
        one.pending, one.pending_bytes = [], 0

    def _finish(self, key: Key) -> None:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        one = self._open.pop(key)
        if one.pending:
            self._flush(one)
        statistics = one.writer.close()
        self._done.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=one.path,
                file_format=FileFormat.PARQUET,
                partition=Record(*key),
                file_size_in_bytes=len(self._table.io.new_input(one.path)),
                sort_order_id=None,
                spec_id=self._table.metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
