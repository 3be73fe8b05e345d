"""Segments to Arrow batches, without a Python object for each event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from nadi.client.manager.streams import stores_of
from nadi.client.reading.event_places import event_places
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.scan.appended import AppendTimes
from nadi.client.scan.connection import Client
from nadi.client.scan.event_times import EventTimes
from nadi.client.scan.pieces import Piece, Wanted
from nadi.client.scan.positions import PositionTexts
from nadi.client.serializers.arrow_columns import plain
from nadi.limits import MIB
from nadi.model.event import EventBlock, EventPlaces, int_array
from nadi.naming import APPEND_TIME, EVENT_TIME, NEED_EVENTS, NO_UNIT, POSITIONS, VALUE, segment_name

if TYPE_CHECKING:
    from nadi.client.values.parser import ValueParser

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


class Source(Protocol):
    """Where a piece's events come from; both are to be iterated over in the client's thread."""

    def blocks(self, piece: Piece, /) -> AsyncIterator[EventBlock]: ...

    def places(self, piece: Piece, /) -> AsyncIterator[EventPlaces | EventBlock]:
        """Where they lie, with the same errors."""


class Server:
    """They come from the server."""

    def __init__(self, wanted: Wanted, client: Client) -> None:
        self._wanted, self._stores = wanted, stores_of(client.manager)

    def blocks(self, piece: Piece) -> AsyncIterator[EventBlock]:
        return read_segment_range(self._stores, self._name(piece), piece.start, piece.end, self._wanted.on_damage)

    def places(self, piece: Piece) -> AsyncIterator[EventPlaces | EventBlock]:
        return event_places(self._stores, self._name(piece), piece.start, piece.end, self._wanted.on_damage)

    def _name(self, piece: Piece) -> str:
        return segment_name(self._wanted.scope, piece.stream, piece.segment_id)


def read_rows(wanted: Wanted, client: Client, pieces: Iterable[Piece], source: Source) -> Iterator[pa.RecordBatch]:
    """Yield the events of the pieces, one piece after the other, each in offset order."""
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


def _parser_of(wanted: Wanted, client: Client, stream: str) -> ValueParser | None:
    if wanted.target is None:
        return None
    from nadi.client.values.parser import ValueParser  # and the serializers: most reads do without

    schemas = client.manager.schemas(wanted.scope, stream)
    return ValueParser(schemas, client.run, f"{wanted.scope}/{stream}", wanted.target)


def arrow_schema(wanted: Wanted) -> pa.Schema:
    """The columns of the read."""
    value = {} if wanted.target is None else {VALUE: plain(wanted.target.kind)}
    number = {EVENT_TIME: pa.int64()} if wanted.event_time_unit == NO_UNIT else {}
    return pa.schema([(name, (TYPES | value | number)[name]) for name in wanted.columns])


class _Batches:
    """The columns of one piece's rows."""

    def __init__(
        self,
        wanted: Wanted,
        client: Client,
        piece: Piece,
        constant: dict[str, pa.Array],
        parser: ValueParser | None,
    ) -> None:
        self._piece, self._constant, self._parser = piece, constant, parser
        self._schema = arrow_schema(wanted)
        names, scope, unit = wanted.columns, wanted.scope, wanted.event_time_unit
        self._append_times = AppendTimes(client, scope, piece) if APPEND_TIME in names else None
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
