"""Attempts at a snapshot: data files, in which rows are divided by partition in bounded memory, and their commit.

An attempt's name says which snapshot it is built on. It is committed on the condition that this is still the table's
newest, so of two attempts on one snapshot one is stored, whoever makes them and however late they arrive. A file's name
begins with its attempt: nothing will ever name a file of an attempt on a snapshot that is no longer the newest, if no
snapshot names it already. Files lie beside each other: Iceberg finds partitions by its manifests, not by folders.

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
from nadi.lake.table.error_mapping import CATALOG, STORAGE, LakeStoppedError, reaching
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
    """Another snapshot was committed meanwhile: nothing of the attempt is in the table."""


def head_of(table: Table) -> int:
    """The id of the table's newest snapshot, NO_SNAPSHOT if it has none."""
    snapshot = table.current_snapshot()
    return NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id


def new_attempt(parent: int) -> UUID:
    return UUID(bytes=parent.to_bytes(8, "big") + _OURS + os.urandom(4))


def data_file_name(attempt: UUID, number: int) -> str:
    return f"nadi-{attempt}-{number:05d}.parquet"


def parent_of(file_name: str) -> int | None:
    """The snapshot on which the attempt that wrote a file was built; None for a file of others."""
    found = _ATTEMPT.search(file_name)
    if found is None:
        return None
    made = UUID(found[0]).bytes
    return int.from_bytes(made[:8], "big") if made[8:12] == _OURS else None


def commit_files(
    catalog: Catalog,
    table: Table,
    attempt: UUID,
    files: Sequence[DataFile],
    summary: Mapping[str, str],
    replaced: Sequence[DataFile] = (),
) -> Table:
    """The table with a snapshot more, which has these files too; of those `replaced` they have the same rows.

    It is tried once: PyIceberg's own way tries again on whatever the newest snapshot is then. OvertakenError if others
    were faster, UnavailableError where it isn't known whether it was stored: `table.snapshot_by_id` of a later look
    knows, or the next commit does.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update import AssertTableUUID
    from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

    kind = _OverwriteFiles if replaced else _MergeAppendFiles
    operation = Operation.OVERWRITE if replaced else Operation.APPEND
    with reaching(STORAGE):
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
    with reaching(CATALOG):
        try:
            catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            now = load_table(catalog, name)
            if now is None or now.snapshot_by_id(producer.snapshot_id) is None:
                producer._clean_all_uncommitted()
                raise SnapshotConflictError(str(error)) from error
            return now  # it was stored, and the answer to that got lost: the catalog's client had tried again
    now = load_table(catalog, name)
    assert now is not None, "the catalog has stored it"
    return now


def _as_replacement(update: Any) -> Any:
    """Iceberg's operation for the same rows in other files, so that who follows the table's new rows passes it over;
    PyIceberg has none that makes it."""
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
    """Write batches of the table's schema; `close` gives the files, `abandon` removes them again."""

    def __init__(self, table: Table, attempt: UUID) -> None:
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.manifest import FileFormat

        self._table, self._attempt = table, attempt
        self._partitions = Partitions(table.metadata)
        self._model = FileFormatFactory.get(FileFormat.PARQUET)
        self._places = table.location_provider()
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
        """Remove what was written: nothing names it. What can't be removed now is left for a later sweep."""
        try:
            for file in self._open.values():
                if file.written_bytes:
                    file.writer.close()
            for path in self._paths:
                with suppress(FileNotFoundError):  # it wasn't begun, or another writer's sweep was faster
                    self._table.io.delete(path)
        except (OSError, pa.ArrowException) as error:
            log.warning("files of an attempt that came to nothing are left for later: %s", error)

    def _add(self, key: Key, batch: pa.RecordBatch) -> None:
        one = self._open.pop(key, None)
        if one is None:
            path = self._places.new_data_location(data_file_name(self._attempt, len(self._paths)))
            self._paths.append(path)
            output = self._table.io.new_output(path)
            one = _OpenFile(path, self._model.create_writer(output, self._table.schema(), self._table.properties))
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

    def _flush(self, one: _OpenFile) -> None:
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
