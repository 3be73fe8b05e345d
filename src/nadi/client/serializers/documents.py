"""Convert JSON and msgpack events to columns with msgspec, each decoded into a struct of the fields that are read.

Types of fields are checked strictly; a missing field is null or its default, unless it is required.

`type_of_schema` returns a type as strict as the struct that the schema was generated from, so that a writer without
that struct notices events that readers would reject.

>>> kind = type_of_schema({"type": "object", "properties": {"room": {"enum": ["A", "B"]}}, "required": ["room"]})
>>> msgspec.json.decode(b'{"room": "C"}', type=kind)
Traceback (most recent call last):
msgspec.ValidationError: Invalid enum value 'C' - at `$.room`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa

from nadi.client.serializers.columns import Decoded, check_finite, check_taken, decoded, native
from nadi.client.serializers.structs import Encoding, Struct, parsed
from nadi.client.serializers.types import ABSENT, COUNTED, DEFAULT, JSON, LOCAL_SECONDS, SECONDS, is_json, struct_of
from nadi.model.json_events import with_whole_characters

incompatibilities = Struct.incompatibilities
_TEXTS = {
    "date-time": datetime,
    "any-date-time": datetime,
    "local-date-time": datetime,
    "date": date,
    "time": time,
    "any-time": time,
    "local-time": time,
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_PLAIN_TYPES = {"integer": int, "number": float, "boolean": bool, "null": None}
_LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
    "maxProperties": "max_length",
}


def type_of_schema(schema: Mapping[str, Any]) -> Any:
    """Return the type that msgspec decodes a stored JSON Schema's documents as; `Any` if it needs several types."""
    return _type(schema, schema.get("$defs", {}), ())


