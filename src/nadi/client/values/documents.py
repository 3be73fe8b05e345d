"""JSON and msgpack, by msgspec: each event straight into a struct with the fields that are wanted, no others.

The types of fields are checked, strictly; what is missing is null, or its default, unless it has to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa

from nadi.client.serializers.json_schema import differences
from nadi.client.values.columns import Decoded, check_finite, check_taken, decoded, native
from nadi.client.values.document_types import type_of_schema
from nadi.client.values.types import DEFAULT, is_json, of_json_schema
from nadi.model.json_events import with_whole_characters

Encoding = Literal["json", "msgpack"]
_PLAIN: list[tuple[Callable[[pa.DataType], bool], type]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_date, date),
    (pa.types.is_decimal, Decimal),
]


class Definition(msgspec.Struct, frozen=True):
    """What the store keeps of a struct."""

    encoding: Encoding
    schema: dict[str, Any]


def parsed(definition: bytes) -> Definition:
    """What `Struct` stored."""
    return msgspec.json.decode(definition, type=Definition)


def type_of(definition: bytes) -> pa.DataType:
    """The Arrow type of a stored schema."""
    return of_json_schema(parsed(definition).schema)


def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
    """What keeps the one definition from reading what the other writes."""
    return differences(parsed(reader).schema, parsed(writer).schema)


def decoder(kind: pa.DataType, encoding: Encoding) -> Callable[[Sequence[bytes]], Decoded]:
    """What reads events in that encoding."""
    python_type = _python_type(kind, encoding)
    if encoding == "msgpack":
        return partial(decoded, read=msgspec.msgpack.Decoder(python_type).decode, kind=kind, fields=_fields)
    read_text = msgspec.json.Decoder(python_type).decode
    return partial(decoded, read=lambda event: read_text(with_whole_characters(event)), kind=kind, fields=_fields)


def _fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    get = attrgetter(f"f{number}")
    try:
        return list(map(get, values))
    except AttributeError:  # of None
        return [None if value is None else get(value) for value in values]


def _python_type(kind: pa.DataType, encoding: Encoding) -> Any:
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return msgspec.defstruct(
            "Value",
            [(f"f{number}", *_field(field, encoding)) for number, field in enumerate(fields)],
            rename={f"f{number}": field.name for number, field in enumerate(fields)},
            kw_only=True,
            gc=False,
        )
    if types.is_list(kind):
        return list[_nullable(kind.value_field, encoding)]  # type: ignore[misc]
    if types.is_map(kind):
        return dict[_python_type(kind.key_type, encoding), _nullable(kind.item_field, encoding)]  # type: ignore[misc]
    if types.is_timestamp(kind):
        # as it was written: msgspec rounds what is finer than a microsecond up or down
        return str | int | float if encoding == "json" else str | int | float | msgspec.msgpack.Ext
    if types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    return Any if is_json(kind) else next(found for test, found in _PLAIN if test(kind))


def _nullable(field: pa.Field, encoding: Encoding) -> Any:
    kind = _python_type(field.type, encoding)
    return kind | None if field.nullable else kind


def _field(field: pa.Field, encoding: Encoding) -> tuple[Any, ...]:
    """The field's type, and its default unless it has to be there."""
    kind = _nullable(field, encoding)
    default = (field.metadata or {}).get(DEFAULT)
    if default is not None:
        return kind, msgspec.field(default_factory=partial(msgspec.json.decode, default, type=kind))
    return (kind, None) if field.nullable else (kind,)


def json_of(values: pa.Array, kind: pa.DataType) -> list[bytes]:
    """Rows as JSON that is read as the same values again, without fields that are null; one of MISFITS, with the
    column, for what JSON hasn't. kind: what the documents are read as."""
    check_taken(values)
    check_finite(values)
    rows = (native(value, kind) for value in values.to_pylist())
    return [msgspec.json.encode({name: one for name, one in row.items() if one is not None}) for row in rows]


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    """What makes an event of each row, one that is read with the schema."""
    stored = parsed(definition)
    is_json_text = stored.encoding == "json"
    encode = (msgspec.json if is_json_text else msgspec.msgpack).encode
    check = (msgspec.json.Decoder if is_json_text else msgspec.msgpack.Decoder)(type_of_schema(stored.schema)).decode

    def encoded(values: pa.Array) -> list[bytes]:
        if is_json_text:
            check_finite(values)
        events = [encode(native(value, kind)) for value in values.to_pylist()]
        for event in events:
            check(event)
        return events

    return encoded
