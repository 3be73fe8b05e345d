"""Segments to Arrow batches, without a Python object for each event; and what has such batches to offer.

The column `append_time` says when the server took each row (`places.arrivals`); times of the last seconds may be told
later by up to 10 s when they are read again.

The column `event_time` is what is known of the event time of rows. Writers note how far they have got in time, and the
controller makes watermarks of that (`docs/event-time.md`). A row's event time is the lower bound of the last watermark
at or before the row: neither the row nor what follows it in its segment has an earlier time. It is null before the
oldest watermark that is left, and where nothing was noted.

A watermark lies at or before a row if its cut does under all keys of the row's segment, by the rules of
`model.cutorder.compare_shared`. So each watermark is one offset of the piece's segment: from there on it holds.
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
from nadi.client.segments.info import what_became_of
from nadi.client.serializers.arrow_columns import plain
from nadi.client.stream_cuts.arrival_times import Arrivals
from nadi.client.values.options import ReadTarget
from nadi.errors import InvalidArgumentError, SegmentNotFoundError
from nadi.limits import MIB, WATERMARKS_AT_ONCE
from nadi.model.event import EventBlock, EventPlaces, int_array
from nadi.model.segments import SegmentRange, oldest_by_key, share_keys
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import Watermark
from nadi.naming import APPEND_TIME, EVENT_TIME, NEED_EVENTS, NO_UNIT, PER_SECOND, POSITIONS, VALUE, segment_name
from nadi.wire.time_index import Numbers

if TYPE_CHECKING:
    from nadi.client.values.parser import ValueParser


_EARLIEST_S, _END_S = -62_135_596_800, 253_402_300_800  # of the years 1 to 9999, beyond which Python has no times
_PER_SECOND_US = 1_000_000
_INT64 = np.iinfo(np.int64)


def holds_from(watermark: Watermark, segment: SegmentRange) -> int | None:
    """The offset of the segment from which on events come after the watermark's cut; None if all come before it under
    some key.

    >>> from nadi.model.watermark import SegmentPosition
    >>> old, new = SegmentRange(0, 0.0, 1.0), SegmentRange(1 << 32, 0.0, 0.5)
    >>> watermark = Watermark(1, 2, (SegmentPosition(0, 0.0, 1.0, 40),))
    >>> holds_from(watermark, old), holds_from(watermark, new)
    (40, 0)
    >>> holds_from(Watermark(3, 4, (SegmentPosition(1 << 32, 0.0, 0.5, 7),)), old)
    """
    places = [place for place in watermark.cut if share_keys(place, segment)]
    if len(places) > 1:
        stands_in = {one.segment_id for one in oldest_by_key(places) if share_keys(one, segment)}
        places = [place for place in places if place.segment_id in stands_in]
    if any(place.segment_id > segment.segment_id for place in places):
        return None
    return max((place.offset for place in places if place.segment_id == segment.segment_id), default=0)


@dataclass(frozen=True, slots=True)
class _Page:
    """Watermarks in order: the offset from which each holds, and its lower bound. is_last: those that follow, if any,
    lie behind the piece. before: the bound of the last watermark of the page before."""

    offsets: Numbers
    bounds: Numbers
    is_last: bool
    before: int | None


class EventTimes:
    """Those of a piece's rows; watermarks are fetched a page at a time, as rows come to need them."""

    def __init__(self, client: ScanClient, scope: str, piece: ScanRange, unit: str) -> None:
        self._client, self._scope, self._piece, self._unit = client, scope, piece, unit
        self._segment: SegmentRange | None = None
        self._next = 0  # the entry that the next page begins with
        self._page = _Page(_NONE, _NONE, False, None)

    def of(self, offsets: Numbers) -> pa.Array:
        """Of rows in offset order: times, or numbers if they have no unit."""
        found, known = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        low = 0
        while low < len(offsets):
            page = self._page
            if not page.is_last and (not len(page.offsets) or page.offsets[-1] <= offsets[low]):
                page = self._page = self._client.run(self._fetched(int(offsets[low])))
            high = len(offsets) if page.is_last else int(np.searchsorted(offsets, page.offsets[-1]))
            behind = np.searchsorted(page.offsets, offsets[low:high], side="right")
            found[low:high] = np.append(page.before or 0, page.bounds)[behind]
            known[low:high] = (behind > 0) | (page.before is not None)
            low = high
        return self._as_column(found, known)

    async def _fetched(self, offset: int) -> _Page:
        """The next page; or, if that ends before the offset, one that doesn't."""
        before = int(self._page.bounds[-1]) if len(self._page.bounds) else self._page.before
        stores = stores_of(self._client.manager)
        if self._segment is None:
            asked = StreamCut(self._scope, self._piece.stream, {self._piece.segment_id: 0})
            ranges = await known_ranges(stores, asked)
            if not ranges:
                return _Page(_NONE, _NONE, True, None)  # it was truncated, so long ago that it is forgotten
            self._segment = ranges[0]
        else:
            page = await self._read(self._next, before, self._segment)
            if page.is_last or page.offsets[-1] > offset:
                return page
            before = int(page.bounds[-1])
        segment = self._segment

        def is_at_or_before(watermark: Watermark) -> bool:
            at = holds_from(watermark, segment)
            return at is not None and at <= offset

        last = await find_last(stores, self._scope, self._piece.stream, is_at_or_before)
        return await self._read(max(self._next, last), before, segment)

    async def _read(self, start: int, before: int | None, segment: SegmentRange) -> _Page:
        offsets, bounds, is_last = list[int](), list[int](), True
        stores = stores_of(self._client.manager)
        self._next = start
        async with aclosing(watermarks(stores, self._scope, self._piece.stream, start)) as found:
            async for end, watermark in found:
                at = holds_from(watermark, segment)
                if at is None or at >= self._piece.end:
                    break
                offsets.append(at)
                bounds.append(watermark.lower)
                self._next = end
                if len(offsets) == WATERMARKS_AT_ONCE:
                    is_last = False
                    break
        return _Page(np.array(offsets, np.int64), np.array(bounds, np.int64), is_last, before)

    def _as_column(self, found: Numbers, known: Numbers) -> pa.Array:
        if self._unit == NO_UNIT:
            return pa.array(found, mask=~known)
        per_s = PER_SECOND[self._unit]
        first, last = max(_EARLIEST_S * per_s, _INT64.min), min(_END_S * per_s - 1, _INT64.max)
        for wrong in found[known & ((found < first) | (found > last))]:
            raise InvalidArgumentError(
                f"the writers of {self._scope}/{self._piece.stream} noted the time {wrong}, which as {self._unit} "
                "since 1970 lies outside the years 1 to 9999: give the option 'eventTimeUnit' the unit that they note, "
                f"of {', '.join(PER_SECOND)}, or {NO_UNIT!r} to get the numbers"
            )
        times = found // (per_s // _PER_SECOND_US) if per_s > _PER_SECOND_US else found * (_PER_SECOND_US // per_s)
        return pa.array(times, pa.timestamp("us", "UTC"), mask=~known)


