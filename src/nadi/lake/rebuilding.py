"""The reverse: a stream made anew from its table.

The events are the bytes that the table keeps, or, without these, JSON of its columns. What is always kept is the order
of each key. *Positions* are kept, so that a cut's segments and offsets are the same place, if the table has the bytes
of all of the stream's events from its first on, and no stream of the new one's name was there before: then segments
are made and scaled as they were, and each event is written to its segment again (`history_of`). Otherwise events are
routed by a column, or all go to one segment.

Each event has a number that follows from where it lay, and the snapshot is noted with the stream: a rebuilding that
was killed is begun again, and writes what is missing (`client.numbered`).

A stream's segments can be made as they were if those of epoch 0 are what a new stream's are, if each later epoch
replaced segments by others of the same keys, numbered on, and if of each segment all events are there from its first
on: their sizes add up to where the last one ends.

>>> whole = Extent(0, 0, 10, 20, 20)
>>> history_of([(0, 0.0, 1.0)], {0: whole}, {0: 0}, {0: 20}).epochs
[0]
>>> history_of([(0, 0.0, 1.0)], {0: Extent(0, 10, 20, 30, 20)}, {0: 0}, {0: 30}) is None
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nadi.client import StreamManager, aio
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import checking
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.client.serializers.columns import MISFITS
from nadi.client.serializers.documents import json_of
from nadi.client.streamtables.lossless import first_wrong
from nadi.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NotFoundError
from nadi.lake.marks import mark_of, segments_told
from nadi.lake.record import LakeRecord
from nadi.lake.rows import OFFSET, PLACES, SEGMENT_ID, check_places, target_of_lake
from nadi.lake.states import record_of
from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table.catalogs import table_of
from nadi.lake.table.pieces import pieces_of
from nadi.lake.table.reading import TableFiles, columns_named, columns_of, files_of, window
from nadi.lake.table.shapes import fitted
from nadi.limits import LAKE_REBUILT_AT_ONCE, LAKE_REBUILT_WINDOW_BYTES, MIB
from nadi.model.keyspace import equal_ranges, key_position
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name, segment_epoch, segment_number

if TYPE_CHECKING:
    from pyiceberg.table import Table


_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """What there is of a segment: its first and last event's offset, where the last ends, and the bytes of all with
    their headers; the latter two are 0 if sizes aren't known."""

    segment: int
    first: int = -1
    last: int = -1
    end: int = 0
    total: int = 0

    def with_rows(self, offsets: pa.Array, sizes: pa.Array | None) -> Extent:
        low, high = pc.min_max(offsets).values()
        first = low.as_py() if self.first < 0 else min(self.first, low.as_py())
        last = max(self.last, high.as_py())
        if sizes is None:
            return Extent(self.segment, first, last)
        whole = pc.add(pc.cast(sizes, pa.int64()), _HEADER_BYTES)
        end = max(self.end, pc.max(pc.add(offsets, whole)).as_py())
        return Extent(self.segment, first, last, end, self.total + pc.sum(whole).as_py())

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.total == self.end


@dataclass(frozen=True, slots=True)
class History:
    """Segments by id with their keys: all of a stream's, as far as there are events."""

    segments: Mapping[int, tuple[float, float]]

    @property
    def epochs(self) -> list[int]:
        return sorted({segment_epoch(one) for one in self.segments})

    def born(self, epoch: int) -> list[int]:
        return sorted(one for one in self.segments if segment_epoch(one) == epoch)

    def ranges_of(self, epoch: int) -> list[tuple[float, float]]:
        return [self.segments[one] for one in self.born(epoch)]

    def middle(self, segment: int) -> float:
        low, high = self.segments[segment]
        return (low + high) / 2

    def sealed_by(self, epoch: int) -> list[int]:
        """Those that the epoch's segments replaced."""
        active: dict[int, tuple[float, float]] = {}
        for one in self.epochs:
            new = {segment: self.segments[segment] for segment in self.born(one)}
            replaced = [
                segment
                for segment, (low, high) in active.items()
                if any(low < other_high and other_low < high for other_low, other_high in new.values())
            ]
            if one == epoch:
                return sorted(replaced)
            for segment in replaced:
                del active[segment]
            active |= new
        raise AssertionError(f"there is no epoch {epoch}")


