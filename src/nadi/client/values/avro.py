"""Avro, by fastavro: each event under the schema that it names, resolved to the one that is read.

Where nothing has to be resolved, and the schema is plain, a batch is read at once (`block_reader`): one field of all
of its events after the other, by numpy, ten times as fast as one event after the other.

For records of plain fields, nullable or not, and records within. Anything else, and every batch in which something is
odd, is left to fastavro, event by event, which then says what is wrong, and with which.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from nadi.client.serializers.arrow_columns import cast, plain
from nadi.client.serializers.avro import Avro, limits, parsed_schema
from nadi.client.values.columns import MISFITS, Decoded, check_taken, decoded, native
from nadi.client.values.types import is_json, of_avro

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_MAX_BYTES = (1 << 31) - 1  # of a block: Arrow counts the bytes of strings in 32 bits
_WIDTHS = {"float": (4, "<f4"), "double": (8, "<f8")}


class _Odd(Exception):
    """fastavro has to look at it."""


@dataclass
class _Block:
    """All events' bytes. at: how far each is read; ends: where each ends."""

    text: bytes
    data: np.ndarray[Any, np.dtype[np.uint8]]
    at: Numbers
    ends: Numbers

    def longs(self, rows: Numbers) -> Numbers:
        """The next number of each of these events: seven bits to a byte, the sign in the last."""
        at, ends = self.at[rows], self.ends[rows]
        found = np.zeros(len(rows), np.uint64)
        live = np.arange(len(rows))
        for shift in range(0, 70, 7):
            here = at[live]
            if (here >= ends[live]).any():
                raise _Odd
            byte = self.data[here]
            if shift == 63 and (byte > 1).any():
                raise _Odd
            found[live] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[live] += 1
            live = live[byte >= 0x80]
            if len(live) == 0:
                break
        self.at[rows] = at
        return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)

    def skip(self, rows: Numbers, sizes: Numbers | int) -> Numbers:
        """Go on by so many bytes; return where these begin."""
        start = self.at[rows]
        if np.any(np.asarray(sizes) < 0) or np.any(start + sizes > self.ends[rows]) or np.any(start + sizes < start):
            raise _Odd
        self.at[rows] = start + sizes
        return start

    def pieces(self, rows: Numbers, sizes: Numbers | int) -> pa.Array:
        """The next bytes of each, as binary."""
        start = self.skip(rows, sizes)
        if len(rows) == 0:
            return pa.array([], pa.binary())
        borders = np.empty(2 * len(rows), np.int32)
        borders[0::2], borders[1::2] = start, start + sizes
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self.text)]
        both = pa.Array.from_buffers(pa.binary(), 2 * len(rows) - 1, buffers)
        return both.take(pa.array(np.arange(0, 2 * len(rows), 2)))


_Read = Callable[[_Block, Numbers], pa.Array]  # of some of the events, by their numbers


def block_reader(schema: Any, kind: pa.DataType) -> Callable[[Sequence[bytes]], pa.Array | None] | None:
    """What reads events into a column, or returns None where something is odd; None if the schema isn't for it.
    schema: with plain timestamps, and full names."""
    read = _reader(schema, kind, {})
    if read is None:
        return None

    def column(events: Sequence[bytes]) -> pa.Array | None:
        text = b"".join(events)
        if len(text) > _MAX_BYTES:
            return None
        ends = np.cumsum([len(event) for event in events], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(events) else ends
        block = _Block(text, np.frombuffer(text, np.uint8), starts, ends)
        try:
            found = read(block, np.arange(len(events)))
        except (_Odd, *MISFITS):
            return None
        return found if np.array_equal(block.at, ends) else None

    return column


def _reader(schema: Any, kind: pa.DataType, named: dict[str, Any]) -> _Read | None:
    if is_json(kind):
        return None
    if isinstance(schema, list):
        return _nullable(schema, kind, named)
    if isinstance(schema, str):
        return _leaf(schema, {}, kind) if schema not in named else _reader(named[schema], kind, named)
    name = schema["type"]
    if not isinstance(name, str):
        return _reader(name, kind, named)
    if "name" in schema and name in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
    if name != "record":
        return _leaf(name, schema, kind)
    fields = schema["fields"]
    reads = [_reader(one["type"], kind.field(number).type, named) for number, one in enumerate(fields)]
    found = [read for read in reads if read is not None]
    if len(found) < len(fields):
        return None
    wanted = plain(kind)

    def record(block: _Block, rows: Numbers) -> pa.Array:
        parts = [read(block, rows) for read in found]
        return pa.StructArray.from_arrays(parts, fields=[*map(wanted.field, range(len(parts)))])

    return record


def _nullable(schema: list[Any], kind: pa.DataType, named: dict[str, Any]) -> _Read | None:
    if len(schema) != 2 or "null" not in schema:
        return None
    number = 1 - schema.index("null")
    inner = _reader(schema[number], kind, named)
    if inner is None:
        return None
    read = inner

    def nullable(block: _Block, rows: Numbers) -> pa.Array:
        branches = block.longs(rows)
        if ((branches != 0) & (branches != 1)).any():
            raise _Odd
        is_there = branches == number
        found = read(block, rows[is_there])
        if is_there.all():
            return found
        return found.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))

    return nullable