_NONE = np.empty(0, np.int64)


class RowTimes:
    """Those of a piece's rows, in ms since 1970, by the segment's time index."""

    def __init__(self, client: ScanClient, scope: str, piece: ScanRange) -> None:
        self._client = client
        segment = segment_name(scope, piece.stream, piece.segment_id)
        self._arrivals = Arrivals(stores_of(client.manager), segment, piece.end)

    def of(self, offsets: Numbers) -> pa.Array:
        """Of rows in offset order; null where the index doesn't reach: in bytes that a version without it took, or that
        were truncated since."""
        told = self._client.run(self._arrivals.of(offsets))
        if told is None:
            raise InvalidArgumentError("the column 'append_time' is one that this server is too old to tell")
        found, _ = told
        valid = np.packbits(found >= 0, bitorder="little")  # pa.array would import pandas, as in `int_array`
        return pa.Array.from_buffers(pa.timestamp("ms"), len(found), [pa.py_buffer(valid), pa.py_buffer(found)])


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
_BATCH_ROWS, _BATCH_BYTES = 20_000, MIB  # small blocks are joined up to one of these
_MAX_ROWS = 50_000
_MAX_REPEATED_BYTES = 16 * MIB  # of events that are beside each of their rows
_Block = EventBlock | EventPlaces  # the latter where no column needs the bytes
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


