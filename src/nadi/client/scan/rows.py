"""Read segment ranges as Arrow batches, without a Python object per event; `Readable` offers such batches.

The column `append_time` is the server's time of arrival of each row (`stream_cuts.arrival_times`); a later read may
return times up to 10 s later for the most recent seconds.

The column `event_time` is the known lower bound of each row's event time. Writers note their progress in event time,
from which the controller derives watermarks (`docs/event-time.md`). A row's event time is the lower bound of the last
watermark at or before the row: neither the row nor later rows of its segment have an earlier time. It is null before
the oldest retained watermark, and where writers noted no times.

A watermark is at or before a row if its cut is, under all keys of the row's segment, by the rules of
`model.cutorder.compare_shared`. So each watermark applies from one offset of the segment on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges
from nadi.client.reading.damage import OnDamage
from nadi.client.reading.segment_range import event_places, read_segment_range
from nadi.client.reading.watermarks import find_last, watermarks
from nadi.client.scan.connection import ScanClient
from nadi.client.scan.pieces import ScanRange, ScanRequest
from nadi.client.scan.positions import PositionTexts
from nadi.client.segments.info import resolve_missing
from nadi.client.serializers.arrow_columns import plain
from nadi.client.stream_cuts.arrival_times import Arrivals
from nadi.client.values.options import ReadTarget
from nadi.errors import InvalidArgumentError, SegmentNotFoundError
from nadi.limits import MIB, WATERMARKS_AT_ONCE
from nadi.model.event import EventBlock, EventPositions, int_array
from nadi.model.segments import SegmentRange, oldest_by_key, share_keys
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import Watermark
from nadi.naming import APPEND_TIME, EVENT_TIME, NEED_EVENTS, NO_UNIT, PER_SECOND, POSITIONS, VALUE, segment_name
from nadi.wire.time_index import Numbers

if TYPE_CHECKING:
    from nadi.client.values.parser import ValueParser


_EARLIEST_S, _END_S = -62_135_596_800, 253_402_300_800  # the years 1 to 9999: the range of Python's datetime
_PER_SECOND_US = 1_000_000
_INT64 = np.iinfo(np.int64)


def holds_from(watermark: Watermark, segment: SegmentRange) -> int | None:
    """Return the segment's offset from which events are after the watermark's cut; None if under some key all are
    before it.

    >>> from nadi.model.watermark import SegmentPosition
    >>> old, new = SegmentRange(0, 0.0, 1.0), SegmentRange(1 << 32, 0.0, 0.5)
    >>> watermark = Watermark(1, 2, (SegmentPosition(0, 0.0, 1.0, 40),))
    >>> holds_from(watermark, old), holds_from(watermark, new)
    (40, 0)
    >>> holds_from(Watermark(3, 4, (SegmentPosition(1 << 32, 0.0, 0.5, 7),)), old)
    """
    positions = [position for position in watermark.cut if share_keys(position, segment)]
    if len(positions) > 1:
        current = {oldest.segment_id for oldest in oldest_by_key(positions) if share_keys(oldest, segment)}
        positions = [position for position in positions if position.segment_id in current]
    if any(position.segment_id > segment.segment_id for position in positions):
        return None
    return max((position.offset for position in positions if position.segment_id == segment.segment_id), default=0)


@dataclass(frozen=True, slots=True)
class _WatermarkPage:
    """Consecutive watermarks: the offset from which each applies, and its lower bound.

    is_last: any further ones apply after the range. before: the bound of the last watermark of the previous page.
    """

    offsets: Numbers
    bounds: Numbers
    is_last: bool
    before: int | None


class EventTimes:
    """The event times of a range's rows; watermarks are fetched a page at a time, as needed."""

    def __init__(self, client: ScanClient, scope: str, piece: ScanRange, unit: str) -> None:
        self._client, self._scope, self._piece, self._unit = client, scope, piece, unit
        self._segment: SegmentRange | None = None
        self._next = 0  # the first entry of the next page
        self._page = _WatermarkPage(_NONE, _NONE, False, None)

    def of(self, offsets: Numbers) -> pa.Array:
        """Return the times of rows in offset order, or numbers without a unit."""
        times, known = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        low = 0
        while low < len(offsets):
            page = self._page
            if not page.is_last and (not len(page.offsets) or page.offsets[-1] <= offsets[low]):
                page = self._page = self._client.run(self._fetched(int(offsets[low])))
            high = len(offsets) if page.is_last else int(np.searchsorted(offsets, page.offsets[-1]))
            count = np.searchsorted(page.offsets, offsets[low:high], side="right")
            times[low:high] = np.append(page.before or 0, page.bounds)[count]
            known[low:high] = (count > 0) | (page.before is not None)
            low = high
        return self._as_column(times, known)

    async def _fetched(self, offset: int) -> _WatermarkPage:
        """Return the next page, or, if that ends before the offset, a later one."""
        before = int(self._page.bounds[-1]) if len(self._page.bounds) else self._page.before
        stores = stores_of(self._client.manager)
        if self._segment is None:
            cut = StreamCut(self._scope, self._piece.stream, {self._piece.segment_id: 0})
            ranges = await known_ranges(stores, cut)
            if not ranges:
                return _WatermarkPage(_NONE, _NONE, True, None)  # truncated so long ago that its record was deleted
            self._segment = ranges[0]
        else:
            page = await self._read(self._next, before, self._segment)
            if page.is_last or page.offsets[-1] > offset:
                return page
            before = int(page.bounds[-1])
        segment = self._segment

        def is_at_or_before(watermark: Watermark) -> bool:
            start = holds_from(watermark, segment)
            return start is not None and start <= offset

        last = await find_last(stores, self._scope, self._piece.stream, is_at_or_before)
        return await self._read(max(self._next, last), before, segment)

    async def _read(self, start: int, before: int | None, segment: SegmentRange) -> _WatermarkPage:
        offsets, bounds, is_last = list[int](), list[int](), True
        stores = stores_of(self._client.manager)
        self._next = start
        async with aclosing(watermarks(stores, self._scope, self._piece.stream, start)) as entries:
            async for end, watermark in entries:
                offset = holds_from(watermark, segment)
                if offset is None or offset >= self._piece.end:
                    break
                offsets.append(offset)
                bounds.append(watermark.lower)
                self._next = end
                if len(offsets) == WATERMARKS_AT_ONCE:
                    is_last = False
                    break
        return _WatermarkPage(np.array(offsets, np.int64), np.array(bounds, np.int64), is_last, before)

    def _as_column(self, numbers: Numbers, known: Numbers) -> pa.Array:
        if self._unit == NO_UNIT:
            return pa.array(numbers, mask=~known)
        per_s = PER_SECOND[self._unit]
        first, last = max(_EARLIEST_S * per_s, _INT64.min), min(_END_S * per_s - 1, _INT64.max)
        for number in numbers[known & ((numbers < first) | (numbers > last))]:
            raise InvalidArgumentError(
                f"the writers of {self._scope}/{self._piece.stream} noted the time {number}, which as {self._unit} "
                "since 1970 is outside the years 1 to 9999: set the option 'eventTimeUnit' to the writers' unit, one "
                f"of {', '.join(PER_SECOND)}, or to {NO_UNIT!r} for plain numbers"
            )
        times = numbers // (per_s // _PER_SECOND_US) if per_s > _PER_SECOND_US else numbers * (_PER_SECOND_US // per_s)
        return pa.array(times, pa.timestamp("us", "UTC"), mask=~known)


