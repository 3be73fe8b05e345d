"""Reads table and stream as one: the table up to its cut and the stream from there, up to one cut, without gaps or
duplicates.

Whether a row is before a cut follows from its position (`_segment_id`, `_offset`) and the rules of cuts
(`model.frontier.Bound`). So a cut before the table's is read from the same table, whichever snapshots remain, and
events that the stream has lost are read from it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import check_strings, checking
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges, segment_ranges, segments_between
from nadi.client.scan.pieces import ScanRange
from nadi.client.scan.rows import Readable
from nadi.client.scan.scan import Scan, with_ranges
from nadi.client.scan.split import Split
from nadi.client.stream_cuts.segment_ends import SegmentEnds
from nadi.client.stream_cuts.timestamps import event_moment, is_moment, moment_ms, moment_of
from nadi.errors import EpochExpiredError, InvalidArgumentError, InvalidStreamCutError, TruncatedError
from nadi.lake.definition import StoredLake, lake_name, record_of
from nadi.lake.rows import (
    APPENDED,
    OFFSET,
    SEGMENT_ID,
    LakeRows,
    Shape,
    check_position_columns,
    newest_mark,
    recorded_segments,
)
from nadi.lake.table.catalogs import case_problem, fitted, table_of
from nadi.lake.table.error_mapping import LakeStoppedError
from nadi.lake.table.reading import (
    FilePiece,
    TableFiles,
    columns_of,
    distribute,
    files_of,
    has_one_name_each,
    pieces_of,
)
from nadi.model.frontier import Bound
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name

if TYPE_CHECKING:
    from pyiceberg.table import Table


_NOWHERE = -1  # segment of a row that isn't from the stream


class Before:
    """Selects the rows before a cut. moment_ms: also leave out rows after this time."""

    def __init__(self, cut: StreamCut, ranges: dict[int, SegmentRange], moment_ms: int | None = None) -> None:
        self.cut, self.moment_ms = cut, moment_ms
        self.ranges = ranges
        self._bound = Bound(dict(cut.positions), [ranges[segment] for segment in cut.positions])

    def limit(self, segment: int) -> int | None:
        """Return the offset up to which a segment is before the cut; None for all of it."""
        if segment not in self.ranges:
            raise LakeStoppedError(
                f"segment {segment}, which has rows in the table, is forgotten: read up to the table's newest cut"
            )
        return self._bound.limit(self.ranges[segment])

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows before the cut; rows without a position, from other programs, are before every cut."""
        segments = batch.column(SEGMENT_ID).fill_null(_NOWHERE).to_numpy(zero_copy_only=False)
        offsets = batch.column(OFFSET).fill_null(_NOWHERE).to_numpy(zero_copy_only=False)
        selected = np.ones(batch.num_rows, bool)
        for segment in np.unique(segments).tolist():
            limit = None if segment == _NOWHERE else self.limit(segment)
            if limit is not None:
                selected &= (segments != segment) | (offsets < limit)
        if self.moment_ms is not None:
            arrived = pc.less_equal(
                batch.column(APPENDED), pa.scalar(self.moment_ms * 1000, batch.column(APPENDED).type)
            )
            selected &= arrived.fill_null(True).to_numpy(zero_copy_only=False)
        return batch if selected.all() else batch.filter(pa.array(selected))


@dataclass(frozen=True, slots=True)
class UnionColumns:
    """The columns of both parts: those selected, the conversion of events to rows, and which rows of the table are
    read."""

    columns: pa.Schema
    shape: Shape
    before: Before | None

    def of_table(self, table: TableFiles, pieces: Sequence[FilePiece]) -> Iterator[pa.RecordBatch]:
        names = [name for name in self.columns.names if name in table.names] or [OFFSET]
        if self.before is not None:
            positions = [SEGMENT_ID, OFFSET, *([] if self.before.moment_ms is None else [APPENDED])]
            names += [name for name in positions if name not in names]
        for batch in table.read(pieces, names):
            selected = batch if self.before is None else self.before.rows(batch)
            if selected.num_rows:
                yield fitted(selected, self.columns)

    def of_stream(self, stream: Scan | Split) -> Iterator[pa.RecordBatch]:
        for batch in stream.batches():
            rows = self.shape.of(batch).rows
            if rows.num_rows:
                yield fitted(rows, self.columns)


@dataclass(frozen=True, slots=True)
class UnionSplit(Readable):
    """A part of a union, readable in any process that can reach server and storage: pickle it and send it there. It
    contains the credentials of both."""

    columns: UnionColumns
    table: TableFiles | None
    pieces: tuple[FilePiece, ...]
    stream: Split | None

    @property
    def schema(self) -> pa.Schema:
        return self.columns.columns

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.table is not None:
            yield from self.columns.of_table(self.table, self.pieces)
        if self.stream is not None:
            yield from self.columns.of_stream(self.stream)


