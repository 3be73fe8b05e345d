"""A lake's writer: advances the table from its cut to a later one, a commit at a time.

    the newest snapshot's mark        the table's position; the dead letters left by its writer are written
    next_cut                          the next snapshot's position
    LakeRows → DataFiles              data files, still unreferenced
    commit_files                      the snapshot with files and mark, if the newest snapshot is unchanged
    write_dead_letters                invalid events
    release                           retention may truncate events before the cut

A writer that is killed at any of these steps has either committed or not, and the next one finds out. Uncommitted files
are deleted once no snapshot can reference them any more (`sweep`).

Small files are merged: a snapshot replaces files by others with the same rows. Each commit adds at least one file to
each partition of its rows. Partitions with many small files are read and rewritten, as much at once as a commit may
have. Rows that others have deleted from these files are dropped then.

An attempt's files can only be referenced by a snapshot that follows the attempt's parent. While the parent is the
newest snapshot, they are kept: a writer may be about to commit them. Afterwards they are referenced already, or never
will be (`table.files`). This needs neither clocks nor other writers.

Invalid events become dead letters. A snapshot records their number among its events and before them. They are written
after the snapshot, read again from between its cuts, with numbers that follow from these counts: a writer that finds
some missing writes them (`client.idempotent`). No other snapshot follows before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from nadi.client import StreamManager, aio
from nadi.client.blocking.face import inside
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import frontier_at, segment_ranges
from nadi.client.scan.scan import scan
from nadi.client.stream_cuts.segment_ends import SegmentEnds, pass_finished
from nadi.client.values.options import value_options
from nadi.client.values.parser import ValueParser
from nadi.client.values.target import target_of
from nadi.errors import InvalidStreamCutError, TruncatedError, UnavailableError
from nadi.lake.definition import FIXED, LakeDefinition, StoredLake
from nadi.lake.rows import LakeRows, SnapshotMark, check_position_columns, mark_of, newest_mark, recorded_segments
from nadi.lake.table.catalogs import (
    create_table,
    evolved,
    expire_snapshots,
    fitted,
    load_table,
    open_catalog,
    retained_snapshots,
)
from nadi.lake.table.error_mapping import STORAGE, LakeStoppedError, mapped_errors
from nadi.lake.table.files import DataFiles, SnapshotConflictError, commit_files, head_of, new_attempt, parent_of
from nadi.lake.table.partitions import misplaced, partition_fields
from nadi.lake.table.reading import TableFiles, columns_named, files_of, pieces_of
from nadi.limits import LAKE_COMPACTED_BYTES, LAKE_DEAD_LETTERS_AT_ONCE, LAKE_SMALL_FILE_BYTES, MIB
from nadi.model.keyspace import key_position
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.process.dead_letters import DeadLetter
from nadi.wire import commands as wire

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table


_AT_ONCE_BYTES = 4 * MIB


def in_batches(events: Iterable[NumberedEvent], most: int) -> Iterator[list[NumberedEvent]]:
    """Yield the events in lists of at most `most`, and of about 4 MiB."""
    batch: list[NumberedEvent] = []
    size = 0
    for event in events:
        batch.append(event)
        size += len(event.data)
        if len(batch) >= most or size >= _AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_dead_letters(manager: StreamManager, lake: LakeDefinition, table_id: UUID, mark: SnapshotMark) -> None:
    """Write the missing dead letters of one snapshot, in order. TruncatedError if their events are truncated."""
    to = lake.dead_letter_stream
    if not mark.own_letters or to is None:
        return
    thread, core = inside(manager)
    stores = stores_of(core)
    writer = thread.result(lambda: IdempotentWriter(StreamShape(stores, *to), table_id.bytes))
    position = key_position(str(table_id))  # one position for all, so that the last exists only if all do
    try:
        if thread.run(writer.last_number(position)) >= mark.letters - 1:
            return  # their events may be truncated
        letters = enumerate(dead_letters_of(manager, lake, mark), mark.letters - mark.own_letters)
        events = (NumberedEvent(number, position, letter.encode()) for number, letter in letters)
        for batch in in_batches(events, LAKE_DEAD_LETTERS_AT_ONCE):
            thread.run(writer.write(batch))
    finally:
        thread.result(writer.close)


def dead_letters_of(manager: StreamManager, lake: LakeDefinition, mark: SnapshotMark) -> Iterator[DeadLetter]:
    """Yield the dead letters between a snapshot's cuts, always the same in the same order."""
    reading = mark.reading
    assert reading is not None, "bytes are always rows"
    thread, core = inside(manager)
    value = value_options(reading.format, reading.ddl, reading.version, None)
    assert value is not None
    target = thread.run(target_of(core, value, lake.scope, [lake.stream], lambda _: True))
    assert target is not None
    parser = ValueParser(core.schemas(lake.scope, lake.stream), thread.run, lake.full_name, target)
    events = scan(
        manager,
        lake.scope,
        lake.stream,
        start=StreamCut.from_text(mark.start),
        end=mark.end_cut,
        columns=["value", "event", "segment_id", "offset"],
        value_format=reading.format,
        value_schema=reading.ddl,
        value_version=reading.version,
    )
    partition = partition_fields(lake.partition)
    for batch in events.batches():
        is_wrong = batch.column("value").is_null().to_numpy(zero_copy_only=False).copy()
        without_partition = misplaced(partition, pa.RecordBatch.from_struct_array(batch.column("value")))
        is_wrong[list(without_partition)] = True
        if not is_wrong.any():
            continue
        wrong = batch.take(pa.array(np.flatnonzero(is_wrong)))
        nowhere = [without_partition.get(int(row)) for row in np.flatnonzero(is_wrong)]
        segment_id, offsets = wrong.column("segment_id")[0].as_py(), wrong.column("offset").to_numpy()
        reasons = parser.parse(wrong.column("event"), segment_id, offsets).wrong
        for at, data in enumerate(wrong.column("event").to_pylist()):
            yield DeadLetter(
                by=f"lake {lake.name}",
                segment=segment_name(lake.scope, lake.stream, segment_id),
                offset=int(offsets[at]),
                reason=reasons.get(at, nowhere[at] or "the value is null"),
                data=data,
            )