def history_of(
    segments: Iterable[Sequence[float]], extents: Mapping[int, Extent], start: Mapping[int, int], end: Mapping[int, int]
) -> History | None:
    """None if positions can't be kept. start, end: the cuts between which the table has everything, by segment."""
    history = History({int(segment): (low, high) for segment, low, high in segments})
    if any(offset > 0 for offset in start.values()) or not extents.keys() | end.keys() <= history.segments.keys():
        return None
    ends = {segment: extents[segment].end if segment in extents else 0 for segment in history.segments}
    if not all(one.is_whole for one in extents.values()) or any(ends[one] != max(end[one], 0) for one in end):
        return None
    if history.epochs != list(range(len(history.epochs))):
        return None
    number = 0
    for epoch in history.epochs:
        born = history.born(epoch)
        if [segment_number(one) for one in born] != list(range(number, number + len(born))):
            return None
        number += len(born)
        if epoch == 0:
            if history.ranges_of(0) != equal_ranges(len(born)):
                return None
        elif _covered(history.ranges_of(epoch)) != _covered(history.segments[one] for one in history.sealed_by(epoch)):
            return None
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
_OFFSET_BITS = 44  # of a number; the rest is the segment's rank
Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """events: of the stream that was made; keeps_positions: whether each lies where it lay."""

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
    told: Told = lambda events: None,
) -> Rebuilt:
    """Make the stream `to` of the scope from a lake's table, up to its cut; again, to go on after a kill.

    key: the column by which events are routed, where positions can't be kept. told: called with how many are written.
    AlreadyExistsError if the stream is there, and wasn't made so. LakeStoppedError if what to make it of is gone.
    """
    record = record_of(manager, scope, name)
    lake = record.definition
    check_name("stream", to)
    table = table_of(lake.catalog, lake.table)
    if table is None or table.current_snapshot() is None:
        raise LakeStoppedError(f"table {lake.table} has nothing to make a stream of")
    check_places(table)
    if key is not None and key not in columns_named(table):
        raise InvalidArgumentError(f"the table has no column {key!r}: {', '.join(columns_named(table))}")
    if key is not None:
        _check_key(key, columns_of(table))
    return _Rebuilding(manager, record, table, scope, to, key, told).run()


def _check_key(key: str, schema: pa.Schema) -> None:
    """InvalidArgumentError unless the column has texts, dates or numbers, as fields of JSON with routing keys have."""
    types, kind = pa.types, schema.field(key).type
    tests = (types.is_string, types.is_date, types.is_integer, types.is_floating, types.is_decimal)
    if not any(test(kind) for test in tests):
        raise InvalidArgumentError(f"the column {key!r} is {kind}, but a routing key is a string or a number")


