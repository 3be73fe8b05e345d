"""Convert Avro events to columns with fastavro, each event resolved from the schema it names to the reader's.

If nothing has to be resolved and the schema is plain, `block_reader` reads a whole batch with numpy, field by field for
all events, ten times as fast. It handles records of plain fields, nullable or not, and nested records. Other schemas,
and batches with anything unexpected, are left to fastavro, event by event, which identifies the wrong events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from nadi.client.serializers.arrow_columns import cast, plain
from nadi.client.serializers.avro import Avro, Schema, Type
from nadi.client.serializers.columns import MISFITS, Decoded, check_taken, decoded, native
from nadi.client.serializers.types import ABSENT, DEFAULT, JSON, UUID_TEXT, is_json, struct_of

incompatibilities = Avro.incompatibilities
Numbers = np.ndarray[Any, np.dtype[np.int64]]
_MAX_BYTES = (1 << 31) - 1  # of a block: Arrow counts the bytes of strings in 32 bits
_WIDTHS = {"float": (4, "<f4"), "double": (8, "<f8")}
_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("string", "uuid"): UUID_TEXT,
}


# --- types --------------------------------------------------------------------------------------------


def type_of(definition: bytes) -> pa.DataType:
    return _type(Schema(definition).root, ())


def _type(schema: Type, within: tuple[Type, ...]) -> pa.DataType:
    if schema in within:
        return JSON
    if schema.kind == "union":
        kinds = [_type(part, within) for part in schema.parts if part.kind != "null"]
        numbers = {pa.int32(), pa.int64()}, {pa.float32(), pa.float64()}
        if len(kinds) == 1:
            return kinds[0]
        return next((max(some, key=lambda kind: kind.bit_width) for some in numbers if set(kinds) == some), JSON)
    if schema.is_record:
        return struct_of(_field(field, part, (*within, schema)) for field, part in schema.fields)
    if schema.kind == "array":
        return pa.list_(pa.field("element", _type(schema.parts[0], within)))
    if schema.kind == "map":
        return pa.map_(pa.string(), _type(schema.parts[0], within))
    logical = schema.attributes.get("logicalType")
    if logical == "decimal" and schema.kind in ("bytes", "fixed"):
        precision, scale = schema.attributes["precision"], schema.attributes.get("scale", 0)
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(min(precision, 76), min(scale, 76))
    return _LOGICAL.get((schema.kind, str(logical)), _ARROW[schema.kind])


def _field(field: dict[str, Any], schema: Type, within: tuple[Type, ...]) -> pa.Field:
    takes_null = schema.kind == "null" or schema.null_branch is not None
    has_default = "default" in field
    notes = ({} if takes_null else {ABSENT: b""}) | ({DEFAULT: b""} if has_default else {})
    return pa.field(field["name"], _type(schema, within), takes_null or has_default, notes)


# --- whole batches ----------------------------------------------------------------------------------


class _UnexpectedError(Exception):
    """The batch has to be read by fastavro."""


@dataclass
class _EventBytes:
    """All events' bytes. position: of each event, the next byte; ends: of each event, its end."""

    text: bytes
    data: np.ndarray[Any, np.dtype[np.uint8]]
    position: Numbers
    ends: Numbers

    def longs(self, rows: Numbers) -> Numbers:
        """Read the next number of each of these events: seven bits per byte, the sign in the lowest bit."""
        at, ends = self.position[rows], self.ends[rows]
        numbers = np.zeros(len(rows), np.uint64)
        live = np.arange(len(rows))
        for shift in range(0, 70, 7):
            here = at[live]
            if (here >= ends[live]).any():
                raise _UnexpectedError
            byte = self.data[here]
            if shift == 63 and (byte > 1).any():
                raise _UnexpectedError
            numbers[live] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[live] += 1
            live = live[byte >= 0x80]
            if len(live) == 0:
                break
        self.position[rows] = at
        return (numbers >> np.uint64(1)).astype(np.int64) ^ -(numbers & np.uint64(1)).astype(np.int64)

    def skip(self, rows: Numbers, sizes: Numbers | int) -> Numbers:
        """Advance by these sizes; return the positions before."""
        start = self.position[rows]
        if np.any(np.asarray(sizes) < 0) or np.any(start + sizes > self.ends[rows]) or np.any(start + sizes < start):
            raise _UnexpectedError
        self.position[rows] = start + sizes
        return start

    def read_binary(self, rows: Numbers, sizes: Numbers | int) -> pa.Array:
        """Read the next bytes of each event, as binary."""
        start = self.skip(rows, sizes)
        if len(rows) == 0:
            return pa.array([], pa.binary())
        offsets = np.empty(2 * len(rows), np.int32)
        offsets[0::2], offsets[1::2] = start, start + sizes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.text)]
        both = pa.Array.from_buffers(pa.binary(), 2 * len(rows) - 1, buffers)
        return both.take(pa.array(np.arange(0, 2 * len(rows), 2)))