def _leaf(name: str, schema: Any, kind: pa.DataType) -> _Read | None:
    wanted, types = plain(kind), pa.types
    if name in ("int", "long") and (types.is_integer(kind) or types.is_timestamp(kind) or types.is_date(kind)):
        whole = pa.int32() if name == "int" else pa.int64()

        def integers(block: _Block, rows: Numbers) -> pa.Array:
            made = cast(pa.array(block.longs(rows)).cast(whole).cast(kind), wanted)
            check_taken(made)
            return made

        return integers
    if name in _WIDTHS:
        width, form = _WIDTHS[name]

        def floats(block: _Block, rows: Numbers) -> pa.Array:
            start = block.skip(rows, width)
            return pa.array(block.data[start[:, None] + np.arange(width)].view(form)[:, 0], wanted)

        return floats
    if name in ("string", "bytes") and (types.is_string(kind) or types.is_binary(kind)):
        return lambda block, rows: block.pieces(rows, block.longs(rows)).cast(wanted)
    if name == "fixed" and types.is_binary(kind):
        return lambda block, rows: block.pieces(rows, schema["size"])
    if name == "boolean":

        def booleans(block: _Block, rows: Numbers) -> pa.Array:
            found = block.data[block.skip(rows, 1)]
            if (found > 1).any():
                raise _Odd
            return pa.array(found == 1)

        return booleans
    if name == "enum":
        symbols = pa.array(schema["symbols"], pa.string())

        def names(block: _Block, rows: Numbers) -> pa.Array:
            found = block.longs(rows)
            if ((found < 0) | (found >= len(symbols))).any():
                raise _Odd
            return symbols.take(pa.array(found))

        return names
    return None


def type_of(definition: bytes) -> pa.DataType:
    return of_avro(fastavro.parse_schema(json.loads(definition)))


def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
    return Avro(reader.decode()).incompatibilities(reader, writer)


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    """What reads events of the writer's definition into the reader's."""
    written = _schema(writer)
    wanted = None if reader == writer else _schema(reader)
    most = limits(written)

    def read(event: bytes) -> Any:
        if most is not None:
            most(event)
        source = io.BytesIO(event)
        try:
            value = fastavro.schemaless_reader(source, written, wanted)
        except EOFError:
            raise ValueError("it ends within a value") from None
        if source.tell() != len(event):
            raise ValueError(f"it has {len(event) - source.tell()} bytes more than its Avro schema describes")
        return value

    one_by_one = partial(decoded, read=read, kind=kind, fields=_fields)
    block = None if wanted is not None else block_reader(written, kind)
    if block is None:
        return one_by_one
    at_once = block

    def decode(events: Sequence[bytes]) -> Decoded:
        column = at_once(events)
        return one_by_one(events) if column is None else Decoded(column)

    return decode


def _schema(definition: bytes) -> Any:
    return parsed_schema(_with_plain_times(json.loads(definition)))


def _with_plain_times(schema: Any) -> Any:
    """The schema with timestamps as the numbers that they are: a datetime for each would take longer than all else."""
    if isinstance(schema, list):
        return [_with_plain_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if str(schema.get("logicalType")).removeprefix("local-").startswith("timestamp-"):
        schema = {name: value for name, value in schema.items() if name != "logicalType"}
    parts = {name: _with_plain_times(schema[name]) for name in ("type", "items", "values") if name in schema}
    if "fields" in schema:
        parts["fields"] = [_with_plain_times(field) for field in schema["fields"]]
    return schema | parts


def _fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    name = kind.field(number).name
    return [None if value is None else value[name] for value in values]


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    serializer = Avro(definition.decode())
    return lambda values: [serializer.serialize(native(value, kind)) for value in values.to_pylist()]