_NONE = np.empty(0, np.int64)


class RowTimes:
    """The arrival times of a range's rows in ms since 1970, from the segment's time index."""

    def __init__(self, client: ScanClient, scope: str, piece: ScanRange) -> None:
        self._client = client
        segment = segment_name(scope, piece.stream, piece.segment_id)
        self._arrivals = Arrivals(stores_of(client.manager), segment, piece.end)

    def of(self, offsets: Numbers) -> pa.Array:
        """Return the times of rows in offset order; null where the index has none: in bytes appended by a version
        without an index, or truncated since."""
        times = self._client.run(self._arrivals.of(offsets))
        if times is None:
            raise InvalidArgumentError(
                "this server is too old for the column 'append_time': upgrade it, or omit the column"
            )
        millis, _ = times
        valid = np.packbits(millis >= 0, bitorder="little")  # pa.array would import pandas, as in `int_array`
        return pa.Array.from_buffers(pa.timestamp("ms"), len(millis), [pa.py_buffer(valid), pa.py_buffer(millis)])


TYPES = {
    "event": pa.binary(),
    "scope": pa.string(),
    "stream": pa.string(),
    "segment_id": pa.int64(),
    "offset": pa.int64(),
    "position_before": pa.string(),
    "position": pa.string(),
    "append_time": pa.timestamp("us", "UTC"),
    "event_time": pa.timestamp("us", "UTC"),
}
_BATCH_ROWS, _BATCH_BYTES = 20_000, MIB  # small blocks are joined until they reach either
_MAX_ROWS = 50_000
_MAX_REPEATED_BYTES = 16 * MIB  # of events that are repeated for each of their rows
_Block = EventBlock | EventPositions  # the latter if no column needs the bytes
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


class EventSource(Protocol):
    """A source of a range's events; both iterators run in the client's thread."""

    def blocks(self, piece: ScanRange, /) -> AsyncIterator[EventBlock]: ...

    def places(self, piece: ScanRange, /) -> AsyncIterator[EventPositions | EventBlock]:
        """Yield the events' offsets, with the same errors."""


