"""Files that nothing names, and nothing will: of attempts whose writer was killed, or overtaken.

An attempt's files can only come to be named by a snapshot that follows the one that it is built on (`attempts`). While
that one is the newest, they are left alone: somebody may be about to commit them. Once it isn't, they are named
already, or never will be. No clock is asked, and no other writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from nadi.lake.table.attempts import OvertakenError, head_of, parent_of
from nadi.lake.table.catalogs import load_table
from nadi.lake.table.reaching import STORAGE, reaching

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def sweep(catalog: Catalog, table: Table) -> int:
    """Remove such files; how many there were. The table is looked at once more, behind the list of its files: so the
    snapshot that a file is built on is this table's newest, or an older one. OvertakenError if another has expired
    snapshots meanwhile: what is left then is seen later."""
    with reaching(STORAGE):
        places = table.location_provider()
        found = [*_files(table, places.data_path), *_files(table, places.metadata_path)]
    now = load_table(catalog, ".".join(table.name()))
    if now is None or now.metadata.table_uuid != table.metadata.table_uuid:
        return 0
    table, head = now, head_of(now)
    with reaching(STORAGE):
        ours = [path for path in found if (parent := parent_of(_name(path))) is not None and parent != head]
        if not ours:
            return 0
        try:
            named = {_name(path) for path in _named(table)}
        except FileNotFoundError as error:
            newest = load_table(catalog, ".".join(table.name()))
            if newest is None or newest.metadata_location == table.metadata_location:
                raise
            raise OvertakenError(str(error)) from error
        orphans = [path for path in ours if _name(path) not in named]
        for path in orphans:
            with suppress(FileNotFoundError):  # another writer has swept meanwhile
                table.io.delete(path)
    return len(orphans)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _named(table: Table) -> Iterator[str]:
    """What snapshots name: manifest lists, manifests, data files."""
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def _files(table: Table, folder: str) -> list[str]:
    """What lies in a folder of the table's storage, and below it, in its own naming."""
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(table.io, PyArrowFileIO):
        return []
    scheme, netloc, path = PyArrowFileIO.parse_location(folder, table.io.properties)
    filesystem = table.io.fs_by_scheme(scheme, netloc)
    listed = filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return [folder + one.path[len(path) :] for one in listed if one.type == FileType.File]
