"""Attempts at a snapshot: writes data files, divided by partition in bounded memory, and commits them.

An attempt's name contains its parent snapshot. It is committed only if the parent is still the table's newest snapshot,
so of two attempts with one parent only one is stored, in any process and however late. A file's name begins with
its attempt: once the parent isn't the newest snapshot any more, a file that no snapshot references never will be. All
files are in one folder: Iceberg finds partitions by its manifests, not by folders.

>>> name = data_file_name(new_attempt(81), 3)
>>> parent_of(name), parent_of("00000-3-8d1c37a2.parquet")
(81, None)
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from nadi.lake.table.catalogs import load_table
from nadi.lake.table.error_mapping import CATALOG, STORAGE, LakeStoppedError, mapped_errors
from nadi.lake.table.partitions import Key, Partitions
from nadi.limits import LAKE_FILE_BYTES, LAKE_FILES_OPEN, LAKE_PENDING_BYTES, LAKE_ROW_GROUP_BYTES

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


log = logging.getLogger("nadi.lake")
_OURS = b"nadi"
NO_SNAPSHOT = 0
_ATTEMPT = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])")


class SnapshotConflictError(Exception):
    """Another snapshot was committed meanwhile: the attempt isn't in the table."""


def head_of(table: Table) -> int:
    """Return the id of the table's newest snapshot, NO_SNAPSHOT if it hasn't any."""
    snapshot = table.current_snapshot()
    return NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id


def new_attempt(parent: int) -> UUID:
    return UUID(bytes=parent.to_bytes(8, "big") + _OURS + os.urandom(4))


def data_file_name(attempt: UUID, number: int) -> str:
    return f"nadi-{attempt}-{number:05d}.parquet"


def parent_of(file_name: str) -> int | None:
    """Return the parent snapshot of the attempt that wrote a file; None for a file of another program."""
    match = _ATTEMPT.search(file_name)
    if match is None:
        return None
    attempt = UUID(match[0]).bytes
    return int.from_bytes(attempt[:8], "big") if attempt[8:12] == _OURS else None


def commit_files(
    catalog: Catalog,
    table: Table,
    attempt: UUID,
    files: Sequence[DataFile],
    summary: Mapping[str, str],
    replaced: Sequence[DataFile] = (),
) -> Table:
    """Commit a snapshot that adds these files, with the same rows as the files in `replaced`; return the table.

    It is tried once: PyIceberg's own retry would build on the newest snapshot of that time. SnapshotConflictError if
    another writer was faster, UnavailableError if the outcome is unknown: `table.snapshot_by_id` of a later load, or
    the next commit, shows it.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update import AssertTableUUID
    from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

    kind = _OverwriteFiles if replaced else _MergeAppendFiles
    operation = Operation.OVERWRITE if replaced else Operation.APPEND
    with mapped_errors(STORAGE):
        producer = kind(
            operation, table.transaction(), table.io, commit_uuid=attempt, snapshot_properties=dict(summary)
        )
        for file in replaced:
            producer.delete_data_file(file)
        for file in files:
            producer.append_data_file(file)
        updates, requirements = producer._commit()
    if replaced:
        updates = tuple(map(_as_replacement, updates))
    requirements = (*requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
    name = ".".join(table.name())
    with mapped_errors(CATALOG):
        try:
            catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            newest = load_table(catalog, name)
            if newest is None or newest.snapshot_by_id(producer.snapshot_id) is None:
                producer._clean_all_uncommitted()
                raise SnapshotConflictError(str(error)) from error
            return newest  # stored, but the response was lost and the catalog's client had retried
    newest = load_table(catalog, name)
    assert newest is not None, "the catalog has committed it"
    return newest


def _as_replacement(update: Any) -> Any:
    """Change the operation to REPLACE, so that readers of the table's new rows ignore the snapshot; PyIceberg can't
    create such snapshots."""
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update import AddSnapshotUpdate

    if not isinstance(update, AddSnapshotUpdate):
        return update
    assert update.snapshot.summary is not None
    summary = Summary(Operation.REPLACE, **update.snapshot.summary.additional_properties)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"summary": summary}))


@dataclass(slots=True)
class _OpenFile:
    path: str
    writer: Any
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0
    written_bytes: int = 0


class DataFiles:
    """Writes batches of the table's schema to data files; `close` returns them, `abandon` deletes them."""

    def __init__(self, table: Table, attempt: UUID) -> None:
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.manifest import FileFormat

        self._table, self._attempt = table, attempt
        self._partitions = Partitions(table.metadata)
        self._model = FileFormatFactory.get(FileFormat.PARQUET)
        self._locations = table.location_provider()
        self.schema = schema_to_pyarrow(table.schema())
        self._open: dict[Key, _OpenFile] = {}
        self._done: list[DataFile] = []
        self._paths: list[str] = []
        self._pending_bytes = 0
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for kind, column in zip(self.schema, batch.columns, strict=True):
            if not kind.nullable and column.null_count:
                raise LakeStoppedError(
                    f"column {kind.name!r} of table {'.'.join(self._table.name())} was made required, and an event "
                    "lacks it: make it optional again. Events before the table's cut are in it"
                )
        parts = list(self._partitions.of(batch))
        with mapped_errors(STORAGE):
            for key, rows in parts:
                self._add(key, rows)
            while self._pending_bytes > LAKE_PENDING_BYTES:
                self._flush(max(self._open.values(), key=lambda file: file.pending_bytes))

    def close(self) -> list[DataFile]:
        with mapped_errors(STORAGE):
            for key in list(self._open):
                self._finish(key)
        return self._done

    def abandon(self) -> None:
        """Delete the files written; those that can't be deleted now are left to a sweep."""
        try:
            for file in self._open.values():
                if file.written_bytes:
                    file.writer.close()
            for path in self._paths:
                with suppress(FileNotFoundError):  # not started, or deleted by another writer's sweep
                    self._table.io.delete(path)
        except (OSError, pa.ArrowException) as error:
            log.warning("can't delete the files of a failed attempt; a sweep deletes them later: %s", error)

    def _add(self, key: Key, batch: pa.RecordBatch) -> None:
        file = self._open.pop(key, None)
        if file is None:
            path = self._locations.new_data_location(data_file_name(self._attempt, len(self._paths)))
            self._paths.append(path)
            output = self._table.io.new_output(path)
            file = _OpenFile(path, self._model.create_writer(output, self._table.schema(), self._table.properties))
        self._open[key] = file  # in order of use
        file.pending.append(batch)
        file.pending_bytes += batch.nbytes
        self._pending_bytes += batch.nbytes
        if file.pending_bytes >= LAKE_ROW_GROUP_BYTES:
            self._flush(file)
        if file.written_bytes >= LAKE_FILE_BYTES:
            self._finish(key)
        while len(self._open) > LAKE_FILES_OPEN:
            self._finish(next(iter(self._open)))

    def _flush(self, file: _OpenFile) -> None:
        file.writer.write(pa.Table.from_batches(file.pending, schema=self.schema))
        self._pending_bytes -= file.pending_bytes
        file.written_bytes += file.pending_bytes
        file.pending, file.pending_bytes = [], 0

    def _finish(self, key: Key) -> None:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        file = self._open.pop(key)
        if file.pending:
            self._flush(file)
        statistics = file.writer.close()
        self._done.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=file.path,
                file_format=FileFormat.PARQUET,
                partition=Record(*key),
                file_size_in_bytes=len(self._table.io.new_input(file.path)),
                sort_order_id=None,
                spec_id=self._table.metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
