"""What msgspec reads the documents of a stored JSON Schema as: as strict as the struct that the schema was made of, so
that whoever writes without that struct can tell what its readers would refuse.

>>> kind = type_of_schema({"type": "object", "properties": {"room": {"enum": ["A", "B"]}}, "required": ["room"]})
>>> msgspec.json.decode(b'{"room": "C"}', type=kind)
Traceback (most recent call last):
msgspec.ValidationError: Invalid enum value 'C' - at `$.room`
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

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
_PLAIN = {"integer": int, "number": float, "boolean": bool, "null": None}
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
    """The type; `Any` for those parts that msgspec has no single type for."""
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
        one = _type(branches[0], named, within)
        return one if one is Any or len(branches) == len(schema["anyOf"]) else one | None
    if "enum" in schema:
        values = schema["enum"]
        is_literal = all(isinstance(value, str | int | None) and not isinstance(value, bool) for value in values)
        return Literal[tuple(values)] if is_literal and values else Any
    found = _single(schema, named, within)
    limits = {_LIMITS[name]: value for name, value in schema.items() if name in _LIMITS}
    return found if found is Any or not limits else Annotated[found, msgspec.Meta(**limits)]


def _single(schema: dict[str, Any], named: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    kind = schema.get("type")
    if kind == "string":
        return bytes if schema.get("contentEncoding") == "base64" else _TEXTS.get(schema.get("format", ""), str)
    if kind == "array":
        return Any if "prefixItems" in schema else list[_type(schema.get("items"), named, within)]  # type: ignore[misc]
    if kind != "object":
        return _PLAIN.get(str(kind), Any)
    if "properties" not in schema:
        return dict[Any, _type(schema.get("additionalProperties"), named, within)]  # type: ignore[misc]
    needed = schema.get("required", ())
    fields: list[Any] = [
        (f"f{number}", found) if name in needed else (f"f{number}", found, msgspec.UNSET)
        for number, (name, found) in enumerate(
            (name, _type(one, named, within)) for name, one in schema["properties"].items()
        )
    ]
    names = {f"f{number}": name for number, name in enumerate(schema["properties"])}
    return msgspec.defstruct("Document", fields, rename=names, kw_only=True)
