"""A lake's writer: brings the table from its cut to a later one, a commit at a time.

    the newest snapshot's mark        where the table is; letters that its writer left are written
    next_cut                          where the next snapshot is
    Rows → DataFiles                  data files, which nothing names yet
    commit_append                     the snapshot with files and mark, if the newest is still the one looked at
    write_letters                     events that are no rows
    release                           retention may have what lies before the cut

A writer that is killed at any of these steps has either committed or not, and the next one sees which. Files of those
that hadn't are removed once nothing can name them any more (`sweep`).

Small files are joined: a snapshot replaces files by others with the same rows. Each commit leaves a file or more in
each partition that it has rows of. Where there are many small ones, they are read and written anew, as much at once as
one commit may have. What others have deleted from them is gone then.

An attempt's files can only come to be named by a snapshot that follows the one that it is built on (`attempts`). While
that one is the newest, they are left alone: somebody may be about to commit them. Once it isn't, they are named
already, or never will be. No clock is asked, and no other writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from msgspec.structs import replace

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.errors import InvalidStreamCutError, NadiError, TruncatedError, UnavailableError
from nadi.lake.definition import FIXED, LakeDefinition
from nadi.lake.letters import letters_of, write_letters
from nadi.lake.marks import Mark, mark_of, newest_mark, segments_told, summary_of, without_rows
from nadi.lake.record import StoredLake
from nadi.lake.rows import Rows, check_places
from nadi.lake.steps import behind_head, next_cut, ranges_between
from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table import catalogs, shapes
from nadi.lake.table.attempts import OvertakenError, commit_append, commit_replace, head_of, new_attempt, parent_of
from nadi.lake.table.catalogs import load_table
from nadi.lake.table.files import DataFiles
from nadi.lake.table.partitions import partition_fields
from nadi.lake.table.pieces import pieces_of
from nadi.lake.table.reaching import STORAGE, reaching
from nadi.lake.table.reading import TableFiles, columns_named, files_of
from nadi.lake.table.shapes import fitted
from nadi.limits import LAKE_COMPACTED_BYTES, LAKE_SMALL_FILE_BYTES
from nadi.model.streamcut import StreamCut

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table


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


log = logging.getLogger("nadi.lake")
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Committed:
    """A snapshot: up to where it is, and how much was new. is_level: as far as the stream was when it began."""

    cut: StreamCut
    rows: int
    letters: int
    size_bytes: int
    is_level: bool


class LakeWriter:
    """Of one lake. step: called with the name of each step that was done: planned, written, committed, letters,
    released; and compacted."""

    def __init__(self, manager: StreamManager, lake: LakeDefinition, *, step: Step = lambda name: None) -> None:
        self._manager, self.lake, self._step = manager, lake, step
        self._thread, self._core = inside(manager)
        self._stored = StoredLake(self._core, lake.scope, lake.name)
        self._catalog = catalogs.open_catalog(lake.catalog)
        self._is_swept = False
        self._settled: int | None = None  # the snapshot whose letters are known to be written

    def close(self) -> None:
        """Close the catalog's connections."""
        self._catalog.close()

    def commit(self) -> Committed | None:
        """Write one snapshot; None if the table is level with the stream. UnavailableError: try again later.
        LakeStoppedError: something is to be changed first. OvertakenError stays within: another writer was faster."""
        table = self._table()
        mark = newest_mark(table, self.lake.scope, self.lake.stream)
        self._settle(table, mark)
        start = self._start(mark)
        try:
            end, size = self._thread.run(next_cut(self._core, start, self.lake.commit_bytes))
        except InvalidStreamCutError:
            self._thread.run(self._stored.check_stream(start))
            raise
        except TruncatedError as error:
            self._thread.run(self._stored.check_stream(start))
            start, end, size = self._behind(start, error)
        if not size and (mark is None or start == mark.end_cut):
            return None
        self._step("planned")
        try:
            return self._commit(table, mark, start, end, size)
        except OvertakenError:
            log.info("another writer of %s was faster: looking where the table is", self.lake.table)
            self._is_swept = False
            return Committed(start, 0, 0, 0, False)
        except UnavailableError:
            self._is_swept = False
            raise

    def compact(self) -> int:
        """Join small files in one snapshot, and expire old snapshots; how many files were joined. Errors as in
        `commit`."""
        table = self._table()
        mark = newest_mark(table, self.lake.scope, self.lake.stream)
        if mark is None:
            return 0
        self._settle(table, mark)
        files = small_files(table, self.lake.compact_files) if self.lake.compact_files else []
        if files:
            summary = summary_of(without_rows(mark, segments_told(table)))
            try:
                table, made = join(self._catalog, table, new_attempt(head_of(table)), files, summary)
            except OvertakenError:
                log.info("another writer of %s was faster: its small files are joined later", self.lake.table)
                self._is_swept = False
                return 0
            self._step("compacted")
            log.info("joined %d files of %s in %d", len(files), self.lake.table, made)
            self._settled = head_of(table)
        snapshot = table.current_snapshot()
        if snapshot is None or mark_of(snapshot) is None:
            return len(files)  # another's: what says the table's cut may be behind it, and old
        before = datetime.now(UTC) - timedelta(seconds=self.lake.keep_snapshots_s)
        if len(catalogs.lasting(table, before)) < len(table.snapshots()):
            try:
                table = self._told_again(table, mark, before)
            except OvertakenError:
                return len(files)  # they are expired later
            catalogs.expire_snapshots(table, before)
            self._is_swept = False
        if not self._is_swept and files:
            self._sweep(table)
        return len(files)

    def _told_again(self, table: Table, mark: Mark, before: datetime) -> Table:
        """With a snapshot that says of which segments there are rows, where only such say it that are to go."""
        known = segments_told(table)
        if segments_told(table, catalogs.lasting(table, before)) == known:
            return table
        summary = summary_of(without_rows(mark, known))
        table = commit_append(self._catalog, table, new_attempt(head_of(table)), [], summary)
        self._settled = head_of(table)
        return table

    # --- the table ---------------------------------------------------------------------------------

    def _table(self) -> Table:
        table = catalogs.load_table(self._catalog, self.lake.table)
        record = self._thread.run(self._stored.record.get())
        if any(getattr(record.definition, one) != getattr(self.lake, one) for one in FIXED):
            raise LakeStoppedError(
                f"lake {self.lake.name} has other options by now than this writer began with: start it again"
            )
        if table is None:
            if record.table_id:
                raise LakeStoppedError(
                    f"table {self.lake.table} isn't in the catalog any more: bring it back, or forget the lake (`nadi "
                    "lake forget`) and start it again, to write a new one from what the stream has left"
                )
            rows = self._rows(self._first_cut(), self._first_cut())
            table = catalogs.create_table(
                self._catalog, self.lake.table, rows.schema, partition_fields(self.lake.partition)
            )
        table_id = str(table.metadata.table_uuid)
        if record.table_id != table_id:
            if record.table_id:
                raise LakeStoppedError(
                    f"table {self.lake.table} isn't the one that the lake wrote: it was dropped, and another made "
                    "under its name. Delete the lake (`nadi lake delete`), and run it again with a table of its own"
                )
            self._thread.run(self._stored.record.put(lambda held: replace(held or record, table_id=table_id)))
        check_places(table)
        return table

    def _first_cut(self) -> StreamCut:
        return StreamCut.from_text(self._thread.run(self._stored.record.get()).start)

    def _start(self, mark: Mark | None) -> StreamCut:
        return self._first_cut() if mark is None else mark.end_cut

    def _behind(self, start: StreamCut, error: TruncatedError) -> tuple[StreamCut, StreamCut, int]:
        if not self.lake.skip_truncated:
            raise LakeStoppedError(
                f"events behind the table's cut were truncated before they were in it ({error}): start the lake with "
                "--skip-truncated to go on with what is left"
            ) from error
        found = self._thread.run(behind_head(self._core, start))
        log.error("events of %s were truncated before they were in %s: %s", self.lake.full_name, self.lake.table, error)
        return found, *self._thread.run(next_cut(self._core, found, self.lake.commit_bytes))

    # --- one commit --------------------------------------------------------------------------------

    def _rows(self, start: StreamCut, end: StreamCut) -> Rows:
        return Rows(self._manager, self.lake, start, end)

    def _commit(self, table: Table, mark: Mark | None, start: StreamCut, end: StreamCut, size: int) -> Committed:
        rows = self._rows(start, end)
        table = shapes.evolved(self._catalog, table, rows.schema)
        attempt = new_attempt(head_of(table))
        files = DataFiles(table, attempt)
        try:
            letters = self._write(files, rows, table)
            found = files.close()
            before = 0 if mark is None else mark.letters
            new = Mark(
                cut=end.as_text(),
                start=start.as_text(),
                rows=files.rows,
                letters=before + letters,
                own_letters=letters,
                reading=rows.reading,
                segments=tuple(
                    (one.segment_id, one.low, one.high)
                    for one in self._thread.run(ranges_between(self._core, start, end))
                ),
            )
            self._check_letters(new)
            self._step("written")
        except Exception:
            _abandoned(files)
            raise
        try:
            table = commit_append(self._catalog, table, attempt, found, summary_of(new))
        except OvertakenError:
            _abandoned(files)
            raise
        self._step("committed")
        self._settle(table, new)
        self._sweep(table)
        return Committed(end, files.rows, letters, size, size < self.lake.commit_bytes)

    def _write(self, files: DataFiles, rows: Rows, table: Table) -> int:
        letters = 0
        fit = partial(shapes.fitted, schema=files.schema)
        for found in rows:
            letters += found.letters
            if found.rows.num_rows:
                files.write(fit(found.rows))
        return letters

    def _check_letters(self, mark: Mark) -> None:
        """LakeStoppedError if there are some and no stream for them."""
        if not mark.own_letters or self.lake.dead_letters is not None:
            return
        first = next(letters_of(self._manager, self.lake, mark))
        raise LakeStoppedError(
            f"the event at {first.segment}@{first.offset} can't be read as {self.lake.value_format}: {first.reason}. "
            f"Nothing behind the table's cut was written. There are {mark.own_letters:,} such events up to where the "
            "stream was: give the lake a stream for them (--dead-letter STREAM), or correct its schema, and start it "
            "again"
        )

    def _settle(self, table: Table, mark: Mark | None) -> None:
        """Whatever is to follow the newest snapshot, if its writer was killed."""
        if mark is None or self._settled == head_of(table):
            return
        try:
            write_letters(self._manager, self.lake, UUID(str(table.metadata.table_uuid)), mark)
        except TruncatedError as error:
            if not self.lake.skip_truncated:
                raise LakeStoppedError(
                    f"{mark.own_letters:,} events that are no rows of {self.lake.table} were truncated before all of "
                    f"them were in {self.lake.dead_letters} ({error}): start the lake with --skip-truncated to go on"
                ) from error
            log.error("dead letters of %s are lost: %s", self.lake.table, error)
        self._step("letters")
        if self.lake.holds_back:
            self._thread.run(self._stored.release(mark.end_cut))
        self._settled = head_of(table)
        self._step("released")

    def _sweep(self, table: Table) -> None:
        """Once after it began, and after each trouble: behind a commit, for then nothing can name what is older."""
        if self._is_swept:
            return
        try:
            removed = sweep(self._catalog, table)
        except OvertakenError:
            return  # behind the next commit
        if removed:
            log.info("removed %d files of attempts that came to nothing from %s", removed, self.lake.table)
        self._is_swept = True


def _abandoned(files: DataFiles) -> None:
    try:
        files.abandon()
    except (OSError, pa.ArrowException, NadiError) as error:
        log.warning("files of an attempt that came to nothing are left for later: %s", error)