class EventSource(Protocol):
    """Where a piece's events come from; both are to be iterated over in the client's thread."""

    def blocks(self, piece: ScanRange, /) -> AsyncIterator[EventBlock]: ...

    def places(self, piece: ScanRange, /) -> AsyncIterator[EventPlaces | EventBlock]:
        """Where they lie, with the same errors."""


class ServerSource:
    def __init__(self, wanted: ScanRequest, client: ScanClient) -> None:
        self._wanted, self._stores = wanted, stores_of(client.manager)

    def blocks(self, piece: ScanRange) -> AsyncIterator[EventBlock]:
        return read_segment_range(self._stores, self._name(piece), piece.start, piece.end, self._wanted.on_damage)

    def places(self, piece: ScanRange) -> AsyncIterator[EventPlaces | EventBlock]:
        return event_places(self._stores, self._name(piece), piece.start, piece.end, self._wanted.on_damage)

    def _name(self, piece: ScanRange) -> str:
        return segment_name(self._wanted.scope, piece.stream, piece.segment_id)


def read_rows(
    wanted: ScanRequest, client: ScanClient, pieces: Iterable[ScanRange], source: EventSource
) -> Iterator[pa.RecordBatch]:
    constant: dict[str, pa.Array] = {}  # the scope and stream columns: as long as the longest batch, to be sliced
    has_events = any(name in wanted.columns for name in NEED_EVENTS)
    stream = parser = None
    for piece in pieces:
        if piece.stream != stream:
            stream = piece.stream
            names = {"scope": wanted.scope, "stream": stream}
            # only if asked for: the first scalar has PyArrow import pandas, where that is installed
            asked = {name: text for name, text in names.items() if name in wanted.columns}
            constant = {name: pa.repeat(pa.scalar(text), _MAX_ROWS) for name, text in asked.items()}
            parser = _parser_of(wanted, client, stream)
        made = _Batches(wanted, client, piece, constant, parser)
        found: AsyncIterator[_Block] = source.blocks(piece) if has_events else source.places(piece)
        for held in _held(client.thread.each(found)):
            yield from made.of(held)


def _held(blocks: Iterator[_Block]) -> Iterator[list[_Block]]:
    """Blocks that make a batch together. A large one is a batch alone, though an event that lay across two pieces of a
    chunk came before it: a batch of one row is sooner read than the large block copied behind it."""
    held: list[_Block] = []
    rows = size = 0
    for block in blocks:
        is_large = len(block) >= _BATCH_ROWS or block.size_bytes >= _BATCH_BYTES
        if held and is_large:
            yield held
            held, rows, size = [], 0, 0
        held.append(block)
        rows += len(block)
        size += block.size_bytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield held
            held, rows, size = [], 0, 0
    if held:
        yield held


def _parser_of(wanted: ScanRequest, client: ScanClient, stream: str) -> ValueParser | None:
    if wanted.target is None:
        return None
    from nadi.client.values.parser import ValueParser  # and the serializers: most reads do without

    schemas = client.manager.schemas(wanted.scope, stream)
    return ValueParser(schemas, client.run, f"{wanted.scope}/{stream}", wanted.target)


def arrow_schema(wanted: ScanRequest) -> pa.Schema:
    value = {} if wanted.target is None else {VALUE: plain(wanted.target.kind)}
    number = {EVENT_TIME: pa.int64()} if wanted.event_time_unit == NO_UNIT else {}
    return pa.schema([(name, (TYPES | value | number)[name]) for name in wanted.columns])


