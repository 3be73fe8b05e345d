"""Arrow: an event is one record batch; a single row is a batch of one row.

The event holds the batch's IPC message without its schema, which the store keeps. Columns are matched by name: unknown
ones are dropped, missing ones are null, and numbers, decimals and strings are widened if no value can change. Views,
dictionaries and runs are written as plain strings, bytes, lists and values (`arrow_columns`), and read as such. Many
rows per event make a stream small and fast to read; rows with different routing keys need an event each.

`_check_batch` protects a reader's memory from small events that expand. A batch may be compressed, and some columns
take no bytes, such as those of nulls: the metadata states the expanded size, which is checked before decoding, for
compressed batches, and for all batches of a schema with such columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from nadi.client.control.arguments import checked
from nadi.client.serializers.arrow_columns import cast, ordinary, ordinary_schema, plain
from nadi.client.serializers.columns import MISFITS, Decoded, check_taken, reason
from nadi.errors import InvalidArgumentError, SerializationError

_MOST_TIMES = 256  # limit of the compression ratio: LZ4's maximum
_FREE_BYTES = 4096  # allowed in any case
_ROWS_A_BYTE = 8  # of booleans
_CONTINUED = 0xFFFFFFFF
_I64, _I32, _U32, _U16 = (struct.Struct(f"<{kind}").unpack_from for kind in "qiIH")
_UNREADABLE = (*MISFITS, OSError, EOFError)
_HEADER, _LENGTH, _NODES, _BUFFERS, _COMPRESSION = 2, 0, 1, 2, 3  # fields of a message, and of a batch within


@checked(without=("serialize", "deserialize", "decoder", "incompatibilities"))
class Arrow:
    """Record batches of one schema; readers get batches of `schema`."""

    schema_format = "arrow"

    def __init__(self, schema: pa.Schema) -> None:
        names = schema.names
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"columns are matched by name, but {names} has duplicates: rename one")
        for field in schema:
            plain(field.type, f"column {field.name!r}", "no scan could read it: cast or drop it")
        self.schema = ordinary_schema(schema)
        self.definition: bytes = self.schema.serialize().to_pybytes()
        self._has_free = _has_free_values(pa.struct(list(self.schema)))
        self._read = _reader(self.schema)

    def serialize(self, value: pa.RecordBatch) -> bytes:
        if not isinstance(value, pa.RecordBatch):
            raise SerializationError(
                f"expected a RecordBatch, not {type(value).__qualname__}: use Table.to_batches(), or "
                "RecordBatch.from_pylist for rows"
            )
        actual = ordinary_schema(value.schema)
        if not actual.equals(self.schema):
            raise SerializationError(f"the batch has the columns {_columns(value.schema)}, not {_columns(self.schema)}")
        if not actual.equals(value.schema):
            value = pa.RecordBatch.from_arrays([*map(ordinary, value.columns)], schema=self.schema)
        for field, column in zip(self.schema, value.columns, strict=True):
            if column.null_count and not field.nullable:
                raise SerializationError(f"column {field.name!r} has nulls but isn't nullable: drop those rows")
        data: bytes = value.serialize().to_pybytes()
        if self._has_free:
            try:
                _check_batch(data, has_free=True)
            except ValueError as error:
                raise SerializationError(
                    f"readers limit rows without bytes ({error}): write fewer rows per event"
                ) from error
        return data

    def deserialize(self, data: bytes) -> pa.RecordBatch:
        try:
            return self._read(data)
        except _UNREADABLE as error:
            raise SerializationError(f"the event isn't an Arrow record batch: {error}") from error

    def decoder(self, written: bytes) -> Callable[[bytes], pa.RecordBatch]:
        if written == self.definition:
            return self.deserialize
        read = Arrow(_schema_of(written)).deserialize
        return lambda data: _resolved(read(data), self.schema)

    @staticmethod
    def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
        return _differences(list(_schema_of(reader)), list(_schema_of(writer)), "")


def _schema_of(definition: bytes) -> pa.Schema:
    """Parse a definition; SerializationError for a schema that `Arrow` didn't write."""
    schema = pa.ipc.read_schema(pa.py_buffer(definition))
    if not ordinary_schema(schema).equals(schema):
        raise SerializationError(f"the stored schema has columns of types that nadi doesn't write: {_columns(schema)}")
    return schema


