"""A lake's writer: brings the table from its cut to a later one, a commit at a time.

    the newest snapshot's mark        where the table is; letters that its writer left are written
    next_cut                          where the next snapshot is
    Rows → DataFiles                  data files, which nothing names yet
    commit_files                      the snapshot with files and mark, if the newest is still the one looked at
    write_letters                     events that are no rows
    release                           retention may have what lies before the cut

A writer that is killed at any of these steps has either committed or not, and the next one sees which. Files of those
that hadn't are removed once nothing can name them any more (`sweep`).

Small files are joined: a snapshot replaces files by others with the same rows. Each commit leaves a file or more in
each partition that it has rows of. Where there are many small ones, they are read and written anew, as much at once as
one commit may have. What others have deleted from them is gone then.

An attempt's files can only come to be named by a snapshot that follows the one that it is built on. While that one is
the newest, they are left alone: somebody may be about to commit them. Once it isn't, they are named already, or never
will be (`table.files`). No clock is asked, and no other writer.

Events that are no rows are dead letters. A snapshot says how many there are among the events that it covers, and how
many there were before. They are written after it, read anew from between its cuts, under numbers that follow from that:
a writer that finds some missing writes these (`client.numbered`). No snapshot follows before.
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
from nadi.lake.rows import LakeRows, SnapshotMark, check_places, mark_of, newest_mark, segments_told
from nadi.lake.table.catalogs import create_table, evolved, expire_snapshots, fitted, lasting, load_table, open_catalog
from nadi.lake.table.error_mapping import STORAGE, LakeStoppedError, reaching
from nadi.lake.table.files import DataFiles, SnapshotConflictError, commit_files, head_of, new_attempt, parent_of
from nadi.lake.table.partitions import misplaced, partition_fields
from nadi.lake.table.reading import TableFiles, columns_named, files_of, pieces_of
from nadi.limits import LAKE_COMPACTED_BYTES, LAKE_LETTERS_AT_ONCE, LAKE_SMALL_FILE_BYTES, MIB
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
    """The events in lists of at most so many, and of about 4 MiB."""
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


def write_letters(manager: StreamManager, lake: LakeDefinition, table_id: UUID, mark: SnapshotMark) -> None:
    """Write those of one snapshot that aren't there yet, in order. TruncatedError if their events are gone."""
    to = lake.dead_letter_stream
    if not mark.own_letters or to is None:
        return
    thread, core = inside(manager)
    stores = stores_of(core)
    writer = thread.result(lambda: IdempotentWriter(StreamShape(stores, *to), table_id.bytes))
    position = key_position(str(table_id))  # of all, so that the last of them is there only if all are
    try:
        if thread.run(writer.last_number(position)) >= mark.letters - 1:
            return  # and what they were made of may be gone
        letters = enumerate(letters_of(manager, lake, mark), mark.letters - mark.own_letters)
        events = (NumberedEvent(number, position, letter.encode()) for number, letter in letters)
        for batch in in_batches(events, LAKE_LETTERS_AT_ONCE):
            thread.run(writer.write(batch))
    finally:
        thread.result(writer.close)


def letters_of(manager: StreamManager, lake: LakeDefinition, mark: SnapshotMark) -> Iterator[DeadLetter]:
    """Those between a snapshot's cuts, read as it read them: always the same, in the same order."""
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
                reason=reasons.get(at, nowhere[at] or "it is null"),
                data=data,
            )