class Union(Readable):
    """A lake's table and stream up to one cut; each read gives the rows as they were when this was made.

    cut: the end; table_cut: the end of the table, where the stream starts. The table's rows come first; within a file
    each segment's rows are in order. Sort all by `_segment_id` and `_offset`.
    """

    def __init__(
        self, cut: StreamCut, table_cut: StreamCut, columns: UnionColumns, table: Table | None, stream: Scan
    ) -> None:
        self.cut, self.table_cut = cut, table_cut
        self._columns, self._stream = columns, stream
        self._table = None if table is None else TableFiles.of(table)
        self._files = () if table is None else tuple(files_of(table))

    @property
    def schema(self) -> pa.Schema:
        return self._columns.columns

    @property
    def stream_bytes(self) -> int:
        return self._stream.size_bytes

    @property
    def table_bytes(self) -> int:
        return sum(task.file.file_size_in_bytes for task in self._files)

    @property
    def table_files(self) -> list[str]:
        return [task.file.file_path for task in self._files]

    @property
    def table_conditions(self) -> list[tuple[int, int]] | None:
        """The rows of `table_files` before the cut: for each segment listed, those below the offset. None if
        more is needed: other engines have deleted rows, the files have other column names than the table, or table and
        stream don't meet at one cut."""
        if any(task.delete_files or task.file.file_format != "PARQUET" for task in self._files):
            return None
        if self._table is not None and not has_one_name_each(self._table.metadata):
            return None
        before = self._columns.before
        if before is None:
            return []
        meets = self._stream.size_bytes == 0 or all(
            (limit := before.limit(segment)) is None or limit >= offset
            for segment, offset in self.table_cut.positions.items()
        )
        if not meets or before.moment_ms is not None:
            return None
        limits = ((segment, before.limit(segment)) for segment in before.ranges)
        return [(segment, limit) for segment, limit in limits if limit is not None]

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._table is not None:
            yield from self._columns.of_table(self._table, pieces_of(self._files))
        yield from self._columns.of_stream(self._stream)

    def splits(self, count: int) -> list[UnionSplit]:
        """Return about `count` parts, which together have every row once.

        At most `count` are of the table's files, whose row groups are distributed by size, 1 MiB or more each; and at
        most `count` of the stream, see `Scan.splits`.
        """
        of_stream = self._stream.splits(count)
        of_table = distribute(pieces_of(self._files), count)
        table_splits = [UnionSplit(self._columns, self._table, part, None) for part in of_table]
        return table_splits + [UnionSplit(self._columns, None, (), split) for split in of_stream]


@checking
def union(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    at: StreamCut | datetime | str | None = None,
    columns: Sequence[str] | None = None,
    name: str | None = None,
) -> Union:
    """Return a lake's table and stream as one, up to a cut, readable as Arrow.

    at: a cut, a time with a zone, or text for `StreamCuts.named`; by default the stream's tail. Events that the stream
    has lost since are included. columns: by default all of the table's. name: of the lake, by default the stream's
    default lake.

    >>> import nadi.lake, pyarrow as pa
    >>> def total_wh(manager, moment):
    ...     return pa.table(nadi.lake.union(manager, "home", "meters", at=moment))["wh"].to_pylist()
    """
    planned = _PlannedUnion(manager, scope, stream, name)
    try:
        return planned.union(at, columns)
    except (InvalidStreamCutError, TruncatedError):
        planned.check_stream()
        raise


@checking
def union_schema(
    manager: StreamManager, scope: str, stream: str, *, columns: Sequence[str] | None = None, name: str | None = None
) -> pa.Schema:
    """Return the columns of `union` without planning the read."""
    return _PlannedUnion(manager, scope, stream, name).schema(columns)


