"""Schemas of each format as Arrow types.

The Arrow type of a schema says how its values are made into a column: a field that isn't nullable has to be there, one
with a default is that where it wasn't written, integers for a timestamp count its unit, and JSON's type stands for
what Spark has no type for (unions of several types, types that contain themselves), which comes as the text of its
JSON. What such a column is in Arrow and in Spark, `serializers.arrow_columns.plain` says.

>>> kind = of_json_schema({"type": "object", "properties": {"wh": {"type": "integer"}, "note": {}}, "required": ["wh"]})
>>> kind.field("wh").nullable, kind.field("note").nullable
(False, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from nadi.naming import PER_SECOND

DEFAULT = b"default"  # in the metadata of a field that has one: as JSON, unless the format's library knows it
ABSENT = b"absent"  # in the metadata of a field that is left out where it would be null
SECONDS = pa.timestamp("s", "UTC")  # of documents: ISO 8601, or a number of seconds since 1970
LOCAL_SECONDS = pa.timestamp("s")
COUNTED = {unit: pa.timestamp(unit, "+00:00") for unit in PER_SECOND}  # of documents whose schema names the unit
JSON = pa.opaque(pa.string(), "json", "nadi")
UUID_TEXT = pa.opaque(pa.string(), "text", "nadi")  # of Avro: what `str` makes of one
_TIMES = {"date-time": SECONDS, "any-date-time": SECONDS, "local-date-time": LOCAL_SECONDS, "date": pa.date32()}
_JSON_TYPES = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_KEYS = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def is_json(kind: pa.DataType) -> bool:
    """Whether values of that type come as the text of their JSON."""
    return bool(kind == JSON)


def is_uuid(kind: pa.DataType) -> bool:
    """Whether values of that type are the texts of Avro's UUIDs."""
    return bool(kind == UUID_TEXT)


def alike(fields: Iterable[pa.Field], before: Iterable[pa.Field] = ()) -> tuple[str, str] | None:
    """Two names beside each other that differ by case alone, which SQL can't tell apart: among the fields, or in one of
    them, or with one of those that were there before."""
    there = {field.name: field for field in before}
    known = {name.lower(): field for name, field in there.items()}
    seen: dict[str, str] = {}
    for field in fields:
        low = field.name.lower()
        other = there.get(field.name, known.get(low))
        name = seen.setdefault(low, field.name if other is None else other.name)
        if name != field.name:
            return name, field.name
        found = alike(_within(field.type), () if other is None else _within(other.type))
        if found is not None:
            return found
    return None


def _within(kind: pa.DataType) -> list[pa.Field]:
    types = pa.types
    if types.is_struct(kind):
        return list(kind)
    if types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return [pa.field("element", kind.value_type)] if types.is_list(kind) or types.is_large_list(kind) else []


def struct_of(fields: Iterable[pa.Field]) -> pa.DataType:
    found = list(fields)
    return pa.struct(found) if found else JSON


# --- JSON Schema --------------------------------------------------------------------------------------


def of_json_schema(schema: dict[str, Any]) -> pa.DataType:
    return _of_json(schema, schema.get("$defs", {}), ())


def _of_json(schema: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return JSON if name in within else _of_json(named[name], named, (*within, name))
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        kinds = {_of_json(branch, named, within) for branch in branches}
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
        return _TIMES.get(schema.get("format", ""), pa.string())
    if kind == "object":
        return _of_json_object(schema, named, within)
    if kind == "array" and "prefixItems" not in schema:
        items = schema.get("items", {})
        value = _of_json(items, named, within) if isinstance(items, dict) else JSON
        return pa.list_(pa.field("element", value, _takes_null(items, named)))
    return _JSON_TYPES.get(kind or "", JSON)


def _of_json_object(schema: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    if "properties" in schema:
        needed = schema.get("required", ())  # in the order of the struct; all else the store has by name
        names = [*needed, *sorted(schema["properties"].keys() - set(needed))]
        return struct_of(
            pa.field(
                name,
                _of_json(one, named, within),
                _takes_null(one, named) or name not in needed,
                ({DEFAULT: msgspec.json.encode(one["default"])} if one.get("default") is not None else {})
                | ({} if _takes_null(one, named) else {ABSENT: b""}),
            )
            for name, one in ((name, schema["properties"][name]) for name in names if name in schema["properties"])
        )
    more = schema.get("additionalProperties", {})
    key = schema.get("propertyNames", {}).get("format")
    if not isinstance(more, dict) or (key is not None and key not in _KEYS):
        return JSON
    value = pa.field("value", _of_json(more, named, within), _takes_null(more, named))
    return pa.map_(pa.string() if key is None else _KEYS[key], value)


def _takes_null(schema: Any, named: dict[str, Any]) -> bool:
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema:
        return _takes_null(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        return any(branch.get("type") == "null" for branch in schema["anyOf"])
    return schema.get("type") == "null" or None in schema.get("enum", ()) or not schema


# --- Protobuf -----------------------------------------------------------------------------------------

_PROTOBUF = {  # by the number of the type in descriptor.proto
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    14: pa.string(),  # an enum's names
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_KNOWN_MESSAGES = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
    "google.protobuf.BoolValue": pa.bool_(),
    "google.protobuf.Int32Value": pa.int32(),
    "google.protobuf.Int64Value": pa.int64(),
    "google.protobuf.UInt32Value": pa.uint32(),
    "google.protobuf.UInt64Value": pa.uint64(),
    "google.protobuf.FloatValue": pa.float32(),
    "google.protobuf.DoubleValue": pa.float64(),
    "google.protobuf.StringValue": pa.string(),
    "google.protobuf.BytesValue": pa.binary(),
    "google.protobuf.Struct": JSON,
    "google.protobuf.Value": JSON,
    "google.protobuf.ListValue": JSON,
}


def of_protobuf(descriptor: Any, within: tuple[str, ...] = ()) -> pa.DataType:
    """The type of a message type, its fields in the order of the descriptor."""
    name = descriptor.full_name
    if name in _KNOWN_MESSAGES:
        return _KNOWN_MESSAGES[name]
    if name in within:
        return JSON
    inner = (*within, name)
    return struct_of(
        pa.field(field.name, _of_protobuf_field(field, inner), not field.is_required) for field in descriptor.fields
    )


def _of_protobuf_field(field: Any, within: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (message.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_of_protobuf_single(key, within), _of_protobuf_single(value, within))
    single = _of_protobuf_single(field, within)
    return pa.list_(pa.field("element", single)) if field.is_repeated else single


def _of_protobuf_single(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        return of_protobuf(field.message_type, within)
    return _PROTOBUF[field.type]