async def next_cut(manager: aio.StreamManager, start: StreamCut, most_bytes: int) -> tuple[StreamCut, int]:
    """Where the next commit ends, and how many bytes of the stream it has, at most about so many: at the tail, or at a
    legal cut before it. TruncatedError if some of them are gone.

    A cut before the tail is made as a reader would get there (`model.frontier`): finished segments are passed, and each
    of those that may be read then is read on by an equal share, up to a boundary between its events.
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
    left = {segment: max(infos[segment].write_offset - offset, 0) for segment, offset in offsets.items()}
    share = max(most_bytes // max(sum(size > 0 for size in left.values()), 1), 1)

    async def read_on(segment: int) -> int:
        if left[segment] <= share:
            return offsets[segment] + left[segment]
        name = segment_name(start.scope, start.stream, segment)
        asked = wire.LocateOffset(0, name, offsets[segment] + share, "")
        return (await stores.ask(asked, wire.OffsetLocated)).offset

    reached = dict(zip(offsets, await asyncio.gather(*map(read_on, offsets)), strict=True))
    cut = StreamCut(start.scope, start.stream, frontier.positions(reached))
    return cut, sum(reached[segment] - offsets[segment] for segment in offsets)


def sweep(catalog: Catalog, table: Table) -> int:
    """Remove such files; how many there were. The table is looked at once more, behind the list of its files: so the
    snapshot that a file is built on is this table's newest, or an older one. OvertakenError if another has expired
    snapshots meanwhile: what is left then is seen later."""
    with reaching(STORAGE):
        folders = table.location_provider()
        found = [*_files(table, folders.data_path), *_files(table, folders.metadata_path)]
    now = load_table(catalog, ".".join(table.name()))
    if now is None or now.metadata.table_uuid != table.metadata.table_uuid:
        return 0
    table, head = now, head_of(now)
    with reaching(STORAGE):
        ours = [path for path in found if (parent := parent_of(_name(path))) is not None and parent != head]
        if not ours:
            return 0
        try:
            named = _named(table)
        except FileNotFoundError as error:
            newest = load_table(catalog, ".".join(table.name()))
            if newest is None or newest.metadata_location == table.metadata_location:
                raise
            raise SnapshotConflictError(str(error)) from error
        orphans = [path for path in ours if _name(path) not in named]
        for path in orphans:
            with suppress(FileNotFoundError):  # another writer has swept meanwhile
                table.io.delete(path)
    return len(orphans)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _named(table: Table) -> set[str]:
    """The names of the files that a snapshot names."""
    snapshots = table.snapshots()
    manifests = {one.manifest_path: one for snapshot in snapshots for one in snapshot.manifests(table.io)}
    entries = (
        entry for one in manifests.values() for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
    )
    files = (entry.data_file.file_path for entry in entries)
    return {*map(_name, manifests), *map(_name, files), *(_name(one.manifest_list) for one in snapshots)}


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
        self._catalog = open_catalog(lake.catalog)
        self._is_swept = False
        self._settled: int | None = None  # the snapshot whose letters are known to be written

    def close(self) -> None:
        self._catalog.close()

    def commit(self) -> Committed | None:
        """Write one snapshot; None if the table is level with the stream. UnavailableError: try again later.
        LakeStoppedError: something is to be changed first. OvertakenError stays within: another writer was faster."""
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
            start, end, size = self._behind(start, error)
        if not size and (mark is None or start == mark.end_cut):
            return None
        self._step("planned")
        try:
            return self._commit(table, mark, start, end, size)
        except SnapshotConflictError:
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
            summary = mark.without_rows(segments_told(table)).summary()
            try:
                table, made = self._join(table, files, summary)
            except SnapshotConflictError:
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
        if len(lasting(table, before)) < len(table.snapshots()):
            try:
                table = self._told_again(table, mark, before)
            except SnapshotConflictError:
                return len(files)  # they are expired later
            expire_snapshots(table, before)
            self._is_swept = False
        if not self._is_swept and files:
            self._sweep(table)
        return len(files)

    def _join(self, table: Table, files: Sequence[FileScanTask], summary: dict[str, str]) -> tuple[Table, int]:
        attempt = new_attempt(head_of(table))
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
        return commit_files(self._catalog, table, attempt, new, summary, old), len(new)

    def _told_again(self, table: Table, mark: SnapshotMark, before: datetime) -> Table:
        """With a snapshot that says of which segments there are rows, where only such say it that are to go."""
        known = segments_told(table)
        if segments_told(table, lasting(table, before)) == known:
            return table
        summary = mark.without_rows(known).summary()
        table = commit_files(self._catalog, table, new_attempt(head_of(table)), [], summary)
        self._settled = head_of(table)
        return table

    # --- the table ---------------------------------------------------------------------------------

    def _table(self) -> Table:
        table = load_table(self._catalog, self.lake.table)
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
            rows = LakeRows(self._manager, self.lake, self._first_cut(), self._first_cut())
            table = create_table(self._catalog, self.lake.table, rows.schema, partition_fields(self.lake.partition))
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

    def _behind(self, start: StreamCut, error: TruncatedError) -> tuple[StreamCut, StreamCut, int]:
        if not self.lake.skip_truncated:
            raise LakeStoppedError(
                f"events behind the table's cut were truncated before they were in it ({error}): start the lake with "
                "--skip-truncated to go on with what is left"
            ) from error
        log.error("events of %s were truncated before they were in %s: %s", self.lake.full_name, self.lake.table, error)
        cuts = self._manager.cuts(start.scope, start.stream)
        start = cuts.latest(start, cuts.head())  # the later one under each key
        return start, *self._thread.run(next_cut(self._core, start, self.lake.commit_bytes))

    # --- one commit --------------------------------------------------------------------------------

    def _commit(
        self, table: Table, mark: SnapshotMark | None, start: StreamCut, end: StreamCut, size: int
    ) -> Committed:
        rows = LakeRows(self._manager, self.lake, start, end)
        table = evolved(self._catalog, table, rows.schema)
        attempt = new_attempt(head_of(table))
        files = DataFiles(table, attempt)
        letters = 0
        try:
            for some in rows:
                letters += some.letters
                if some.rows.num_rows:
                    files.write(fitted(some.rows, files.schema))
            made = files.close()
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
            table = commit_files(self._catalog, table, attempt, made, new.summary())
        except SnapshotConflictError:
            files.abandon()
            raise
        self._step("committed")
        self._settle(table, new)
        self._sweep(table)
        return Committed(end, files.rows, letters, size, size < self.lake.commit_bytes)

    async def _segments(self, start: StreamCut, end: StreamCut) -> tuple[tuple[int, float, float], ...]:
        """Those between two cuts, also those without an event, with their keys."""
        between = await self._core.cuts(start.scope, start.stream).segments_between(start, end)
        asked = StreamCut(start.scope, start.stream, dict.fromkeys(between, 0))
        found = await segment_ranges(stores_of(self._core), start.scope, start.stream, asked) if between else []
        return tuple((one.segment_id, one.low, one.high) for one in found)

    def _check_letters(self, mark: SnapshotMark) -> None:
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

    def _settle(self, table: Table, mark: SnapshotMark | None) -> None:
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
        except SnapshotConflictError:
            return  # behind the next commit
        if removed:
            log.info("removed %d files of attempts that came to nothing from %s", removed, self.lake.table)
        self._is_swept = True
