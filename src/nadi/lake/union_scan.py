"""Table and stream as one: the table up to its cut, the stream from there, at one cut, without a gap or a double.

Which rows lie before a cut follows from where each lies in the stream (`_segment_id`, `_offset`) and the rule of cuts
(`model.frontier.Bound`). So a cut before the table's is read from the same table, whichever snapshots are left; and
what the stream has lost is read from it, too.
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
from nadi.client.control.arguments import checking, several_texts
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges, segment_ranges, segments_between
from nadi.client.scan.pieces import ScanRange
from nadi.client.scan.rows import Readable
from nadi.client.scan.scan import Scan, of_pieces
from nadi.client.scan.split import Split
from nadi.client.stream_cuts.segment_ends import SegmentEnds
from nadi.client.stream_cuts.timestamps import event_moment, is_moment, moment_ms, moment_of
from nadi.errors import EpochGoneError, InvalidArgumentError, InvalidStreamCutError, TruncatedError
from nadi.lake.definition import StoredLake, lake_name, record_of
from nadi.lake.rows import APPENDED, OFFSET, SEGMENT_ID, LakeRows, Shape, check_places, newest_mark, segments_told
from nadi.lake.table.catalogs import case_problem, fitted, table_of
from nadi.lake.table.error_mapping import LakeStoppedError
from nadi.lake.table.reading import FilePiece, TableFiles, columns_of, dealt, files_of, has_one_name_each, pieces_of
from nadi.model.frontier import Bound
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name

if TYPE_CHECKING:
    from pyiceberg.table import Table


_NOWHERE = -1  # of a row that isn't of the stream


class Before:
    """Which rows lie before a cut. moment_ms: and came no later than that."""

    def __init__(self, cut: StreamCut, ranges: dict[int, SegmentRange], moment_ms: int | None = None) -> None:
        self.cut, self.moment_ms = cut, moment_ms
        self.ranges = ranges
        self._bound = Bound(dict(cut.positions), [ranges[segment] for segment in cut.positions])

    def limit(self, segment: int) -> int | None:
        """Up to where a segment lies before it; None: all of it does."""
        if segment not in self.ranges:
            raise LakeStoppedError(
                f"nothing is known any more of segment {segment}, of which the table has rows: read the table's newest "
                "cut"
            )
        return self._bound.limit(self.ranges[segment])

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without those behind it; rows that others added without a position count as before every cut."""
        segments = batch.column(SEGMENT_ID).fill_null(_NOWHERE).to_numpy(zero_copy_only=False)
        offsets = batch.column(OFFSET).fill_null(_NOWHERE).to_numpy(zero_copy_only=False)
        kept = np.ones(batch.num_rows, bool)
        for segment in np.unique(segments).tolist():
            limit = None if segment == _NOWHERE else self.limit(segment)
            if limit is not None:
                kept &= (segments != segment) | (offsets < limit)
        if self.moment_ms is not None:
            came = pc.less_equal(batch.column(APPENDED), pa.scalar(self.moment_ms * 1000, batch.column(APPENDED).type))
            kept &= came.fill_null(True).to_numpy(zero_copy_only=False)
        return batch if kept.all() else batch.filter(pa.array(kept))


@dataclass(frozen=True, slots=True)
class UnionColumns:
    """What both parts give: the columns wanted; how events become rows of the table; which of its rows are read."""

    wanted: pa.Schema
    shape: Shape
    before: Before | None

    def of_table(self, table: TableFiles, pieces: Sequence[FilePiece]) -> Iterator[pa.RecordBatch]:
        names = [name for name in self.wanted.names if name in table.names] or [OFFSET]
        if self.before is not None:
            places = [SEGMENT_ID, OFFSET, *([] if self.before.moment_ms is None else [APPENDED])]
            names += [name for name in places if name not in names]
        for batch in table.read(pieces, names):
            found = batch if self.before is None else self.before.rows(batch)
            if found.num_rows:
                yield fitted(found, self.wanted)

    def of_stream(self, stream: Scan | Split) -> Iterator[pa.RecordBatch]:
        for batch in stream.batches():
            found = self.shape.of(batch).rows
            if found.num_rows:
                yield fitted(found, self.wanted)