def _type(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if not isinstance(schema, dict):
        return Any
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Any if name in within else _type(named[name], named, (*within, name))
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        if len(branches) != 1:
            return Any
        branch = _type(branches[0], named, within)
        return branch if branch is Any or len(branches) == len(schema["anyOf"]) else branch | None
    if "enum" in schema:
        values = schema["enum"]
        is_literal = all(isinstance(value, str | int | None) and not isinstance(value, bool) for value in values)
        return Literal[tuple(values)] if is_literal and values else Any
    single = _single(schema, named, within)
    limits = {_LIMITS[name]: value for name, value in schema.items() if name in _LIMITS}
    return single if single is Any or not limits else Annotated[single, msgspec.Meta(**limits)]


def _single(schema: dict[str, Any], named: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    kind = schema.get("type")
    if kind == "string":
        return bytes if schema.get("contentEncoding") == "base64" else _TEXTS.get(schema.get("format", ""), str)
    if kind == "array":
        return Any if "prefixItems" in schema else list[_type(schema.get("items"), named, within)]  # type: ignore[misc]
    if kind != "object":
        return _PLAIN_TYPES.get(str(kind), Any)
    if "properties" not in schema:
        return dict[Any, _type(schema.get("additionalProperties"), named, within)]  # type: ignore[misc]
    required = schema.get("required", ())
    fields: list[Any] = [
        (f"f{number}", part) if name in required else (f"f{number}", part, msgspec.UNSET)
        for number, (name, part) in enumerate(
            (name, _type(part, named, within)) for name, part in schema["properties"].items()
        )
    ]
    names = {f"f{number}": name for number, name in enumerate(schema["properties"])}
    return msgspec.defstruct("Document", fields, rename=names, kw_only=True)


_ARROW_TIMES = {"date-time": SECONDS, "any-date-time": SECONDS, "local-date-time": LOCAL_SECONDS, "date": pa.date32()}
_ARROW_TYPES = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_KEYS = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
_PLAIN: list[tuple[Callable[[pa.DataType], bool], type]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_date, date),
    (pa.types.is_decimal, Decimal),
]


# --- types --------------------------------------------------------------------------------------------


def type_of(definition: bytes) -> pa.DataType:
    return arrow_type(parsed(definition).schema)


def arrow_type(schema: dict[str, Any]) -> pa.DataType:
    """Return the type of a JSON Schema's documents.

    >>> kind = arrow_type({"type": "object", "properties": {"wh": {"type": "integer"}, "note": {}}, "required": ["wh"]})
    >>> kind.field("wh").nullable, kind.field("note").nullable
    (False, True)
    """
    return _arrow_type(schema, schema.get("$defs", {}), ())


def _arrow_type(schema: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return JSON if name in within else _arrow_type(named[name], named, (*within, name))
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        kinds = {_arrow_type(branch, named, within) for branch in branches}
        if kinds == {pa.int64(), pa.float64()}:
            return pa.float64()
        return kinds.pop() if len(kinds) == 1 and len(branches) == 1 else JSON
    if "enum" in schema:
        kinds = {type(value) for value in schema["enum"] if value is not None}
        return {str: pa.string(), int: pa.int64()}.get(kinds.pop(), JSON) if len(kinds) == 1 else JSON
    kind = schema.get("type")
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return pa.binary()
        return _ARROW_TIMES.get(schema.get("format", ""), pa.string())
    if kind == "object":
        return _object(schema, named, within)
    if kind == "array" and "prefixItems" not in schema:
        items = schema.get("items", {})
        value = _arrow_type(items, named, within) if isinstance(items, dict) else JSON
        return pa.list_(pa.field("element", value, _takes_null(items, named)))
    return _ARROW_TYPES.get(kind or "", JSON)


def _object(schema: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    if "properties" in schema:
        required = schema.get("required", ())  # in the struct's order; the store sorts the others by name
        names = [*required, *sorted(schema["properties"].keys() - set(required))]
        return struct_of(
            pa.field(
                name,
                _arrow_type(part, named, within),
                _takes_null(part, named) or name not in required,
                ({DEFAULT: msgspec.json.encode(part["default"])} if part.get("default") is not None else {})
                | ({} if _takes_null(part, named) else {ABSENT: b""}),
            )
            for name, part in ((name, schema["properties"][name]) for name in names if name in schema["properties"])
        )
    values = schema.get("additionalProperties", {})
    key = schema.get("propertyNames", {}).get("format")
    if not isinstance(values, dict) or (key is not None and key not in _KEYS):
        return JSON
    value = pa.field("value", _arrow_type(values, named, within), _takes_null(values, named))
    return pa.map_(pa.string() if key is None else _KEYS[key], value)


def _takes_null(schema: Any, named: dict[str, Any]) -> bool:
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema:
        return _takes_null(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        return any(branch.get("type") == "null" for branch in schema["anyOf"])
    return schema.get("type") == "null" or None in schema.get("enum", ()) or not schema


# --- columns ------------------------------------------------------------------------------------------


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    """Return a function that decodes events in the writer's encoding; `kind` comes from the reader's schema."""
    encoding = parsed(writer).encoding
    python_type = _python_type(kind, encoding)
    if encoding == "msgpack":
        return partial(decoded, read=msgspec.msgpack.Decoder(python_type).decode, kind=kind, fields=_fields)
    read_text = msgspec.json.Decoder(python_type).decode
    return partial(decoded, read=lambda event: read_text(with_whole_characters(event)), kind=kind, fields=_fields)


def _fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    get = attrgetter(f"f{number}")
    try:
        return list(map(get, values))
    except AttributeError:  # some values are None
        return [None if value is None else get(value) for value in values]


def _python_type(kind: pa.DataType, encoding: Encoding) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return msgspec.defstruct(
            "Value",
            [(f"f{number}", *_field(field, encoding)) for number, field in enumerate(kind)],
            rename={f"f{number}": field.name for number, field in enumerate(kind)},
            kw_only=True,
            gc=False,
        )
    if types.is_list(kind):
        return list[_nullable(kind.value_field, encoding)]  # type: ignore[misc]
    if types.is_map(kind):
        return dict[_python_type(kind.key_type, encoding), _nullable(kind.item_field, encoding)]  # type: ignore[misc]
    if types.is_timestamp(kind):
        # unparsed: msgspec rounds to microseconds, up or down
        return str | int | float if encoding == "json" else str | int | float | msgspec.msgpack.Ext
    if types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    return Any if is_json(kind) else next(known for test, known in _PLAIN if test(kind))


def _nullable(field: pa.Field, encoding: Encoding) -> Any:
    kind = _python_type(field.type, encoding)
    return kind | None if field.nullable else kind


def _field(field: pa.Field, encoding: Encoding) -> tuple[Any, ...]:
    """Return the field's type, and its default unless it is required."""
    kind = _nullable(field, encoding)
    default = (field.metadata or {}).get(DEFAULT)
    if default is not None:
        return kind, msgspec.field(default_factory=partial(msgspec.json.decode, default, type=kind))
    return (kind, None) if field.nullable else (kind,)


def json_of(values: pa.Array, kind: pa.DataType) -> list[bytes]:
    """Return rows as JSON that decodes to the same values, without null fields; raises one of MISFITS, naming the
    column, for values that JSON can't represent. kind: the type that the documents are decoded as."""
    check_taken(values)
    check_finite(values)
    rows = (native(value, kind) for value in values.to_pylist())
    return [msgspec.json.encode({name: value for name, value in row.items() if value is not None}) for row in rows]


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    """Return a function that encodes each row as an event that the schema can read."""
    stored = parsed(definition)
    is_json_text = stored.encoding == "json"
    encode = (msgspec.json if is_json_text else msgspec.msgpack).Encoder().encode
    decoder_of = msgspec.json.Decoder if is_json_text else msgspec.msgpack.Decoder
    check = decoder_of(type_of_schema(stored.schema)).decode
    rows = _rows_of(kind)

    def encoded(values: pa.Array) -> list[bytes]:
        if is_json_text:
            check_finite(values)
        events = [*map(encode, rows(values))]
        if stored.schema:
            for event in events:
                check(event)
        return events

    return encoded


def _rows_of(kind: pa.DataType) -> Callable[[pa.Array], Iterable[Any]]:
    """Return a function like `native` for the rows of a column, faster for rows of plain values."""
    types = pa.types

    def rows(values: pa.Array) -> Iterable[Any]:
        return (native(value, kind) for value in values.to_pylist())

    if not types.is_struct(kind) or any(
        types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType) or field.type in COUNTED.values()
        for field in kind
    ):
        return rows
    names = [field.name for field in kind]
    never_null = [number for number, field in enumerate(kind) if not field.nullable or ABSENT in (field.metadata or {})]

    def plain_rows(values: pa.Array) -> Iterable[Any]:
        columns = values.flatten()
        has_all = [field.name for field in values.type] == names and not values.null_count
        if not has_all or any(columns[number].null_count for number in never_null):
            return rows(values)
        return (
            dict(zip(names, row, strict=True)) for row in zip(*(column.to_pylist() for column in columns), strict=True)
        )

    return plain_rows
