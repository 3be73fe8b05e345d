"""Attempts at a snapshot: how one is named, how it is committed, and how one sees that others were faster.

An attempt's name says which snapshot it is built on. It is committed on the condition that this is still the table's
newest, so of two attempts on one snapshot one is stored, whoever makes them and however late they arrive. Hence, too:
the files of an attempt on a snapshot that is no longer the newest, and which no snapshot names, nothing will ever name.

>>> name = data_file_name(new_attempt(81), 3)
>>> parent_of(name), parent_of("00000-3-8d1c37a2.parquet")
(81, None)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from nadi.lake.table.catalogs import load_table
from nadi.lake.table.reaching import CATALOG, STORAGE, reaching

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.update.snapshot import _SnapshotProducer

_OURS = b"nadi"
NO_SNAPSHOT = 0
_ATTEMPT = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])")


class OvertakenError(Exception):
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


def commit_append(
    catalog: Catalog, table: Table, attempt: UUID, files: Sequence[DataFile], summary: Mapping[str, str]
) -> Table:
    """The table with a snapshot more, which has these files too. OvertakenError if others were faster, UnavailableError
    where it isn't known whether it was stored: `table.snapshot_by_id` of a later look knows, or the next commit
    does."""
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _MergeAppendFiles

    with reaching(STORAGE):
        producer = _MergeAppendFiles(
            Operation.APPEND, table.transaction(), table.io, commit_uuid=attempt, snapshot_properties=dict(summary)
        )
        for file in files:
            producer.append_data_file(file)
    return _commit(catalog, table, producer)


def commit_replace(
    catalog: Catalog,
    table: Table,
    attempt: UUID,
    old: Sequence[DataFile],
    new: Sequence[DataFile],
    summary: Mapping[str, str],
) -> Table:
    """The table with a snapshot more, in which files stand for others that have the same rows. As `commit_append`."""
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    with reaching(STORAGE):
        producer = _OverwriteFiles(
            Operation.OVERWRITE, table.transaction(), table.io, commit_uuid=attempt, snapshot_properties=dict(summary)
        )
        for file in old:
            producer.delete_data_file(file)
        for file in new:
            producer.append_data_file(file)
    return _commit(catalog, table, producer, is_replacement=True)


def _commit(catalog: Catalog, table: Table, producer: _SnapshotProducer, *, is_replacement: bool = False) -> Table:
    """What a producer has made, once: PyIceberg's own way tries again on whatever the newest snapshot is then."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertTableUUID

    with reaching(STORAGE):
        updates, requirements = producer._commit()
    if is_replacement:
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
                raise OvertakenError(str(error)) from error
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
