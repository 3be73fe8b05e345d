"""Table and stream as one: the table up to its cut, the stream from there, at one cut, without a gap or a double.

Which rows lie before a cut follows from where each lies in the stream (`_segment_id`, `_offset`) and the rule of cuts
(`model.frontier.Bound`). So a cut before the table's is read from the same table, whichever snapshots are left; and
what the stream has lost is read from it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import several_texts
from nadi.client.manager.streams import stores_of
from nadi.client.places.moments import is_moment, moment_ms, moment_of
from nadi.client.places.segment_ends import SegmentEnds
from nadi.client.reading.boundary import known_ranges, segment_ranges, segments_between
from nadi.client.scan.pieces import Piece
from nadi.client.scan.scan import Scan, of_pieces
from nadi.client.scan.selection import Readable
from nadi.errors import EpochGoneError, InvalidArgumentError, InvalidStreamCutError, TruncatedError
from nadi.lake.definition import LakeDefinition, lake_name
from nadi.lake.marks import Mark, newest_mark, segments_told
from nadi.lake.record import LakeRecord
from nadi.lake.rows import APPENDED, OFFSET, SEGMENT_ID, Rows
from nadi.lake.states import record_of
from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table.catalogs import load_table, open_catalog
from nadi.lake.table.reading import columns_of, files_of, read_files
from nadi.lake.table.shapes import fitted
from nadi.model.frontier import Bound
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table


class Before:
    """Which rows lie before a cut. moment_ms: and came no later than that."""

    def __init__(self, cut: StreamCut, ranges: dict[int, SegmentRange], moment_ms: int | None = None) -> None:
        self.cut, self.moment_ms = cut, moment_ms
        self._ranges = ranges
        self._bound = Bound(cut.positions, [ranges[segment] for segment in cut.positions])

    def limit(self, segment: int) -> int | None:
        """Up to where a segment lies before it; None: all of it does."""
        if segment not in self._ranges:
            raise LakeStoppedError(
                f"nothing is known any more of segment {segment}, of which the table has rows: read the table's "
                "newest cut"
            )
        return self._bound.limit(self._ranges[segment])

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        segments = batch.column(SEGMENT_ID).to_numpy()
        offsets = batch.column(OFFSET).to_numpy()
        kept = np.ones(batch.num_rows, bool)
        for segment in np.unique(segments).tolist():
            limit = self.limit(segment)
            if limit is not None:
                kept &= (segments != segment) | (offsets < limit)
        if self.moment_ms is not None:
            came = pc.less_equal(batch.column(APPENDED), pa.scalar(self.moment_ms * 1000, batch.column(APPENDED).type))
            kept &= came.fill_null(True).to_numpy(zero_copy_only=False)
        return batch if kept.all() else batch.filter(pa.array(kept))


class Union(Readable):
    """A lake's table and stream up to one cut, read anew each time as it was when this was made.

    cut: where it ends; table_cut: where the table does, and the stream goes on. Rows of the table come first; those of
    a segment are in order within a file, and all of them by `_segment_id` and `_offset`.
    """

    def __init__(
        self,
        cut: StreamCut,
        table_cut: StreamCut,
        schema: pa.Schema,
        table: Table | None,
        before: Before | None,
        rows: Rows,
        stream: Scan,
    ) -> None:
        self.cut, self.table_cut = cut, table_cut
        self._schema, self._table, self._before, self._rows, self._stream = schema, table, before, rows, stream
        self.files: list[FileScanTask] = [] if table is None else files_of(table)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def stream_bytes(self) -> int:
        """Of the part that is read from the stream."""
        return self._stream.size_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.table_batches(self.files)
        for found in self._rows.of(self._stream):
            if found.rows.num_rows:
                yield fitted(found.rows, self._schema)

    def table_batches(self, files: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """The rows of some of the table's files."""
        if self._table is None:
            return
        needed = [] if self._before is None else [SEGMENT_ID, OFFSET]
        needed += [APPENDED] if self._before is not None and self._before.moment_ms is not None else []
        there = set(self._table.schema().column_names)
        names = list(dict.fromkeys([*(name for name in self._schema.names if name in there), *needed])) or [OFFSET]
        for batch in read_files(self._table, files, names):
            found = batch if self._before is None else self._before.rows(batch)
            if found.num_rows:
                yield fitted(found, self._schema)


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
    record = record_of(manager, scope, lake_name(stream, name))
    lake = record.definition
    if lake.stream != stream:
        raise InvalidArgumentError(f"lake {lake.name} is one of stream {lake.stream}, not of {stream}")
    table = load_table(open_catalog(lake.catalog), lake.table)
    if table is None and record.table_id:
        raise LakeStoppedError(f"table {lake.table} isn't in the catalog any more")
    mark = None if table is None else newest_mark(table, lake.scope, lake.stream)
    return _Planned(manager, record, table, mark).union(at, columns)


