"""Avro, by fastavro: each event under the schema that it names, resolved to the one that is read.

Where nothing has to be resolved, and the schema is plain, a batch is read at once (`avro_blocks`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa

from nadi.client.serializers.avro import Avro, parsed_schema
from nadi.client.serializers.avro_limits import limits
from nadi.client.values.avro_blocks import block_reader
from nadi.client.values.columns import Decoded, decoded, native
from nadi.client.values.types import of_avro


def type_of(definition: bytes) -> pa.DataType:
    """The Arrow type of a stored schema."""
    return of_avro(fastavro.parse_schema(json.loads(definition)))


def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
    """What keeps the one definition from reading what the other writes."""
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
    """What makes an event of each row."""
    serializer = Avro(definition.decode())
    return lambda values: [serializer.serialize(native(value, kind)) for value in values.to_pylist()]