@dataclass(frozen=True, slots=True)
class UnionSplit(Readable):
    """A part of a union that anybody can read who reaches server and storage: pickle it, and send it there. It has the
    credentials of both; whoever has it can sign in with them."""

    columns: UnionColumns
    table: TableFiles | None
    pieces: tuple[FilePiece, ...]
    stream: Split | None

    @property
    def schema(self) -> pa.Schema:
        return self.columns.wanted

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.table is not None:
            yield from self.columns.of_table(self.table, self.pieces)
        if self.stream is not None:
            yield from self.columns.of_stream(self.stream)


class Union(Readable):
    """A lake's table and stream up to one cut, read anew each time as it was when this was made.

    cut: where it ends; table_cut: where the table does, and the stream goes on. Rows of the table come first; those of
    a segment are in order within a file, and all of them by `_segment_id` and `_offset`.
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
        return self._columns.wanted

    @property
    def stream_bytes(self) -> int:
        return self._stream.size_bytes

    @property
    def table_bytes(self) -> int:
        return sum(one.file.file_size_in_bytes for one in self._files)

    @property
    def table_files(self) -> list[str]:
        return [one.file.file_path for one in self._files]

    @property
    def table_conditions(self) -> list[tuple[int, int]] | None:
        """Which of their rows are before the cut: of those of each segment named here, the ones below the offset. None
        if it takes more to say; the files have rows that others have deleted, or columns under other names than the
        table has now; or both parts don't meet at one cut."""
        if any(one.delete_files or one.file.file_format != "PARQUET" for one in self._files):
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
        """Return about `count` parts, which together have every row once: of the table's files, and of the stream.

        At most so many are of files, whose groups of rows are dealt out by size, a MiB or more each; and at most so
        many of the stream, as `Scan.splits` makes them.
        """
        of_stream = self._stream.splits(count)
        of_table = dealt(pieces_of(self._files), count)
        found = [UnionSplit(self._columns, self._table, mine, None) for mine in of_table]
        return found + [UnionSplit(self._columns, None, (), split) for split in of_stream]


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
    """Return a lake's table and stream as one, up to a cut, to be read as Arrow.

    at: a cut, a time with a zone, or text as `StreamCuts.named` takes it; the stream's tail if not given. What the
    stream has lost since is there all the same. columns: of the table's; all of them if not given. name: of the lake,
    if it isn't the stream's first.

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
    """Return the columns that `union` has, without finding out what it reads."""
    return _PlannedUnion(manager, scope, stream, name).schema(columns)


class _PlannedUnion:
    def __init__(self, manager: StreamManager, scope: str, stream: str, name: str | None) -> None:
        record = record_of(manager, scope, lake_name(stream, name))
        self._manager, self._lake = manager, record.definition
        if self._lake.stream != stream:
            raise InvalidArgumentError(f"lake {self._lake.name} is one of stream {self._lake.stream}, not of {stream}")
        self._table = table_of(self._lake.catalog, self._lake.table)
        if self._table is None and record.table_id:
            raise LakeStoppedError(f"table {self._lake.table} isn't in the catalog any more")
        if self._table is not None:
            check_places(self._table)
        self._mark = None if self._table is None else newest_mark(self._table, scope, stream)
        self._thread, self._core = inside(manager)
        self._stores = stores_of(self._core)
        self._table_cut = StreamCut.from_text(record.start) if self._mark is None else self._mark.end_cut

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        tail = self._tail()
        return self._schema(LakeRows(self._manager, self._lake, tail, tail).schema, columns)

    def union(self, at: StreamCut | datetime | str | None, columns: Sequence[str] | None) -> Union:
        tail = self._tail()
        rows = LakeRows(self._manager, self._lake, tail, tail)  # what there is behind it: none yet
        schema = self._schema(rows.schema, columns)
        cut, before = tail, None
        if at is not None:
            cut, moment = self._thread.run(self._place(at))
            before = self._thread.run(self._before(cut, moment, tail))
        pieces = self._thread.run(self._pieces(tail, before))
        table = None if self._mark is None else self._table
        return Union(
            cut, self._table_cut, UnionColumns(schema, rows.shape, before), table, of_pieces(rows.scan, pieces)
        )

    def check_stream(self) -> None:
        """An error if the stream isn't the one that the table is of."""
        stored = StoredLake(self._core, self._lake.scope, self._lake.name)
        self._thread.run(stored.check_stream(None if self._mark is None else self._mark.end_cut))

    def _tail(self) -> StreamCut:
        return self._thread.run(self._core.cuts(self._lake.scope, self._lake.stream).tail())

    def _schema(self, rows: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
        parts = [rows] if self._table is None else [columns_of(self._table), rows]
        problem = case_problem(rows, *parts[:-1])
        if problem is not None:
            raise LakeStoppedError(f"of the columns of events and of table {self._lake.table}, {problem}")
        try:
            nullable = [pa.schema([pa.field(field.name, field.type) for field in part]) for part in parts]
            whole = pa.unify_schemas(nullable, promote_options="permissive")
        except pa.ArrowException as error:
            raise LakeStoppedError(
                f"the events' columns have changed so that table {self._lake.table} can't follow: {error}"
            ) from error
        if columns is None:
            return whole
        names = several_texts(columns, "columns")
        for one in names:
            if one not in whole.names:
                raise InvalidArgumentError(f"there is no column {one[:40]!r}: there are {', '.join(whole.names)}")
            if names.count(one) > 1:
                raise InvalidArgumentError(f"columns names {one[:40]!r} twice")
        if not names:
            raise InvalidArgumentError("columns names none: give one at least")
        return pa.schema([whole.field(one) for one in names])

    async def _place(self, at: StreamCut | datetime | str) -> tuple[StreamCut, int | None]:
        """The cut; and the moment, if the stream has lost what it had then."""
        cuts = self._core.cuts(self._lake.scope, self._lake.stream)
        if isinstance(at, str) and is_moment(at) and event_moment(at) is None:
            at = moment_of(at)
        if isinstance(at, datetime):
            cut, head = await asyncio.gather(cuts.at(at), cuts.head())
            return cut, moment_ms(at) if cut == head else None
        if isinstance(at, str):
            try:
                at = StreamCut.from_text(at)  # which may lie before the stream's head
            except InvalidStreamCutError:
                found: StreamCut = await cuts.named(str(at), end=True)
                return found, None
        if not isinstance(at, StreamCut):
            raise InvalidArgumentError(
                f"at is a cut, a time with a zone, or the text of a cut, a bookmark or a time, not {at!r:.60}"
            )
        if (at.scope, at.stream) != (self._lake.scope, self._lake.stream):
            raise InvalidStreamCutError(f"the cut is one of {at.scope}/{at.stream}, not of {self._lake.full_name}")
        return at, None

    async def _before(self, cut: StreamCut, moment: int | None, tail: StreamCut) -> Before:
        """Of all segments of which the table has rows, as far as its snapshots say, or the stream's part may have."""
        marked = () if self._table is None else segments_told(self._table)
        ranges = {segment: SegmentRange(segment, low, high) for segment, low, high in marked}
        if missing := cut.positions.keys() - ranges.keys():
            asked = StreamCut(cut.scope, cut.stream, dict.fromkeys(missing, 0))
            found = await segment_ranges(self._stores, cut.scope, cut.stream, asked)
            ranges |= {segment.segment_id: segment for segment in found}
        if newer := {*self._table_cut.positions, *tail.positions, *await self._behind(tail)} - ranges.keys():
            found = await known_ranges(self._stores, StreamCut(tail.scope, tail.stream, dict.fromkeys(newer, 0)))
            ranges |= {segment.segment_id: segment for segment in found}
        return Before(cut, ranges, moment)

    async def _behind(self, tail: StreamCut) -> list[int]:
        """The segments that have something behind the table's cut."""
        try:
            return await segments_between(self._stores, self._table_cut, tail)
        except EpochGoneError:
            raise TruncatedError(self._lake.full_name, 0, 0) from None

    async def _pieces(self, tail: StreamCut, before: Before | None) -> list[ScanRange]:
        """What of the stream lies behind the table's cut. TruncatedError if some of it is gone that is asked for."""
        ends = SegmentEnds(self._stores, self._lake.scope, self._lake.stream)
        found = []
        for segment in sorted(await self._behind(tail)):
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
            found.append(ScanRange(self._lake.stream, segment, low, high))
        return found
