"""Arrow: an event is one record batch; a single row is a batch of one row.

The event holds the batch's IPC message without its schema, which the store keeps. Columns are read by name:
those the reader doesn't know are left out, those the writer didn't have are null, and numbers, decimals and
strings are widened if no value can change. Views, dictionaries and runs are written as plain texts, bytes, lists and
values (`arrow_columns`), and read as such. Many rows per event make a stream small and quick to read;
if each row has its own routing key, write it as its own event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from nadi.client.control.arguments import checked
from nadi.client.serializers.arrow_columns import ordinary, ordinary_schema, plain
from nadi.client.serializers.arrow_limits import check_batch, has_free_values
from nadi.errors import InvalidArgumentError, SerializationError


@checked(without=("serialize", "deserialize", "decoder", "incompatibilities"))
class Arrow:
    """RecordBatches of one schema; `schema` is that of the batches that are read."""

    schema_format = "arrow"

    def __init__(self, schema: pa.Schema) -> None:
        names = schema.names
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"columns are read by name, and one of {names} is there twice: rename it")
        for field in schema:
            plain(field.type, f"column {field.name!r}", "no scan could read it, so cast it first, or leave it out")
        self.schema = ordinary_schema(schema)
        self.definition: bytes = self.schema.serialize().to_pybytes()
        self._has_free = has_free_values(pa.struct(list(self.schema)))

    def serialize(self, value: pa.RecordBatch) -> bytes:
        if not isinstance(value, pa.RecordBatch):
            raise SerializationError(
                f"a value is a RecordBatch here, not {type(value).__qualname__}: take Table.to_batches(), or "
                "RecordBatch.from_pylist for rows"
            )
        given = ordinary_schema(value.schema)
        if not given.equals(self.schema):
            raise SerializationError(f"the batch has the columns {_columns(value.schema)}, not {_columns(self.schema)}")
        if not given.equals(value.schema):
            value = pa.RecordBatch.from_arrays([*map(ordinary, value.columns)], schema=self.schema)
        for field, column in zip(self.schema, value.columns, strict=True):
            if column.null_count and not field.nullable:
                raise SerializationError(f"column {field.name!r} has nulls and is declared without: drop those rows")
        data: bytes = value.serialize().to_pybytes()
        if self._has_free:
            try:
                check_batch(data, has_free=True)
            except ValueError as error:
                raise SerializationError(
                    f"readers limit rows that have no bytes ({error}): write fewer rows in an event"
                ) from error
        return data

    def deserialize(self, data: bytes) -> pa.RecordBatch:
        return _read(data, self.schema, has_free=self._has_free)

    def decoder(self, written: bytes) -> Callable[[bytes], pa.RecordBatch]:
        if written == self.definition:
            return self.deserialize
        writer, own = schema_of(written), self.schema
        has_free = has_free_values(pa.struct(list(writer)))
        return lambda data: resolved(_read(data, writer, has_free=has_free), own)

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        return _differences(schema_of(reader), schema_of(writer), "")


def schema_of(definition: bytes) -> pa.Schema:
    """SerializationError for one that no `Arrow` has made."""
    schema = pa.ipc.read_schema(pa.py_buffer(definition))
    if not ordinary_schema(schema).equals(schema):
        raise SerializationError(f"the stored schema has columns that nadi doesn't write so: {_columns(schema)}")
    return schema


def _read(data: bytes, schema: pa.Schema, *, has_free: bool) -> pa.RecordBatch:
    try:
        check_batch(data, has_free=has_free)
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate()
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise SerializationError(f"the event is no Arrow record batch: {error}") from error
    return batch


def resolved(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
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
    known = [column.type.field(index).name for index in range(column.type.num_fields)]
    fields = [kind.field(index) for index in range(kind.num_fields)]
    children = [
        _cast(column.field(field.name), field.type) if field.name in known else pa.nulls(len(column), field.type)
        for field in fields
    ]
    if not fields:
        return pa.array([{} if there else None for there in column.is_valid().to_pylist()], kind)
    return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())


def _differences(reader: Any, writer: Any, path: str) -> list[str]:
    """The differences between two schemas, or two struct types."""
    written = {field.name: field for field in _fields(writer)}
    found: list[str] = []
    for field in _fields(reader):
        name = f"{path}{field.name}"
        other = written.get(field.name)
        if other is None:
            if not field.nullable:
                found.append(f"column {name!r} takes no nulls and was not written")
        elif other.nullable and not field.nullable:
            found.append(f"column {name!r} takes no nulls and was written with them")
        elif field.type == other.type:
            continue
        elif pa.types.is_struct(field.type) and pa.types.is_struct(other.type):
            found += _differences(field.type, other.type, f"{name}.")
        elif not _widens(other.type, field.type):
            found.append(f"column {name!r} is {field.type} where {other.type} was written")
    return found


def _fields(schema: Any) -> list[pa.Field]:
    if isinstance(schema, pa.Schema):
        return list(schema)
    return [schema.field(index) for index in range(schema.num_fields)]


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of `old` is also a value of `new`; times and nested types have to be equal."""
    kinds = pa.types
    if kinds.is_null(old):
        return True
    if kinds.is_integer(old) and kinds.is_integer(new):
        if kinds.is_signed_integer(old) == kinds.is_signed_integer(new):
            return bool(new.bit_width >= old.bit_width)
        return bool(kinds.is_signed_integer(new) and new.bit_width > old.bit_width)
    if kinds.is_integer(old) and kinds.is_floating(new):
        return bool(
            old.bit_width < new.bit_width and new.bit_width > 16
        )  # 32 bits of a double's 53, 16 of a float's 24
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