async def next_cut(manager: aio.StreamManager, start: StreamCut, most_bytes: int) -> tuple[StreamCut, int]:
    """Return the cut of the next commit, and its size in bytes of the stream, about `most_bytes` or less: the tail, or
    a valid cut before it. TruncatedError if some of these bytes are truncated.

    A cut before the tail is made by reading rules (`model.frontier`): finished segments are passed, and each segment
    that may then be read advances by an equal share, to an event boundary.
    """
    cuts = manager.cuts(start.scope, start.stream)
    tail = await cuts.tail()
    total = await cuts.bytes_between(start, tail)
    if total <= most_bytes:
        return (tail if total else start), total
    stores = stores_of(manager)
    ends = SegmentEnds(stores, start.scope, start.stream)
    frontier = await frontier_at(stores, start)
    offsets = {segment: max(start.positions[segment], 0) for segment in frontier.active}
    infos = await pass_finished(ends, frontier, offsets)
    unread = {segment: max(infos[segment].write_offset - offset, 0) for segment, offset in offsets.items()}
    share = max(most_bytes // max(sum(size > 0 for size in unread.values()), 1), 1)

    async def read_on(segment: int) -> int:
        if unread[segment] <= share:
            return offsets[segment] + unread[segment]
        name = segment_name(start.scope, start.stream, segment)
        request = wire.LocateOffset(0, name, offsets[segment] + share, "")
        return (await stores.ask(request, wire.OffsetLocated)).offset

    reached = dict(zip(offsets, await asyncio.gather(*map(read_on, offsets)), strict=True))
    cut = StreamCut(start.scope, start.stream, frontier.positions(reached))
    return cut, sum(reached[segment] - offsets[segment] for segment in offsets)


def sweep(catalog: Catalog, table: Table) -> int:
    """Delete unreferenced files of old attempts; return their number. The table is loaded again after its files are
    listed, so that a file's parent is the newest snapshot or an older one. SnapshotConflictError if another writer has
    expired snapshots meanwhile: try again later."""
    with mapped_errors(STORAGE):
        folders = table.location_provider()
        paths = [*_files(table, folders.data_path), *_files(table, folders.metadata_path)]
    newest = load_table(catalog, ".".join(table.name()))
    if newest is None or newest.metadata.table_uuid != table.metadata.table_uuid:
        return 0
    table, head = newest, head_of(newest)
    with mapped_errors(STORAGE):
        own = [path for path in paths if (parent := parent_of(_name(path))) is not None and parent != head]
        if not own:
            return 0
        try:
            named = _named(table)
        except FileNotFoundError as error:
            newest = load_table(catalog, ".".join(table.name()))
            if newest is None or newest.metadata_location == table.metadata_location:
                raise
            raise SnapshotConflictError(str(error)) from error
        orphans = [path for path in own if _name(path) not in named]
        for path in orphans:
            with suppress(FileNotFoundError):  # another writer has deleted it
                table.io.delete(path)
    return len(orphans)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _named(table: Table) -> set[str]:
    """Return the names of all files that snapshots reference."""
    snapshots = table.snapshots()
    manifests = {item.manifest_path: item for snapshot in snapshots for item in snapshot.manifests(table.io)}
    entries = (
        entry for item in manifests.values() for entry in item.fetch_manifest_entry(table.io, discard_deleted=True)
    )
    files = (entry.data_file.file_path for entry in entries)
    return {*map(_name, manifests), *map(_name, files), *(_name(item.manifest_list) for item in snapshots)}


def _files(table: Table, folder: str) -> list[str]:
    """Return the paths of all files below a folder of the table's storage."""
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(table.io, PyArrowFileIO):
        return []
    scheme, netloc, path = PyArrowFileIO.parse_location(folder, table.io.properties)
    filesystem = table.io.fs_by_scheme(scheme, netloc)
    listed = filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return [folder + info.path[len(path) :] for info in listed if info.type == FileType.File]


def small_files(table: Table, least: int) -> list[FileScanTask]:
    """Return the files to merge next, up to the size of a commit: of partitions with at least `least` small files, the
    fullest first. Only of the current partitioning."""
    spec = table.metadata.default_spec_id
    groups: dict[Any, list[FileScanTask]] = {}
    for task in files_of(table):
        if task.file.file_size_in_bytes < LAKE_SMALL_FILE_BYTES and task.file.spec_id == spec:
            groups.setdefault(tuple(task.file.partition[at] for at in range(len(task.file.partition))), []).append(task)
    selected: list[FileScanTask] = []
    size = 0
    for group in sorted(groups.values(), key=len, reverse=True):
        if len(group) < max(least, 2):
            break
        for task in group:
            size += task.file.file_size_in_bytes
            if size > LAKE_COMPACTED_BYTES and selected:
                return selected
            selected.append(task)
    return selected


log = logging.getLogger("nadi.lake")
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A snapshot: its cut, and the counts of the commit. is_up_to_date: up to date with the stream as it was at the
    start."""

    cut: StreamCut
    rows: int
    dead_letters: int
    size_bytes: int
    is_up_to_date: bool


class LakeWriter:
    """Writes one lake's table. step: called with the name of each completed step: planned, written, committed, letters,
    released; and compacted."""

    def __init__(self, manager: StreamManager, lake: LakeDefinition, *, step: Step = lambda name: None) -> None:
        self._manager, self.lake, self._step = manager, lake, step
        self._thread, self._core = inside(manager)
        self._stored = StoredLake(self._core, lake.scope, lake.name)
        self._catalog = open_catalog(lake.catalog)
        self._is_swept = False
        self._settled: int | None = None  # the snapshot whose dead letters are known to be written

    def close(self) -> None:
        self._catalog.close()

    def commit(self) -> CommitResult | None:
        """Write one snapshot; None if the table is up to date. UnavailableError: retry later. LakeStoppedError: a
        change is needed first. If another writer was faster, return a commit without rows."""
        table = self._table()
        mark = newest_mark(table, self.lake.scope, self.lake.stream)
        self._settle(table, mark)
        start = self._first_cut() if mark is None else mark.end_cut
        try:
            end, size = self._thread.run(next_cut(self._core, start, self.lake.commit_bytes))
        except InvalidStreamCutError:
            self._thread.run(self._stored.check_stream(start))
            raise
        except TruncatedError as error:
            self._thread.run(self._stored.check_stream(start))
            start, end, size = self._skip_truncated(start, error)
        if not size and (mark is None or start == mark.end_cut):
            return None
        self._step("planned")
        try:
            return self._commit(table, mark, start, end, size)
        except SnapshotConflictError:
            log.info("another writer of %s was faster; reading the table's position again", self.lake.table)
            self._is_swept = False
            return CommitResult(start, 0, 0, 0, False)
        except UnavailableError:
            self._is_swept = False
            raise

    def compact(self) -> int:
        """Merge small files in one snapshot, and expire old snapshots; return the number of files merged. Errors as in
        `commit`."""
        table = self._table()
        mark = newest_mark(table, self.lake.scope, self.lake.stream)
        if mark is None:
            return 0
        self._settle(table, mark)
        files = small_files(table, self.lake.compact_files) if self.lake.compact_files else []
        if files:
            summary = mark.without_rows(recorded_segments(table)).summary()
            try:
                table, merged = self._join(table, files, summary)
            except SnapshotConflictError:
                log.info("another writer of %s was faster; merging small files later", self.lake.table)
                self._is_swept = False
                return 0
            self._step("compacted")
            log.info("merged %d files of %s into %d", len(files), self.lake.table, merged)
            self._settled = head_of(table)
        snapshot = table.current_snapshot()
        if snapshot is None or mark_of(snapshot) is None:
            return len(files)  # another program's: an older snapshot has the table's cut
        before = datetime.now(UTC) - timedelta(seconds=self.lake.keep_snapshots_s)
        if len(retained_snapshots(table, before)) < len(table.snapshots()):
            try:
                table = self._with_segments_recorded(table, mark, before)
            except SnapshotConflictError:
                return len(files)  # expired later
            expire_snapshots(table, before)
            self._is_swept = False
        if not self._is_swept and files:
            self._sweep(table)
        return len(files)

    def _join(self, table: Table, files: Sequence[FileScanTask], summary: dict[str, str]) -> tuple[Table, int]:
        attempt = new_attempt(head_of(table))
        files_made = DataFiles(table, attempt)
        try:
            for batch in TableFiles.of(table).read(pieces_of(files), columns_named(table)):
                files_made.write(fitted(batch, files_made.schema))
            new = files_made.close()
            with mapped_errors(STORAGE):
                old = [task.file for task in files]
        except Exception:
            files_made.abandon()
            raise
        return commit_files(self._catalog, table, attempt, new, summary, old), len(new)

    def _with_segments_recorded(self, table: Table, mark: SnapshotMark, before: datetime) -> Table:
        """Commit a snapshot that repeats which segments have rows, if only snapshots about to expire have that
        record."""
        known = recorded_segments(table)
        if recorded_segments(table, retained_snapshots(table, before)) == known:
            return table
        summary = mark.without_rows(known).summary()
        table = commit_files(self._catalog, table, new_attempt(head_of(table)), [], summary)
        self._settled = head_of(table)
        return table

    # --- the table ---------------------------------------------------------------------------------

    def _table(self) -> Table:
        table = load_table(self._catalog, self.lake.table)
        record = self._thread.run(self._stored.record.get())
        if any(getattr(record.definition, option) != getattr(self.lake, option) for option in FIXED):
            raise LakeStoppedError(
                f"the options of lake {self.lake.name} have changed since this writer started: restart it"
            )
        if table is None:
            if record.table_id:
                raise LakeStoppedError(
                    f"table {self.lake.table} isn't in the catalog any more: restore it, or delete the lake (`nadi "
                    "lake delete`) and run it again, to write a new table from what remains in the stream"
                )
            rows = LakeRows(self._manager, self.lake, self._first_cut(), self._first_cut())
            table = create_table(self._catalog, self.lake.table, rows.schema, partition_fields(self.lake.partition))
        table_id = str(table.metadata.table_uuid)
        if record.table_id != table_id:
            if record.table_id:
                raise LakeStoppedError(
                    f"table {self.lake.table} was dropped and recreated by another program. Delete the lake (`nadi "
                    "lake delete`), and run it again with another table"
                )
            self._thread.run(self._stored.record.put(lambda stored: replace(stored or record, table_id=table_id)))
        check_position_columns(table)
        return table

    def _first_cut(self) -> StreamCut:
        return StreamCut.from_text(self._thread.run(self._stored.record.get()).start)

    def _skip_truncated(self, start: StreamCut, error: TruncatedError) -> tuple[StreamCut, StreamCut, int]:
        if not self.lake.skip_truncated:
            raise LakeStoppedError(
                f"events after the table's cut were truncated before they were written ({error}): restart the lake "
                "with --skip-truncated to continue with the remaining events"
            ) from error
        log.error(
            "skipping events of %s that were truncated before they were written to %s: %s",
            self.lake.full_name,
            self.lake.table,
            error,
        )
        cuts = self._manager.cuts(start.scope, start.stream)
        start = cuts.latest(start, cuts.head())  # the later position of each key
        return start, *self._thread.run(next_cut(self._core, start, self.lake.commit_bytes))

    # --- one commit --------------------------------------------------------------------------------

    def _commit(
        self, table: Table, mark: SnapshotMark | None, start: StreamCut, end: StreamCut, size: int
    ) -> CommitResult:
        rows = LakeRows(self._manager, self.lake, start, end)
        table = evolved(self._catalog, table, rows.schema)
        attempt = new_attempt(head_of(table))
        files = DataFiles(table, attempt)
        letters = 0
        try:
            for batch in rows:
                letters += batch.dead_letters
                if batch.rows.num_rows:
                    files.write(fitted(batch.rows, files.schema))
            committed = files.close()
            new = SnapshotMark(
                cut=end.as_text(),
                start=start.as_text(),
                rows=files.rows,
                letters=letters + (0 if mark is None else mark.letters),
                own_letters=letters,
                reading=rows.reading,
                segments=self._thread.run(self._segments(start, end)),
            )
            self._check_letters(new)
            self._step("written")
        except Exception:
            files.abandon()
            raise
        try:
            table = commit_files(self._catalog, table, attempt, committed, new.summary())
        except SnapshotConflictError:
            files.abandon()
            raise
        self._step("committed")
        self._settle(table, new)
        self._sweep(table)
        return CommitResult(end, files.rows, letters, size, size < self.lake.commit_bytes)

    async def _segments(self, start: StreamCut, end: StreamCut) -> tuple[tuple[int, float, float], ...]:
        """Return the ids and key ranges of the segments between two cuts, including those without events."""
        between = await self._core.cuts(start.scope, start.stream).segments_between(start, end)
        cut = StreamCut(start.scope, start.stream, dict.fromkeys(between, 0))
        ranges = await segment_ranges(stores_of(self._core), start.scope, start.stream, cut) if between else []
        return tuple((segment.segment_id, segment.low, segment.high) for segment in ranges)

    def _check_letters(self, mark: SnapshotMark) -> None:
        """Raise LakeStoppedError if there are dead letters but no stream for them."""
        if not mark.own_letters or self.lake.dead_letters is not None:
            return
        first = next(dead_letters_of(self._manager, self.lake, mark))
        raise LakeStoppedError(
            f"the event at {first.segment}@{first.offset} can't be read as {self.lake.value_format}: {first.reason}. "
            f"Nothing after the table's cut was written. {mark.own_letters:,} events up to the stream's tail are "
            "invalid: name a stream for them (--dead-letter STREAM), or correct the schema, and restart the lake"
        )

    def _settle(self, table: Table, mark: SnapshotMark | None) -> None:
        """Complete the steps after the newest snapshot, if its writer was killed."""
        if mark is None or self._settled == head_of(table):
            return
        try:
            write_dead_letters(self._manager, self.lake, UUID(str(table.metadata.table_uuid)), mark)
        except TruncatedError as error:
            if not self.lake.skip_truncated:
                raise LakeStoppedError(
                    f"{mark.own_letters:,} invalid events of {self.lake.table} were truncated before all were in "
                    f"{self.lake.dead_letters} ({error}): restart the lake with --skip-truncated to continue"
                ) from error
            log.error("lost dead letters of %s: %s", self.lake.table, error)
        self._step("letters")
        if self.lake.protect_unconsumed:
            self._thread.run(self._stored.release(mark.end_cut))
        self._settled = head_of(table)
        self._step("released")

    def _sweep(self, table: Table) -> None:
        """Sweep once at the start and after each error, right after a commit: then older attempts can't be
        referenced."""
        if self._is_swept:
            return
        try:
            removed = sweep(self._catalog, table)
        except SnapshotConflictError:
            return  # tried again after the next commit
        if removed:
            log.info("deleted %d files of failed attempts from %s", removed, self.lake.table)
        self._is_swept = True
