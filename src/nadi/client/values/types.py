"""Schemas of each format as Arrow types.

The Arrow type of a schema says how its values are made into a column: a field that isn't nullable has to be there, one
with a default is that where it wasn't written, integers for a timestamp count its unit, and JSON's type stands for
what Spark has no type for (unions of several types, types that contain themselves), which comes as the text of its
JSON. What such a column is in Arrow and in Spark, `serializers.arrow_columns.plain` says.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from nadi.naming import PER_SECOND

DEFAULT = b"default"  # in the metadata of a field that has one: as JSON, unless the format's library knows it
ABSENT = b"absent"  # in the metadata of a field that is left out where it would be null
SECONDS = pa.timestamp("s", "UTC")  # of documents: ISO 8601, or a number of seconds since 1970
LOCAL_SECONDS = pa.timestamp("s")
COUNTED = {unit: pa.timestamp(unit, "+00:00") for unit in PER_SECOND}  # of documents whose schema names the unit
JSON = pa.opaque(pa.string(), "json", "nadi")
UUID_TEXT = pa.opaque(pa.string(), "text", "nadi")  # of Avro: what `str` makes of one


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