class _Planned:
    def __init__(self, manager: StreamManager, record: LakeRecord, table: Table | None, mark: Mark | None) -> None:
        self._manager, self._table, self._mark = manager, table, mark
        self._lake: LakeDefinition = record.definition
        self._thread, self._core = inside(manager)
        self._stores = stores_of(self._core)
        self._table_cut = StreamCut.from_text(record.start) if mark is None else mark.end_cut
        self._told: dict[int, SegmentRange] = {}

    def union(self, at: StreamCut | datetime | str | None, columns: Sequence[str] | None) -> Union:
        tail = self._thread.run(self._core.cuts(self._lake.scope, self._lake.stream).tail())
        rows = Rows(self._manager, self._lake, tail, tail)
        schema = self._schema(rows.schema, columns)
        cut, before = tail, None
        if at is not None:
            cut, moment = self._thread.run(self._place(at))
            before = self._thread.run(self._before(cut, moment))
        pieces = self._thread.run(self._pieces(tail, before))
        table = None if self._mark is None else self._table
        return Union(cut, self._table_cut, schema, table, before, rows, of_pieces(rows.scan, pieces))

    def _schema(self, rows: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
        parts = [rows] if self._table is None else [columns_of(self._table), rows]
        try:
            whole = pa.unify_schemas([_nullable(part) for part in parts], promote_options="permissive")
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
        if not names:
            raise InvalidArgumentError("columns names none: give one at least")
        return pa.schema([whole.field(one) for one in names])

    async def _place(self, at: StreamCut | datetime | str) -> tuple[StreamCut, int | None]:
        """The cut; and the moment, if the stream has lost what it had then."""
        cuts = self._core.cuts(self._lake.scope, self._lake.stream)
        if isinstance(at, str) and is_moment(at):
            at = moment_of(at)
        if isinstance(at, datetime):
            cut, head = await asyncio.gather(cuts.at(at), cuts.head())
            return cut, moment_ms(at) if cut == head else None
        if isinstance(at, str):
            try:
                at = StreamCut.from_text(at)  # which may lie before the stream's head
            except InvalidStreamCutError:
                found: StreamCut = await cuts.named(str(at))
                return found, None
        if (at.scope, at.stream) != (self._lake.scope, self._lake.stream):
            raise InvalidStreamCutError(f"the cut is one of {at.scope}/{at.stream}, not of {self._lake.full_name}")
        return at, None

    async def _before(self, cut: StreamCut, moment: int | None) -> Before:
        ranges = dict(self._marked())
        missing = {segment: 0 for segment in cut.positions if segment not in ranges}
        if missing:
            asked = StreamCut(cut.scope, cut.stream, missing)
            ranges |= {one.segment_id: one for one in await segment_ranges(self._stores, cut.scope, cut.stream, asked)}
        return Before(cut, await self._with_newer(ranges), moment)

    async def _with_newer(self, ranges: dict[int, SegmentRange]) -> dict[int, SegmentRange]:
        """With those of the segments that the stream's part may have."""
        asked = StreamCut(self._lake.scope, self._lake.stream, {**self._table_cut.positions})
        tail = await self._core.cuts(asked.scope, asked.stream).tail()
        ids = {*asked.positions, *tail.positions, *await self._behind(tail)}
        missing = StreamCut(asked.scope, asked.stream, {segment: 0 for segment in ids if segment not in ranges})
        found = await known_ranges(self._stores, missing) if missing.positions else []
        return ranges | {one.segment_id: one for one in found}

    def _marked(self) -> dict[int, SegmentRange]:
        """Of all segments of which the table has rows, as far as its snapshots say."""
        if not self._told and self._table is not None:
            self._told = {one[0]: SegmentRange(*one) for one in segments_told(self._table)}
        return self._told

    async def _behind(self, tail: StreamCut) -> list[int]:
        """The segments that have something behind the table's cut."""
        try:
            return await segments_between(self._stores, self._table_cut, tail)
        except EpochGoneError:
            raise TruncatedError(self._lake.full_name, 0, 0) from None

    async def _pieces(self, tail: StreamCut, before: Before | None) -> list[Piece]:
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
            found.append(Piece(self._lake.stream, segment, low, high))
        return found


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])