def _reader(schema: pa.Schema) -> Callable[[bytes], pa.RecordBatch]:
    """Return a function that reads an event, or raises one of _UNREADABLE."""
    has_free = _has_free_values(pa.struct(list(schema)))

    def read(event: bytes) -> pa.RecordBatch:
        _check_batch(event, has_free=has_free)
        batch = pa.ipc.read_record_batch(pa.py_buffer(event), schema)
        batch.validate()
        return batch

    return read


def _resolved(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        _cast(batch.column(field.name), field.type) if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if not pa.types.is_struct(kind):
        return column.cast(kind)
    if not kind.num_fields:
        return pa.array([{} if is_valid else None for is_valid in column.is_valid().to_pylist()], kind)
    known = {column.type.field(number).name for number in range(column.type.num_fields)}  # empty for a column of nulls
    children = [
        _cast(column.field(field.name), field.type) if field.name in known else pa.nulls(len(column), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


# --- compatibility ------------------------------------------------------------------------------------


def _differences(reader: Sequence[pa.Field], writer: Sequence[pa.Field], path: str) -> list[str]:
    written = {field.name: field for field in writer}
    problems: list[str] = []
    for field in reader:
        name = f"{path}{field.name}"
        other = written.get(field.name)
        if other is None:
            if not field.nullable:
                problems.append(f"column {name!r} isn't nullable and was not written")
        elif other.nullable and not field.nullable:
            problems.append(f"column {name!r} isn't nullable but was written as nullable")
        elif field.type == other.type:
            continue
        elif pa.types.is_struct(field.type) and pa.types.is_struct(other.type):
            problems += _differences(list(field.type), list(other.type), f"{name}.")
        elif not _widens(other.type, field.type):
            problems.append(f"column {name!r} is {field.type} where {other.type} was written")
    return problems


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of `old` is also a value of `new`; times and nested types have to be equal."""
    kinds = pa.types
    if kinds.is_null(old):
        return True
    if kinds.is_integer(old) and kinds.is_integer(new):
        if kinds.is_signed_integer(old) == kinds.is_signed_integer(new):
            return bool(new.bit_width >= old.bit_width)
        return bool(kinds.is_signed_integer(new) and new.bit_width > old.bit_width)
    if kinds.is_integer(old) and kinds.is_floating(new):
        # a double holds 53 bits exactly, a float 24
        return bool(old.bit_width < new.bit_width and new.bit_width > 16)
    if kinds.is_floating(old) and kinds.is_floating(new):
        return bool(new.bit_width >= old.bit_width)
    if kinds.is_decimal(old) and kinds.is_decimal(new):
        return bool(new.scale == old.scale and new.precision >= old.precision)
    if kinds.is_string(old):
        return bool(kinds.is_large_string(new) or kinds.is_binary(new) or kinds.is_large_binary(new))
    if kinds.is_binary(old):
        return bool(kinds.is_large_binary(new))
    return bool(kinds.is_large_string(old) and kinds.is_large_binary(new))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)


# --- columns ------------------------------------------------------------------------------------------


incompatibilities = Arrow.incompatibilities


def type_of(definition: bytes) -> pa.DataType:
    return pa.struct(list(_schema_of(definition)))


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    written, expected, plain_kind = _schema_of(writer), _schema_of(reader), plain(kind)
    read = _reader(written)

    def rows(batches: Sequence[pa.RecordBatch]) -> pa.Array:
        """Return all rows; full validation, as a wrong offset would read foreign memory."""
        combined = pa.Table.from_batches(batches, written).combine_chunks().to_batches()
        if not combined:
            return pa.nulls(0, plain_kind)
        combined[0].validate(full=True)
        values = cast(_resolved(combined[0], expected).to_struct_array(), plain_kind)
        check_taken(values)
        return values

    def decode(events: Sequence[bytes]) -> Decoded:
        batches: dict[int, pa.RecordBatch] = {}
        wrong: dict[int, str] = {}
        for number, event in enumerate(events):
            try:
                batches[number] = read(event)
            except _UNREADABLE as error:
                wrong[number] = f"it isn't an Arrow record batch: {reason(error)}"
        parts = []
        try:
            if not wrong:
                parts = [rows([*batches.values()])]
        except MISFITS:
            pass
        if not parts:  # event by event, to identify the wrong ones
            for number in range(len(events)):
                values = pa.nulls(1, plain_kind)
                if number in batches:
                    try:
                        values = rows([batches[number]])
                    except MISFITS as error:
                        wrong[number] = reason(error)
                parts.append(values)
        lengths = [1 if number in wrong else len(batches[number]) for number in range(len(events))]
        return Decoded(pa.concat_arrays(parts), np.repeat(np.arange(len(events)), lengths), wrong)

    return decode


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    serializer = Arrow(_schema_of(definition))

    def encode(values: pa.Array) -> list[bytes]:
        batch = _resolved(pa.RecordBatch.from_struct_array(values), serializer.schema)
        return [serializer.serialize(batch.slice(row, 1)) for row in range(len(batch))]

    return encode


# --- limits -------------------------------------------------------------------------------------------


def _has_free_values(kind: pa.DataType) -> bool:
    """Return whether values of the type, or nested in it, may take no bytes."""
    types = pa.types
    if types.is_null(kind):
        return True
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width == 0)
    if (types.is_fixed_size_list(kind) and kind.list_size == 0) or (types.is_struct(kind) and not kind.num_fields):
        return True
    return any(_has_free_values(kind.field(number).type) for number in range(kind.num_fields))


def _check_batch(event: bytes, *, has_free: bool) -> None:
    """Raise ValueError for a batch that expands too much; anything but a batch is left to Arrow. has_free: whether its
    schema has values without bytes."""
    try:
        begin = 8 if _U32(event)[0] == _CONTINUED else 4
        batch = _field(event, begin + _U32(event, begin)[0], _HEADER)
        if not batch:
            return
        batch += _U32(event, batch)[0]
        compression = _field(event, batch, _COMPRESSION)
        size = len(event)
        if compression:
            size = sum(_sizes(event, batch, begin + _I32(event, begin - 4)[0]))
            if size > _MOST_TIMES * len(event) + _FREE_BYTES:
                raise ValueError(f"its {len(event):,} bytes are compressed and expand to {size:,}")
        if has_free and any(rows > _ROWS_A_BYTE * size + _FREE_BYTES for rows in _rows(event, batch)):
            raise ValueError(f"it claims more rows than {size:,} bytes can hold")
    except (struct.error, IndexError):
        return


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a table's field, by the rules of FlatBuffers; 0 if it is absent."""
    vtable = table - _I32(data, table)[0]
    entry = 4 + 2 * number
    if _U16(data, vtable)[0] <= entry:
        return 0
    offset: int = _U16(data, vtable + entry)[0]
    return table + offset if offset else 0


def _pairs(data: bytes, batch: int, number: int) -> Iterator[tuple[int, int]]:
    vector = _field(data, batch, number)
    if vector:
        vector += _U32(data, vector)[0]
        for index in range(_U32(data, vector)[0]):
            at = vector + 4 + 16 * index
            yield _I64(data, at)[0], _I64(data, at + 8)[0]


def _sizes(data: bytes, batch: int, body: int) -> Iterator[int]:
    """Yield the expanded sizes of buffers: a buffer starts with its size, or -1 if it isn't compressed."""
    for offset, length in _pairs(data, batch, _BUFFERS):
        if length > 0:
            size = _I64(data, body + offset)[0]
            yield length if size == -1 else size if size >= 0 else 0


def _rows(data: bytes, batch: int) -> Iterator[int]:
    """Yield the number of rows of the batch, and of each column, nested ones included."""
    length = _field(data, batch, _LENGTH)
    yield _I64(data, length)[0] if length else 0
    for rows, _ in _pairs(data, batch, _NODES):
        yield rows
