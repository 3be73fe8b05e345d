"""Parts of a union that anybody can read, in any process: pieces of the table's files, and a split of the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client.scan.scan import Scan
from nadi.client.scan.selection import Readable
from nadi.client.scan.split import Split
from nadi.lake.rows import APPENDED, OFFSET, SEGMENT_ID, Shape
from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table.pieces import FilePiece
from nadi.lake.table.reading import TableFiles
from nadi.lake.table.shapes import fitted
from nadi.model.frontier import Bound
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut

_NOWHERE = -1  # of a row that isn't of the stream


class Before:
    """Which rows lie before a cut. moment_ms: and came no later than that."""

    def __init__(self, cut: StreamCut, ranges: dict[int, SegmentRange], moment_ms: int | None = None) -> None:
        self.cut, self.moment_ms = cut, moment_ms
        self._ranges = ranges
        self._bound = Bound(dict(cut.positions), [ranges[segment] for segment in cut.positions])

    @property
    def columns(self) -> list[str]:
        """Those of a row that say it."""
        return [SEGMENT_ID, OFFSET] if self.moment_ms is None else [SEGMENT_ID, OFFSET, APPENDED]

    @property
    def limits(self) -> list[tuple[int, int]]:
        """Of the segments that don't lie before it as a whole."""
        found = ((segment, self.limit(segment)) for segment in self._ranges)
        return [(segment, limit) for segment, limit in found if limit is not None]

    def limit(self, segment: int) -> int | None:
        """Up to where a segment lies before it; None: all of it does."""
        if segment not in self._ranges:
            raise LakeStoppedError(
                f"nothing is known any more of segment {segment}, of which the table has rows: read the table's newest "
                "cut"
            )
        return self._bound.limit(self._ranges[segment])

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
class Columns:
    """What both parts give: the columns wanted; how events become rows of the table; which of its rows are read."""

    wanted: pa.Schema
    shape: Shape
    before: Before | None

    def of_table(self, table: TableFiles, pieces: Sequence[FilePiece]) -> Iterator[pa.RecordBatch]:
        there = table.names
        needed = [] if self.before is None else self.before.columns
        names = list(dict.fromkeys([*(name for name in self.wanted.names if name in there), *needed])) or [OFFSET]
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

    columns: Columns
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