class _Rebuilding:
    def __init__(
        self,
        manager: StreamManager,
        record: LakeRecord,
        table: Table,
        scope: str,
        to: str,
        key: str | None,
        told: Told,
    ) -> None:
        self._manager, self._lake, self._table = manager, record.definition, table
        lake, self._start = record.definition, StreamCut.from_text(record.start)
        self._scope, self._to, self._key, self._told = scope, to, key, told
        self._thread, self._core = inside(manager)
        self._written = 0
        self._bytes = "event" if lake.value_format is None else "_event" if lake.keep_events else None
        self._fields: dict[
            str, pa.Field
        ] = {}  # as the documents are read; of a stream that is gone, as the table has them
        with suppress(NotFoundError, InvalidArgumentError):
            target = target_of_lake(manager, lake) if self._bytes is None else None
            self._fields = {} if target is None else {field.name: field for field in target.kind}
        if self._bytes is None and lake.value_format != "json":
            raise InvalidArgumentError(
                f"the table has no bytes of events that were {lake.value_format}: only a lake with --keep-events, one "
                "of JSON, and one without a format, can be made a stream again"
            )

    def run(self) -> Rebuilt:
        snapshot = self._snapshot()
        extents = self._extents(snapshot)
        history = self._history(snapshot, extents)
        self._make(snapshot, history)
        if history is not None and set(self._manager.stream_info(self._scope, self._to).head.positions) != set(
            history.born(0)
        ):
            history = None  # a stream of that name was deleted: segments of the new one go on with its numbers
        seed = f"{self._table.metadata.table_uuid}/{snapshot}/{self._scope}/{self._to}"
        writer_id = hashlib.blake2b(seed.encode(), digest_size=16).digest()
        shape = StreamShape(stores_of(self._core), self._scope, self._to)
        writer = self._thread.result(lambda: NumberedWriter(shape, writer_id))
        ranks = {segment: rank << _OFFSET_BITS for rank, segment in enumerate(sorted(extents))}
        try:
            if history is None:
                for segment in sorted(extents):
                    self._write(writer, snapshot, extents[segment], ranks[segment], None)
            else:
                for epoch in history.epochs:
                    self._scale(shape, history, epoch)
                    for segment in history.born(epoch):
                        if segment in extents:
                            self._write(writer, snapshot, extents[segment], ranks[segment], history.middle(segment))
        finally:
            self._thread.result(writer.close)
        if history is not None:
            self._check_positions(extents)
        return Rebuilt(self._scope, self._to, self._written, history is not None)

    def _history(self, snapshot: int, extents: dict[int, Extent]) -> History | None:
        made_of = self._table.snapshot_by_id(snapshot)
        mark = None if made_of is None else mark_of(made_of)
        if self._bytes is None or mark is None or mark.letters:
            return None
        known = [one for one in segments_told(self._table) if one[0] <= max(mark.end_cut.positions)]
        return history_of(known, extents, self._start.positions, mark.end_cut.positions)

    # --- what there is -----------------------------------------------------------------------------

    def _snapshot(self) -> int:
        """The one that the stream is made of: noted with it, if it was begun."""
        current = self._table.current_snapshot()
        assert current is not None
        if self._to not in self._manager.list_streams(self._scope):
            return int(current.snapshot_id)
        tags = self._manager.stream_configuration(self._scope, self._to).tags
        noted = next((int(tag.removeprefix(_TAG)) for tag in tags if tag.startswith(_TAG)), None)
        if noted is None:
            raise AlreadyExistsError("stream", f"{self._scope}/{self._to}")
        if self._table.snapshot_by_id(noted) is None:
            raise LakeStoppedError(
                f"{self._scope}/{self._to} was begun with a snapshot that is expired: delete that stream, and begin "
                "anew"
            )
        return noted

    def _extents(self, snapshot: int) -> dict[int, Extent]:
        """What the table has of each segment."""
        columns = [SEGMENT_ID, OFFSET, *([self._bytes] if self._bytes else [])]
        found: dict[int, Extent] = {}
        pieces = pieces_of(files_of(self._table, snapshot))
        for batch in TableFiles.of(self._table).read(pieces, columns):
            if any(batch.column(name).null_count for name in (SEGMENT_ID, OFFSET)):
                raise LakeStoppedError(
                    f"table {self._lake.table} has rows of others without {SEGMENT_ID} or {OFFSET}, which have no "
                    "place in a stream: delete them from the table, or write them to the stream as events"
                )
            sizes = None if self._bytes is None else pa.compute.binary_length(batch.column(self._bytes))
            for segment in pa.compute.unique(batch.column(SEGMENT_ID)).to_pylist():
                mine = pa.compute.equal(batch.column(SEGMENT_ID), segment)
                offsets = batch.column(OFFSET).filter(mine)
                extent = found.get(segment, Extent(segment))
                found[segment] = extent.with_rows(offsets, None if sizes is None else sizes.filter(mine))
        return found

    def _make(self, snapshot: int, history: History | None) -> None:
        if self._to in self._manager.list_streams(self._scope):
            return
        segments = len(history.born(0)) if history is not None else 1
        if history is None and self._key is not None and self._lake.stream in self._manager.list_streams(self._scope):
            segments = len(self._manager.current_segments(self._scope, self._lake.stream)) or 1
        self._manager.create_stream(self._scope, self._to, segments, tags=[f"{_TAG}{snapshot}"])

    # --- what is written ---------------------------------------------------------------------------

    def _scale(self, shape: StreamShape, history: History, epoch: int) -> None:
        """Replace segments as it was done in that epoch, unless it was done here, too."""
        active = {one.segment_id for one in self._manager.current_segments(self._scope, self._to)}
        if epoch == 0 or max(one >> 32 for one in active) >= epoch:
            return
        self._manager.scale_stream(self._scope, self._to, history.sealed_by(epoch), history.ranges_of(epoch))
        self._thread.call(shape.outdated)
        active = {one.segment_id for one in self._manager.current_segments(self._scope, self._to)}
        if not set(history.born(epoch)) <= active:
            raise ConflictError(f"{self._scope}/{self._to} was scaled by another meanwhile: delete it, and begin anew")

    def _write(self, writer: NumberedWriter, snapshot: int, extent: Extent, rank: int, position: float | None) -> None:
        some: list[NumberedEvent] = []
        size = 0
        for offset, where, data in self._events(snapshot, extent, position):
            some.append(NumberedEvent(rank + offset, where, data))
            size += len(data)
            if len(some) >= LAKE_REBUILT_AT_ONCE or size >= 4 * MIB:
                self._thread.run(writer.write(some))
                self._written += len(some)
                self._told(self._written)
                some, size = [], 0
        if some:
            self._thread.run(writer.write(some))
            self._written += len(some)
            self._told(self._written)

    def _events(self, snapshot: int, extent: Extent, position: float | None) -> Iterator[tuple[int, float, bytes]]:
        """A segment's, in their order: their offsets, key positions, and bytes."""
        for low in range(extent.first, extent.last + 1, LAKE_REBUILT_WINDOW_BYTES):
            rows = window(self._table, snapshot, extent.segment, low, low + LAKE_REBUILT_WINDOW_BYTES)
            for batch in rows.sort_by(OFFSET).to_batches():
                offsets = batch.column(OFFSET).to_pylist()
                data = self._data(batch)
                if position is not None:
                    where = [position] * len(offsets)
                elif self._key is None:
                    where = [0.5] * len(offsets)
                else:
                    where = [key_position(_text(one)) for one in batch.column(self._key).to_pylist()]
                yield from zip(offsets, where, data, strict=True)

    def _data(self, batch: pa.RecordBatch) -> list[bytes]:
        if self._bytes is not None:
            found: list[bytes] = batch.column(self._bytes).to_pylist()
            return found
        batch = fitted(batch, columns_of(self._table))
        own = [name for name in batch.schema.names if name not in PLACES.values()]
        kinds = pa.struct([self._fields.get(name) or pa.field(name, batch.schema.field(name).type) for name in own])
        values = pa.StructArray.from_arrays([*map(batch.column, own)], names=own)
        try:
            return json_of(values, kinds)
        except MISFITS as error:
            row = first_wrong(values, lambda some: json_of(some, kinds)) or 0
            segment, offset = (batch.column(name)[row].as_py() for name in (SEGMENT_ID, OFFSET))
            raise LakeStoppedError(
                f"the row of segment {segment} at offset {offset:,} can't be written as JSON: {error}. Delete it from "
                f"table {self._lake.table}, or correct it, and begin again"
            ) from error

    def _check_positions(self, extents: dict[int, Extent]) -> None:
        for extent in extents.values():
            end = self._thread.run(_length(self._core, self._scope, self._to, extent.segment))
            assert end == extent.end, f"segment {extent.segment} ends at {end:,}, not at {extent.end:,}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


async def _length(manager: aio.StreamManager, scope: str, stream: str, segment: int) -> int:
    from nadi.client.segments.info import segment_info
    from nadi.naming import segment_name

    found = await segment_info(stores_of(manager), segment_name(scope, stream, segment))
    return found.write_offset