_Read = Callable[[_EventBytes, Numbers], pa.Array]  # of the events with these numbers


def block_reader(schema: Type, kind: pa.DataType) -> Callable[[Sequence[bytes]], pa.Array | None] | None:
    """Return a function that reads events into a column, or returns None for unexpected data; None if the schema isn't
    plain. schema: with plain times."""
    read = _reader(schema, kind)
    if read is None:
        return None

    def column(events: Sequence[bytes]) -> pa.Array | None:
        text = b"".join(events)
        if len(text) > _MAX_BYTES:
            return None
        ends = np.cumsum([len(event) for event in events], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(events) else ends
        block = _EventBytes(text, np.frombuffer(text, np.uint8), starts, ends)
        try:
            values = read(block, np.arange(len(events)))
        except (_UnexpectedError, *MISFITS):
            return None
        return values if np.array_equal(block.position, ends) else None

    return column


def _reader(schema: Type, kind: pa.DataType) -> _Read | None:
    if is_json(kind):
        return None
    if schema.kind == "union":
        return _nullable(schema, kind)
    if schema.kind != "record":
        return _leaf(schema, kind)
    reads = [_reader(part, field.type) for part, field in zip(schema.parts, kind, strict=True)]
    all_reads = [read for read in reads if read is not None]
    if len(all_reads) < len(reads):
        return None
    fields = list(plain(kind))
    return lambda block, rows: pa.StructArray.from_arrays([read(block, rows) for read in all_reads], fields=fields)


def _nullable(schema: Type, kind: pa.DataType) -> _Read | None:
    null = schema.null_branch
    if len(schema.parts) != 2 or null is None:
        return None
    read = _reader(schema.parts[1 - null], kind)
    if read is None:
        return None
    read_values = read

    def nullable(block: _EventBytes, rows: Numbers) -> pa.Array:
        branches = block.longs(rows)
        if ((branches != 0) & (branches != 1)).any():
            raise _UnexpectedError
        is_valid = branches != null
        values = read_values(block, rows[is_valid])
        if is_valid.all():
            return values
        return values.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))

    return nullable


def _leaf(schema: Type, kind: pa.DataType) -> _Read | None:
    name, plain_kind, types = schema.kind, plain(kind), pa.types
    if name in ("int", "long") and (types.is_integer(kind) or types.is_timestamp(kind) or types.is_date(kind)):
        number_kind = pa.int32() if name == "int" else pa.int64()

        def integers(block: _EventBytes, rows: Numbers) -> pa.Array:
            values = cast(pa.array(block.longs(rows)).cast(number_kind).cast(kind), plain_kind)
            check_taken(values)
            return values

        return integers
    if name in _WIDTHS:
        width, form = _WIDTHS[name]

        def floats(block: _EventBytes, rows: Numbers) -> pa.Array:
            start = block.skip(rows, width)
            return pa.array(block.data[start[:, None] + np.arange(width)].view(form)[:, 0], plain_kind)

        return floats
    if name in ("string", "bytes") and (types.is_string(kind) or types.is_binary(kind)):
        return lambda block, rows: block.read_binary(rows, block.longs(rows)).cast(plain_kind)
    if name == "fixed" and types.is_binary(kind):
        return lambda block, rows: block.read_binary(rows, schema.attributes["size"])
    if name == "boolean":

        def booleans(block: _EventBytes, rows: Numbers) -> pa.Array:
            flags = block.data[block.skip(rows, 1)]
            if (flags > 1).any():
                raise _UnexpectedError
            return pa.array(flags == 1)

        return booleans
    if name == "enum":
        symbols = pa.array(schema.attributes["symbols"], pa.string())

        def names(block: _EventBytes, rows: Numbers) -> pa.Array:
            numbers = block.longs(rows)
            if ((numbers < 0) | (numbers >= len(symbols))).any():
                raise _UnexpectedError
            return symbols.take(pa.array(numbers))

        return names
    return None


# --- columns ------------------------------------------------------------------------------------------


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    written = Schema(writer, plain_times=True)
    read = written.reader() if reader == writer else Schema(reader, plain_times=True).reader(written)
    one_by_one = partial(decoded, read=read, kind=kind, fields=_fields)
    block_column = block_reader(written.root, kind) if reader == writer else None
    if block_column is None:
        return one_by_one
    read_block = block_column

    def decode(events: Sequence[bytes]) -> Decoded:
        column = read_block(events)
        return one_by_one(events) if column is None else Decoded(column)

    return decode


def _fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    name = kind.field(number).name
    return [None if value is None else value[name] for value in values]


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    serializer = Avro(definition.decode())
    return lambda values: [serializer.serialize(native(value, kind)) for value in values.to_pylist()]