class ServerSource:
    def __init__(self, request: ScanRequest, client: ScanClient) -> None:
        self._request, self._stores = request, stores_of(client.manager)

    def blocks(self, piece: ScanRange) -> AsyncIterator[EventBlock]:
        return read_segment_range(self._stores, self._name(piece), piece.start, piece.end, self._request.on_damage)

    def places(self, piece: ScanRange) -> AsyncIterator[EventPositions | EventBlock]:
        return event_places(self._stores, self._name(piece), piece.start, piece.end, self._request.on_damage)

    def _name(self, piece: ScanRange) -> str:
        return segment_name(self._request.scope, piece.stream, piece.segment_id)


def read_rows(
    request: ScanRequest, client: ScanClient, pieces: Iterable[ScanRange], source: EventSource
) -> Iterator[pa.RecordBatch]:
    constant: dict[str, pa.Array] = {}  # the scope and stream columns, as long as the longest batch; batches use slices
    has_events = any(name in request.columns for name in NEED_EVENTS)
    stream = parser = None
    for piece in pieces:
        if piece.stream != stream:
            stream = piece.stream
            names = {"scope": request.scope, "stream": stream}
            # only if requested: creating a scalar makes PyArrow import pandas
            texts = {name: text for name, text in names.items() if name in request.columns}
            constant = {name: pa.repeat(pa.scalar(text), _MAX_ROWS) for name, text in texts.items()}
            parser = _parser_of(request, client, stream)
        batches = _Batches(request, client, piece, constant, parser)
        blocks: AsyncIterator[_Block] = source.blocks(piece) if has_events else source.places(piece)
        for group in _groups(client.thread.each(blocks)):
            yield from batches.of(group)


def _groups(blocks: Iterator[_Block]) -> Iterator[list[_Block]]:
    """Group blocks into batches. A large block is a batch of its own, even if a single event came before it: reading a
    batch of one row is faster than copying the large block behind it."""
    group: list[_Block] = []
    rows = size = 0
    for block in blocks:
        is_large = len(block) >= _BATCH_ROWS or block.size_bytes >= _BATCH_BYTES
        if group and is_large:
            yield group
            group, rows, size = [], 0, 0
        group.append(block)
        rows += len(block)
        size += block.size_bytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _parser_of(request: ScanRequest, client: ScanClient, stream: str) -> ValueParser | None:
    if request.target is None:
        return None
    from nadi.client.values.parser import ValueParser  # loads the serializers, which most reads don't use

    schemas = client.manager.schemas(request.scope, stream)
    return ValueParser(schemas, client.run, f"{request.scope}/{stream}", request.target)


def arrow_schema(request: ScanRequest) -> pa.Schema:
    value = {} if request.target is None else {VALUE: plain(request.target.kind)}
    number = {EVENT_TIME: pa.int64()} if request.event_time_unit == NO_UNIT else {}
    return pa.schema([(name, (TYPES | value | number)[name]) for name in request.columns])


class _Batches:
    def __init__(
        self,
        request: ScanRequest,
        client: ScanClient,
        piece: ScanRange,
        constant: dict[str, pa.Array],
        parser: ValueParser | None,
    ) -> None:
        self._piece, self._constant, self._parser = piece, constant, parser
        self._schema = arrow_schema(request)
        names, scope, unit = request.columns, request.scope, request.event_time_unit
        self._append_times = RowTimes(client, scope, piece) if APPEND_TIME in names else None
        self._event_times = EventTimes(client, scope, piece, unit) if EVENT_TIME in names else None
        is_placed = any(name in request.columns for name in POSITIONS)
        self._texts = PositionTexts(request.scope, piece) if is_placed else None

    def of(self, blocks: Sequence[_Block]) -> Iterator[pa.RecordBatch]:
        offsets = np.concatenate([block.offsets() for block in blocks])
        columns: dict[str, pa.Array] = {"offset": int_array(offsets)}
        if "event" in self._schema.names or self._parser is not None:
            payloads = [block.payloads() for block in blocks if isinstance(block, EventBlock)]
            columns["event"] = payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)
        if self._texts is not None:
            columns |= self._positions(self._texts, offsets, blocks)
        if self._append_times is not None:
            columns[APPEND_TIME] = self._append_times.of(offsets).cast(TYPES[APPEND_TIME])
        if self._event_times is not None:
            columns[EVENT_TIME] = self._event_times.of(offsets)
        rows, total = None, len(offsets)
        if self._parser is not None:
            parsed = self._parser.parse(columns["event"], self._piece.segment_id, offsets)
            columns["value"], rows, total = parsed.values, parsed.rows, len(parsed.values)
        columns = {name: column for name, column in columns.items() if name in self._schema.names}
        low = 0
        for high in _batch_ends(total, rows, columns.get("event")):
            count = high - low
            if rows is None:
                selected = {name: column.slice(low, count) for name, column in columns.items()}
            else:
                indices = pa.array(rows[low:high])
                selected = {name: column.take(indices) for name, column in columns.items() if name != "value"}
                selected["value"] = columns["value"].slice(low, count)
            selected |= {name: column.slice(0, count) for name, column in self._constant.items()}
            selected["segment_id"] = int_array(np.full(count, self._piece.segment_id, np.int64))
            yield pa.RecordBatch.from_arrays([selected[name] for name in self._schema.names], schema=self._schema)
            low = high

    def _positions(self, texts: PositionTexts, offsets: _Numbers, blocks: Sequence[_Block]) -> dict[str, pa.Array]:
        ends = np.concatenate([[*block.offsets()[1:], block.offset + block.size_bytes] for block in blocks])
        before = texts.of(offsets.tolist())
        if np.array_equal(ends[:-1], offsets[1:]):  # contiguous: the cut after a row is the cut before the next
            after = [*before[1:], *texts.of([int(ends[-1])])]
        else:
            after = texts.of(ends.tolist())
        return {"position_before": pa.array(before, pa.string()), "position": pa.array(after, pa.string())}