class _Batches:
    def __init__(
        self,
        wanted: ScanRequest,
        client: ScanClient,
        piece: ScanRange,
        constant: dict[str, pa.Array],
        parser: ValueParser | None,
    ) -> None:
        self._piece, self._constant, self._parser = piece, constant, parser
        self._schema = arrow_schema(wanted)
        names, scope, unit = wanted.columns, wanted.scope, wanted.event_time_unit
        self._append_times = RowTimes(client, scope, piece) if APPEND_TIME in names else None
        self._event_times = EventTimes(client, scope, piece, unit) if EVENT_TIME in names else None
        is_placed = any(name in wanted.columns for name in POSITIONS)
        self._texts = PositionTexts(wanted.scope, piece) if is_placed else None

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
        for high in _borders(total, rows, columns.get("event")):
            count = high - low
            if rows is None:
                some = {name: column.slice(low, count) for name, column in columns.items()}
            else:
                mine = pa.array(rows[low:high])
                some = {name: column.take(mine) for name, column in columns.items() if name != "value"}
                some["value"] = columns["value"].slice(low, count)
            some |= {name: column.slice(0, count) for name, column in self._constant.items()}
            some["segment_id"] = int_array(np.full(count, self._piece.segment_id, np.int64))
            yield pa.RecordBatch.from_arrays([some[name] for name in self._schema.names], schema=self._schema)
            low = high

    def _positions(self, texts: PositionTexts, offsets: _Numbers, blocks: Sequence[_Block]) -> dict[str, pa.Array]:
        ends = np.concatenate([[*block.offsets()[1:], block.offset + block.size_bytes] for block in blocks])
        before = texts.of(offsets.tolist())
        if np.array_equal(ends[:-1], offsets[1:]):  # nothing was left out: one row's cut is the next one's
            after = [*before[1:], *texts.of([int(ends[-1])])]
        else:
            after = texts.of(ends.tolist())
        return {"position_before": pa.array(before, pa.string()), "position": pa.array(after, pa.string())}


def _borders(total: int, rows: _Numbers | None, events: pa.Array | None) -> Iterator[int]:
    """Where batches end. rows: the event of each row, if an event has any number of them."""
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


# --- what is read, and whatever has batches of it to offer as Arrow's C stream ---------------------------------


def unnested_schema(made: pa.Schema) -> pa.Schema:
    """The columns with the fields in place of the value. InvalidArgumentError where there are none, or where two
    columns had one name.

    >>> unnested_schema(pa.schema({"value": pa.struct({"wh": pa.int64()}), "offset": pa.int64()})).names
    ['wh', 'offset']
    """
    value = made.field(VALUE)
    if not pa.types.is_struct(value.type):
        raise InvalidArgumentError(f"unnest has no effect on values that are {value.type}, and have no fields")
    fields: list[pa.Field] = []
    for column in made:
        fields += list(value.type) if column.name == VALUE else [column]
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"the values have a field {twice!r}, as is a column called: leave that out of columns, or don't unnest"
        )
    return pa.schema(fields)


def unnested(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with those columns; where a value is null, its fields are."""
    columns: list[pa.Array] = []
    for name in batch.schema.names:
        column = batch.column(name)
        columns += column.flatten() if name == VALUE else [column]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class ScanRows:
    """What is read of pieces, as `pieces.Wanted` has it; and whether the fields of values are columns of their own."""

    scope: str
    columns: tuple[str, ...]
    event_time_unit: str
    target: ReadTarget | None
    on_damage: OnDamage
    is_unnested: bool

    @property
    def schema(self) -> pa.Schema:
        made = arrow_schema(self)
        return unnested_schema(made) if self.is_unnested else made

    def batches(self, client: ScanClient, pieces: Iterable[ScanRange]) -> Iterator[pa.RecordBatch]:
        with why_missing(client):
            for batch in read_rows(self, client, pieces, ServerSource(self, client)):
                yield unnested(batch, self.schema) if self.is_unnested else batch

    def blocks(self, client: ScanClient, pieces: Iterable[ScanRange]) -> Iterator[tuple[int, EventBlock]]:
        """Segments and blocks of the events themselves, one piece after the other."""
        source = ServerSource(self, client)
        with why_missing(client):
            for piece in pieces:
                for block in client.thread.each(source.blocks(piece)):
                    yield piece.segment_id, block


@contextmanager
def why_missing(client: ScanClient) -> Iterator[None]:
    """What became of a segment that its store doesn't have: it was truncated away, or deleted with its stream."""
    try:
        yield
    except SegmentNotFoundError as error:
        raise client.run(what_became_of(stores_of(client.manager), error.segment)) from None


class Readable:
    """What has batches: read anew each time that one asks for them."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema."""
        raise NotImplementedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, a batch at a time: each segment's in order, and each key's."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)