class _PlannedUnion:
    def __init__(self, manager: StreamManager, scope: str, stream: str, name: str | None) -> None:
        record = record_of(manager, scope, lake_name(stream, name))
        self._manager, self._lake = manager, record.definition
        if self._lake.stream != stream:
            raise InvalidArgumentError(
                f"lake {self._lake.name} belongs to stream {self._lake.stream}, not {stream}: name a lake of this "
                "stream"
            )
        self._table = table_of(self._lake.catalog, self._lake.table)
        if self._table is None and record.table_id:
            raise LakeStoppedError(f"table {self._lake.table} isn't in the catalog any more: restore it")
        if self._table is not None:
            check_position_columns(self._table)
        self._mark = None if self._table is None else newest_mark(self._table, scope, stream)
        self._thread, self._core = inside(manager)
        self._stores = stores_of(self._core)
        self._table_cut = StreamCut.from_text(record.start) if self._mark is None else self._mark.end_cut

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        tail = self._tail()
        return self._schema(LakeRows(self._manager, self._lake, tail, tail).schema, columns)

    def union(self, at: StreamCut | datetime | str | None, columns: Sequence[str] | None) -> Union:
        tail = self._tail()
        rows = LakeRows(self._manager, self._lake, tail, tail)  # an empty range, for the columns
        schema = self._schema(rows.schema, columns)
        cut, before = tail, None
        if at is not None:
            cut, moment = self._thread.run(self._resolve(at))
            before = self._thread.run(self._before(cut, moment, tail))
        pieces = self._thread.run(self._pieces(tail, before))
        table = None if self._mark is None else self._table
        return Union(
            cut, self._table_cut, UnionColumns(schema, rows.shape, before), table, with_ranges(rows.scan, pieces)
        )

    def check_stream(self) -> None:
        """Raise an error if the stream isn't the table's."""
        stored = StoredLake(self._core, self._lake.scope, self._lake.name)
        self._thread.run(stored.check_stream(None if self._mark is None else self._mark.end_cut))

    def _tail(self) -> StreamCut:
        return self._thread.run(self._core.cuts(self._lake.scope, self._lake.stream).tail())

    def _schema(self, rows: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
        parts = [rows] if self._table is None else [columns_of(self._table), rows]
        problem = case_problem(rows, *parts[:-1])
        if problem is not None:
            raise LakeStoppedError(f"the columns of events and of table {self._lake.table} don't fit: {problem}")
        try:
            nullable = [pa.schema([pa.field(field.name, field.type) for field in part]) for part in parts]
            all_columns = pa.unify_schemas(nullable, promote_options="permissive")
        except pa.ArrowException as error:
            raise LakeStoppedError(
                f"the events' columns have changed in a way that table {self._lake.table} can't follow; rename the "
                f"field: {error}"
            ) from error
        if columns is None:
            return all_columns
        names = check_strings(columns, "columns")
        for name in names:
            if name not in all_columns.names:
                raise InvalidArgumentError(
                    f"the lake doesn't have a column {name[:40]!r}: choose from {', '.join(all_columns.names)}"
                )
            if names.count(name) > 1:
                raise InvalidArgumentError(f"columns has {name[:40]!r} twice: name it once")
        if not names:
            raise InvalidArgumentError("columns is empty: name at least one")
        return pa.schema([all_columns.field(name) for name in names])

    async def _resolve(self, at: StreamCut | datetime | str) -> tuple[StreamCut, int | None]:
        """Return the cut; and the time, if the stream has lost events before it."""
        cuts = self._core.cuts(self._lake.scope, self._lake.stream)
        if isinstance(at, str) and is_moment(at) and event_moment(at) is None:
            at = moment_of(at)
        if isinstance(at, datetime):
            cut, head = await asyncio.gather(cuts.at(at), cuts.head())
            return cut, moment_ms(at) if cut == head else None
        if isinstance(at, str):
            try:
                at = StreamCut.from_text(at)  # may be before the stream's head
            except InvalidStreamCutError:
                named: StreamCut = await cuts.named(str(at), end=True)
                return named, None
        if not isinstance(at, StreamCut):
            raise InvalidArgumentError(
                f"at must be a cut, a time with a zone, or the text of a cut, a bookmark or a time, not {at!r:.60}"
            )
        if (at.scope, at.stream) != (self._lake.scope, self._lake.stream):
            raise InvalidStreamCutError(f"the cut is of {at.scope}/{at.stream}, not {self._lake.full_name}")
        return at, None

    async def _before(self, cut: StreamCut, moment: int | None, tail: StreamCut) -> Before:
        """Return the selection, with the ranges of all segments that may have rows in the table or events in the
        stream."""
        marked = () if self._table is None else recorded_segments(self._table)
        ranges = {segment: SegmentRange(segment, low, high) for segment, low, high in marked}
        if missing := cut.positions.keys() - ranges.keys():
            unknown = StreamCut(cut.scope, cut.stream, dict.fromkeys(missing, 0))
            segments = await segment_ranges(self._stores, cut.scope, cut.stream, unknown)
            ranges |= {segment.segment_id: segment for segment in segments}
        if newer := {*self._table_cut.positions, *tail.positions, *await self._unread_segments(tail)} - ranges.keys():
            segments = await known_ranges(self._stores, StreamCut(tail.scope, tail.stream, dict.fromkeys(newer, 0)))
            ranges |= {segment.segment_id: segment for segment in segments}
        return Before(cut, ranges, moment)

    async def _unread_segments(self, tail: StreamCut) -> list[int]:
        """Return the segments with events after the table's cut."""
        try:
            return await segments_between(self._stores, self._table_cut, tail)
        except EpochExpiredError:
            raise TruncatedError(self._lake.full_name, 0, 0) from None

    async def _pieces(self, tail: StreamCut, before: Before | None) -> list[ScanRange]:
        """Return the ranges of the stream to read. TruncatedError if some of the events are truncated."""
        ends = SegmentEnds(self._stores, self._lake.scope, self._lake.stream)
        pieces = []
        for segment in sorted(await self._unread_segments(tail)):
            low = max(self._table_cut.positions.get(segment, 0), 0)
            limit = None if before is None else before.limit(segment)
            if limit is not None and limit <= low:
                continue
            info = (await ends.infos({segment: 0}))[segment]
            high = min(tail.positions.get(segment, info.write_offset), info.write_offset)
            high = high if limit is None else min(high, limit)
            if high <= low:
                continue
            if low < info.start_offset:
                name = segment_name(self._lake.scope, self._lake.stream, segment)
                raise TruncatedError(name, low, info.start_offset)
            pieces.append(ScanRange(self._lake.stream, segment, low, high))
        return pieces