def _batch_ends(total: int, rows: _Numbers | None, events: pa.Array | None) -> Iterator[int]:
    """Yield the row number at which each batch ends. rows: the event of each row, if events may have several."""
    if rows is None or events is None:
        yield from range(_MAX_ROWS, total, _MAX_ROWS)
        if total:
            yield total
        return
    sizes = np.fromiter((len(event) for event in events.to_pylist()), np.int64, len(events))
    sums = np.cumsum(sizes[rows])
    low = before = 0
    while low < total:
        low = max(low + 1, min(low + _MAX_ROWS, int(np.searchsorted(sums, before + _MAX_REPEATED_BYTES, "right"))))
        before = int(sums[low - 1])
        yield low


# --- readable objects: batches as Arrow's C stream ---------------------------------


def unnested_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns with the fields in place of the value. InvalidArgumentError if the value lacks fields, or two
    columns would have the same name.

    >>> unnested_schema(pa.schema({"value": pa.struct({"wh": pa.int64()}), "offset": pa.int64()})).names
    ['wh', 'offset']
    """
    value = schema.field(VALUE)
    if not pa.types.is_struct(value.type):
        raise InvalidArgumentError(f"unnest needs values with fields, not {value.type}")
    fields: list[pa.Field] = []
    for column in schema:
        fields += list(value.type) if column.name == VALUE else [column]
    names = [field.name for field in fields]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise InvalidArgumentError(
            f"the field {duplicate!r} of the values has the name of a column: omit that column, or don't unnest"
        )
    return pa.schema(fields)


def unnested(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with those columns; the fields of a null value are null."""
    columns: list[pa.Array] = []
    for name in batch.schema.names:
        column = batch.column(name)
        columns += column.flatten() if name == VALUE else [column]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class ScanRows:
    """What a scan reads, as in `pieces.ScanRequest`; is_unnested: whether the fields of values are columns."""

    scope: str
    columns: tuple[str, ...]
    event_time_unit: str
    target: ReadTarget | None
    on_damage: OnDamage
    is_unnested: bool

    @property
    def schema(self) -> pa.Schema:
        schema = arrow_schema(self)
        return unnested_schema(schema) if self.is_unnested else schema

    def batches(self, client: ScanClient, pieces: Iterable[ScanRange]) -> Iterator[pa.RecordBatch]:
        with why_missing(client):
            for batch in read_rows(self, client, pieces, ServerSource(self, client)):
                yield unnested(batch, self.schema) if self.is_unnested else batch

    def blocks(self, client: ScanClient, pieces: Iterable[ScanRange]) -> Iterator[tuple[int, EventBlock]]:
        """Yield the segment and each block of the events themselves, range by range."""
        source = ServerSource(self, client)
        with why_missing(client):
            for piece in pieces:
                for block in client.thread.each(source.blocks(piece)):
                    yield piece.segment_id, block


@contextmanager
def why_missing(client: ScanClient) -> Iterator[None]:
    """Replace SegmentNotFoundError by the reason: the segment was truncated, or deleted with its stream."""
    try:
        yield
    except SegmentNotFoundError as error:
        raise client.run(resolve_missing(stores_of(client.manager), error.segment)) from None


class Readable:
    """An object that offers batches; each request reads them again."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema."""
        raise NotImplementedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in batches: those of each segment, and of each key, in order."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)
