"""Recreates a stream from a lake's table.

The events are the bytes that the table keeps, or otherwise JSON of its columns. The order of each key is always kept.
*Positions* are kept, so that cuts stay valid, if the table has the bytes of all of the stream's events from the first,
and no stream of the new name existed before: then segments are created and scaled as they were, and each event is
written to its segment (`history_of`). Otherwise events are routed by a column, or all go to one segment.

Each event has a number that follows from its position, and the snapshot is recorded with the stream: an interrupted
call is repeated and writes the missing events (`client.idempotent`).

A stream's segments can be recreated if epoch 0 has the segments of a new stream, if each later epoch replaced
segments by others of the same keys with the next numbers, and if all events of each segment are present from its first:
their sizes add up to the end of the last.

>>> whole = SegmentCoverage(0, 0, 10, 20, 20)
>>> history_of([(0, 0.0, 1.0)], {0: whole}, {0: 0}, {0: 20}).epochs
[([], [0])]
>>> history_of([(0, 0.0, 1.0)], {0: SegmentCoverage(0, 10, 20, 30, 20)}, {0: 0}, {0: 30}) is None
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import checking
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape
from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import segment_info
from nadi.client.serializers.columns import MISFITS
from nadi.client.serializers.documents import json_of
from nadi.client.streamtables.lossless import first_wrong
from nadi.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NotFoundError
from nadi.lake.definition import LakeRecord, record_of
from nadi.lake.rows import (
    OFFSET,
    SEGMENT_ID,
    SOURCE_COLUMNS,
    check_position_columns,
    mark_of,
    recorded_segments,
    target_of_lake,
)
from nadi.lake.table.catalogs import fitted, table_of
from nadi.lake.table.error_mapping import LakeStoppedError
from nadi.lake.table.reading import TableFiles, columns_named, columns_of, files_of, pieces_of, window
from nadi.lake.writer import in_batches
from nadi.limits import LAKE_REBUILT_AT_ONCE, LAKE_REBUILT_WINDOW_BYTES
from nadi.model.keyspace import equal_ranges, key_position
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name, segment_epoch, segment_name, segment_number

if TYPE_CHECKING:
    from pyiceberg.table import Table


_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class SegmentCoverage:
    """The events present of a segment: the offsets of the first and last, the end of the last, and the bytes of all
    with headers; `end` and `total` are 0 if sizes are unknown."""

    segment: int
    first: int = -1
    last: int = -1
    end: int = 0
    total: int = 0

    def with_rows(self, offsets: pa.Array, sizes: pa.Array | None) -> SegmentCoverage:
        low, high = pc.min_max(offsets).values()
        first = low.as_py() if self.first < 0 else min(self.first, low.as_py())
        last = max(self.last, high.as_py())
        if sizes is None:
            return SegmentCoverage(self.segment, first, last)
        event_sizes = pc.add(pc.cast(sizes, pa.int64()), _HEADER_BYTES)
        end = max(self.end, pc.max(pc.add(offsets, event_sizes)).as_py())
        return SegmentCoverage(self.segment, first, last, end, self.total + pc.sum(event_sizes).as_py())

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.total == self.end


@dataclass(frozen=True, slots=True)
class ScalingHistory:
    """How a stream was scaled, as far as there are events. keys: key range by segment; epochs: the segments replaced in
    each, and the new ones."""

    keys: Mapping[int, tuple[float, float]]
    epochs: Sequence[tuple[list[int], list[int]]]

    def ranges_of(self, segments: Iterable[int]) -> list[tuple[float, float]]:
        return [self.keys[segment] for segment in segments]


def history_of(
    segments: Iterable[Sequence[float]],
    extents: Mapping[int, SegmentCoverage],
    start: Mapping[int, int],
    end: Mapping[int, int],
) -> ScalingHistory | None:
    """Return the history, or None if positions can't be kept. start, end: by segment, the cuts of the table's
    events."""
    keys = {int(segment): (low, high) for segment, low, high in segments}
    if any(offset > 0 for offset in start.values()) or not extents.keys() | end.keys() <= keys.keys():
        return None
    ends = {segment: extents[segment].end if segment in extents else 0 for segment in keys}
    if not all(segment_id.is_whole for segment_id in extents.values()) or any(
        ends[segment_id] != max(end[segment_id], 0) for segment_id in end
    ):
        return None
    by_epoch: dict[int, list[int]] = {}
    for segment in sorted(keys):
        by_epoch.setdefault(segment_epoch(segment), []).append(segment)
    if list(by_epoch) != list(range(len(by_epoch))):
        return None
    history = ScalingHistory(keys, epochs := [])
    active: list[int] = []
    number = 0
    for epoch, born in by_epoch.items():
        ranges = history.ranges_of(born)
        replaced = [
            segment_id
            for segment_id in active
            if any(keys[segment_id][0] < high and low < keys[segment_id][1] for low, high in ranges)
        ]
        is_right = ranges == equal_ranges(len(born))
        if epoch > 0:
            is_right = _covered(ranges) == _covered(history.ranges_of(replaced))
        if not is_right or [segment_number(segment_id) for segment_id in born] != list(
            range(number, number + len(born))
        ):
            return None
        number += len(born)
        active = sorted({*active, *born} - {*replaced})
        epochs.append((replaced, born))
    return history


def _covered(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if joined and joined[-1][1] == low:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined


_TAG = "nadi-lake-snapshot-"
_OFFSET_BITS = 44  # the low bits of a number; the others are the segment's rank
OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """A recreated stream. events: their number; keeps_positions: whether each event has its old position."""

    scope: str
    stream: str
    events: int
    keeps_positions: bool


@checking
def rebuild(
    manager: StreamManager,
    scope: str,
    name: str,
    to: str,
    *,
    key: str | None = None,
    on_progress: OnProgress = lambda events: None,
) -> RebuildResult:
    """Recreate a stream as `to` of the scope from a lake's table, up to its cut; repeat an interrupted call.

    key: the column by which events are routed if positions can't be kept. on_progress: called with the number of events
    written. AlreadyExistsError if the stream exists for another reason. LakeStoppedError if the table or the snapshot
    is gone.
    """
    record = record_of(manager, scope, name)
    lake = record.definition
    check_name("stream", to)
    table = table_of(lake.catalog, lake.table)
    if table is None or table.current_snapshot() is None:
        raise LakeStoppedError(f"table {lake.table} is missing or empty: restore it")
    check_position_columns(table)
    if key is not None and key not in columns_named(table):
        raise InvalidArgumentError(
            f"the table doesn't have a column {key!r}: choose one of {', '.join(columns_named(table))}"
        )
    if key is not None:  # the types that routing keys in JSON fields may have
        types, kind = pa.types, columns_of(table).field(key).type
        tests = (types.is_string, types.is_date, types.is_integer, types.is_floating, types.is_decimal)
        if not any(test(kind) for test in tests):
            raise InvalidArgumentError(f"the column {key!r} is {kind}: choose a string or number as routing key")
    return _Rebuilding(manager, record, table, scope, to, key, on_progress).run()


class _Rebuilding:
    def __init__(
        self,
        manager: StreamManager,
        record: LakeRecord,
        table: Table,
        scope: str,
        to: str,
        key: str | None,
        on_progress: OnProgress,
    ) -> None:
        self._manager, self._lake, self._table = manager, record.definition, table
        lake, self._start = record.definition, StreamCut.from_text(record.start)
        self._scope, self._to, self._key, self._on_progress = scope, to, key, on_progress
        self._thread, self._core = inside(manager)
        self._written = 0
        self._bytes = "event" if lake.value_format is None else "_event" if lake.keep_events else None
        self._fields: dict[str, pa.Field] = {}  # types of JSON values
        with suppress(NotFoundError, InvalidArgumentError):  # the stream is gone: the table's types are used
            target = target_of_lake(manager, lake) if self._bytes is None else None
            self._fields = {} if target is None else {field.name: field for field in target.kind}
        if self._bytes is None and lake.value_format != "json":
            raise InvalidArgumentError(
                f"the table doesn't have the bytes of events in format {lake.value_format}: only lakes with "
                "--keep-events, of JSON, or without a format can be made a stream again"
            )

    def run(self) -> RebuildResult:
        snapshot = self._snapshot()
        extents = self._extents(snapshot)
        history = self._history(snapshot, extents)
        self._make(snapshot, history)
        head = self._manager.stream_info(self._scope, self._to).head
        if history is not None and head.positions.keys() != set(history.epochs[0][1]):
            history = None  # a stream of that name was deleted, so the new one continues its segment numbers
        seed = f"{self._table.metadata.table_uuid}/{snapshot}/{self._scope}/{self._to}"
        writer_id = hashlib.blake2b(seed.encode(), digest_size=16).digest()
        shape = StreamShape(stores_of(self._core), self._scope, self._to)
        writer = self._thread.result(lambda: IdempotentWriter(shape, writer_id))
        ranks = {segment: rank << _OFFSET_BITS for rank, segment in enumerate(sorted(extents))}
        try:
            if history is None:
                for segment in sorted(extents):
                    self._write(writer, snapshot, extents[segment], ranks[segment], None)
            else:
                for epoch, (replaced, born) in enumerate(history.epochs):
                    if epoch > 0:
                        self._scale(shape, epoch, replaced, born, history.ranges_of(born))
                    for segment in born:
                        if segment in extents:
                            middle = sum(history.keys[segment]) / 2
                            self._write(writer, snapshot, extents[segment], ranks[segment], middle)
        finally:
            self._thread.result(writer.close)
        for extent in extents.values() if history is not None else ():
            name = segment_name(self._scope, self._to, extent.segment)
            end = self._thread.run(segment_info(stores_of(self._core), name)).write_offset
            assert end == extent.end, f"segment {extent.segment} ends at {end:,}, not at {extent.end:,}"
        return RebuildResult(self._scope, self._to, self._written, history is not None)

    def _history(self, snapshot: int, extents: dict[int, SegmentCoverage]) -> ScalingHistory | None:
        source = self._table.snapshot_by_id(snapshot)
        mark = None if source is None else mark_of(source)
        if self._bytes is None or mark is None or mark.letters:
            return None
        known = [item for item in recorded_segments(self._table) if item[0] <= max(mark.end_cut.positions)]
        return history_of(known, extents, self._start.positions, mark.end_cut.positions)

    # --- reading -----------------------------------------------------------------------------------

    def _snapshot(self) -> int:
        """Return the snapshot to read, which is recorded with the stream, if an earlier call has started."""
        current = self._table.current_snapshot()
        assert current is not None
        if self._to not in self._manager.list_streams(self._scope):
            return int(current.snapshot_id)
        tags = self._manager.stream_configuration(self._scope, self._to).tags
        recorded = next((int(tag.removeprefix(_TAG)) for tag in tags if tag.startswith(_TAG)), None)
        if recorded is None:
            raise AlreadyExistsError("stream", f"{self._scope}/{self._to}")
        if self._table.snapshot_by_id(recorded) is None:
            raise LakeStoppedError(
                f"{self._scope}/{self._to} was started from a snapshot that has expired since: delete that stream and "
                "try again"
            )
        return recorded

    def _extents(self, snapshot: int) -> dict[int, SegmentCoverage]:
        columns = [SEGMENT_ID, OFFSET, *([self._bytes] if self._bytes else [])]
        extents: dict[int, SegmentCoverage] = {}
        pieces = pieces_of(files_of(self._table, snapshot))
        for batch in TableFiles.of(self._table).read(pieces, columns):
            if any(batch.column(name).null_count for name in (SEGMENT_ID, OFFSET)):
                raise LakeStoppedError(
                    f"table {self._lake.table} has rows from other programs without {SEGMENT_ID} or {OFFSET}, which "
                    "can't be placed in a stream: delete them, or write them to the stream as events"
                )
            sizes = None if self._bytes is None else pa.compute.binary_length(batch.column(self._bytes))
            for segment in pa.compute.unique(batch.column(SEGMENT_ID)).to_pylist():
                own = pa.compute.equal(batch.column(SEGMENT_ID), segment)
                offsets = batch.column(OFFSET).filter(own)
                extent = extents.get(segment, SegmentCoverage(segment))
                extents[segment] = extent.with_rows(offsets, None if sizes is None else sizes.filter(own))
        return extents

    def _make(self, snapshot: int, history: ScalingHistory | None) -> None:
        if self._to in self._manager.list_streams(self._scope):
            return
        segments = len(history.epochs[0][1]) if history is not None else 1
        if history is None and self._key is not None and self._lake.stream in self._manager.list_streams(self._scope):
            segments = len(self._manager.current_segments(self._scope, self._lake.stream)) or 1
        self._manager.create_stream(self._scope, self._to, segments, tags=[f"{_TAG}{snapshot}"])

    # --- writing -----------------------------------------------------------------------------------

    def _scale(
        self, shape: StreamShape, epoch: int, replaced: list[int], born: list[int], ranges: list[tuple[float, float]]
    ) -> None:
        """Replace segments as in that epoch, unless an earlier call has."""
        active = {segment.segment_id for segment in self._manager.current_segments(self._scope, self._to)}
        if max(map(segment_epoch, active)) >= epoch:
            return
        self._manager.scale_stream(self._scope, self._to, replaced, ranges)
        self._thread.call(shape.invalidate)
        active = {segment.segment_id for segment in self._manager.current_segments(self._scope, self._to)}
        if not set(born) <= active:
            raise ConflictError(
                f"{self._scope}/{self._to} was scaled by another program: delete the stream and try again"
            )

    def _write(
        self, writer: IdempotentWriter, snapshot: int, extent: SegmentCoverage, rank: int, position: float | None
    ) -> None:
        events = (
            NumberedEvent(rank + offset, key, data) for offset, key, data in self._events(snapshot, extent, position)
        )
        for batch in in_batches(events, LAKE_REBUILT_AT_ONCE):
            self._thread.run(writer.write(batch))
            self._written += len(batch)
            self._on_progress(self._written)

    def _events(
        self, snapshot: int, extent: SegmentCoverage, position: float | None
    ) -> Iterator[tuple[int, float, bytes]]:
        """Yield a segment's events in order: offset, key position and bytes."""
        for low in range(extent.first, extent.last + 1, LAKE_REBUILT_WINDOW_BYTES):
            rows = window(self._table, snapshot, extent.segment, low, low + LAKE_REBUILT_WINDOW_BYTES)
            for batch in rows.sort_by(OFFSET).to_batches():
                offsets = batch.column(OFFSET).to_pylist()
                data = self._data(batch)
                if position is not None:
                    positions = [position] * len(offsets)
                elif self._key is None:
                    positions = [0.5] * len(offsets)
                else:
                    keys = batch.column(self._key).to_pylist()
                    positions = [key_position("" if value is None else str(value)) for value in keys]
                yield from zip(offsets, positions, data, strict=True)

    def _data(self, batch: pa.RecordBatch) -> list[bytes]:
        if self._bytes is not None:
            data: list[bytes] = batch.column(self._bytes).to_pylist()
            return data
        batch = fitted(batch, columns_of(self._table))
        own = [name for name in batch.schema.names if name not in SOURCE_COLUMNS.values()]
        kinds = pa.struct([self._fields.get(name) or pa.field(name, batch.schema.field(name).type) for name in own])
        values = pa.StructArray.from_arrays([*map(batch.column, own)], names=own)
        try:
            return json_of(values, kinds)
        except MISFITS as error:
            row = first_wrong(values, lambda part: json_of(part, kinds)) or 0
            segment, offset = (batch.column(name)[row].as_py() for name in (SEGMENT_ID, OFFSET))
            raise LakeStoppedError(
                f"the row of segment {segment} at offset {offset:,} can't be written as JSON: {error}. Correct it in "
                f"table {self._lake.table} or delete it, then try again"
            ) from error
