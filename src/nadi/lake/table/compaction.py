"""Small files joined: a snapshot that replaces files by others with the same rows.

Each commit leaves a file or more in each partition that it has rows of. Where there are many small ones, they are read
and written anew, as much at once as one commit may have. What others have deleted from them is gone then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from nadi.lake.table.attempts import commit_replace
from nadi.lake.table.files import DataFiles
from nadi.lake.table.pieces import pieces_of
from nadi.lake.table.reaching import STORAGE, reaching
from nadi.lake.table.reading import TableFiles, columns_named, files_of
from nadi.lake.table.shapes import fitted
from nadi.limits import LAKE_COMPACTED_BYTES, LAKE_SMALL_FILE_BYTES

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table


def small_files(table: Table, least: int) -> list[FileScanTask]:
    """Those to join next: of partitions that have at least so many, the fullest first, up to about as much as one
    commit may have. Only of the present partitioning."""
    spec = table.metadata.default_spec_id
    groups: dict[Any, list[FileScanTask]] = {}
    for task in files_of(table):
        if task.file.file_size_in_bytes < LAKE_SMALL_FILE_BYTES and task.file.spec_id == spec:
            groups.setdefault(tuple(task.file.partition[at] for at in range(len(task.file.partition))), []).append(task)
    found: list[FileScanTask] = []
    size = 0
    for group in sorted(groups.values(), key=len, reverse=True):
        if len(group) < max(least, 2):
            break
        for task in group:
            size += task.file.file_size_in_bytes
            if size > LAKE_COMPACTED_BYTES and found:
                return found
            found.append(task)
    return found


def join(
    catalog: Catalog, table: Table, attempt: UUID, files: Sequence[FileScanTask], summary: dict[str, str]
) -> tuple[Table, int]:
    """The table with these files replaced, and by how many. OvertakenError and UnavailableError as in
    `commit_append`."""
    made = DataFiles(table, attempt)
    try:
        for batch in TableFiles.of(table).read(pieces_of(files), columns_named(table)):
            made.write(fitted(batch, made.schema))
        new = made.close()
        with reaching(STORAGE):
            old = [task.file for task in files]
    except Exception:
        made.abandon()
        raise
    return commit_replace(catalog, table, attempt, old, new, summary), len(new)
