"""msgspec structs with their schema kept in the store.

The stored definition is the JSON schema that msgspec generates for the type, and whether events are JSON or
msgpack. An event is read straight into the reader's own type: fields it doesn't know are dropped, fields the
writer didn't know get their defaults. A stream may switch from one encoding to the other: each event is read
in the encoding of the version it names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import inspect

from nadi.client.serializers.json_schema import differences
from nadi.client.serializers.plain import Json, Msgpack
from nadi.errors import InvalidArgumentError, SerializationError

T = TypeVar("T")
Encoding = Literal["json", "msgpack"]


class _Definition(msgspec.Struct, frozen=True):
    encoding: Encoding
    schema: dict[str, Any]


class Struct(Generic[T]):
    """Values of one msgspec struct (or dataclass, TypedDict, ...), as JSON or msgpack."""

    schema_format = "json-schema"

    def __init__(self, type: type[T], encoding: Encoding = "json") -> None:
        if encoding not in ("json", "msgpack"):
            raise InvalidArgumentError(f"structs are written as 'json' or 'msgpack', not {encoding!r}")
        self.type, self.encoding = type, encoding
        self._codec: Json[T] | Msgpack[T] = Json(type) if encoding == "json" else Msgpack(type)
        try:
            schema = precise_schema(type)
        except TypeError as error:
            raise InvalidArgumentError(f"no schema can be made of {type}: {error}") from error
        self.definition = json.dumps({"encoding": encoding, "schema": schema}, sort_keys=True).encode()

    def serialize(self, value: T) -> bytes:
        # msgspec only checks types when decoding; a value of another type would be noticed by the reader, too late
        if isinstance(self.type, type) and issubclass(self.type, msgspec.Struct) and not isinstance(value, self.type):
            raise SerializationError(
                f"a value is a {self.type.__qualname__} here, not {type(value).__qualname__}: make one of it first"
            )
        return self._codec.serialize(value)

    def deserialize(self, data: bytes) -> T:
        return self._codec.deserialize(data)

    def decoder(self, written: bytes) -> Callable[[bytes], T]:
        encoding = _parse(written).encoding
        if encoding == self.encoding:
            return self.deserialize
        return (Json(self.type) if encoding == "json" else Msgpack(self.type)).deserialize

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        return differences(_parse(reader).schema, _parse(writer).schema)


def _parse(definition: bytes) -> _Definition:
    return msgspec.json.decode(definition, type=_Definition)


def precise_schema(kind: Any) -> dict[str, Any]:
    """Return msgspec's JSON schema, with what it leaves out: times without a time zone and the types of dict keys.

    Without these a str and a datetime, or dict[str, int] and dict[int, int], would look the same.

    >>> from datetime import datetime
    >>> precise_schema(dict[int, datetime])
    {'type': 'object', 'additionalProperties': {'type': 'string', 'format': 'any-date-time'}, \
'propertyNames': {'format': 'int'}}
    """
    schema = msgspec.json.schema(kind)
    _Precision(schema.get("$defs", {})).add(inspect.type_info(kind), schema)
    return schema


class _Precision:
    """Walks a type and its schema side by side, each named type once."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._seen: set[str] = set()

    def add(self, kind: inspect.Type, schema: dict[str, Any]) -> None:
        if isinstance(kind, inspect.Metadata):
            return self.add(kind.type, schema)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name in self._seen:
                return None
            self._seen.add(name)
            schema = self._definitions[name]
        if isinstance(kind, inspect.UnionType):
            for member in kind.types:
                for branch in schema.get("anyOf", ()):
                    if self._may_be(member, branch):
                        self.add(member, branch)
        elif isinstance(kind, inspect.DateTimeType | inspect.TimeType):
            if "format" not in schema:
                name = "date-time" if isinstance(kind, inspect.DateTimeType) else "time"
                schema["format"] = f"{'local' if kind.tz is False else 'any'}-{name}"
        elif isinstance(kind, inspect.DictType):
            key = kind.key_type
            if not isinstance(key, inspect.StrType | inspect.AnyType):
                schema["propertyNames"] = {"format": type(key).__name__.removesuffix("Type").lower()}
            if isinstance(schema.get("additionalProperties"), dict):
                self.add(kind.value_type, schema["additionalProperties"])
        elif isinstance(kind, inspect.TupleType):
            for item, part in zip(kind.item_types, schema.get("prefixItems", ()), strict=False):
                self.add(item, part)
        elif isinstance(
            kind,
            inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType | inspect.CollectionType,
        ):
            if isinstance(schema.get("items"), dict):
                self.add(kind.item_type, schema["items"])
        else:
            for field, part in self._fields(kind, schema):
                self.add(field, part)
        return None

    def _fields(self, kind: inspect.Type, schema: dict[str, Any]) -> Iterator[tuple[inspect.Type, dict[str, Any]]]:
        fields = getattr(kind, "fields", ())
        if "prefixItems" in schema:
            skipped = len(schema["prefixItems"]) - len(fields)  # the tag of an array-like struct
            for field, part in zip(fields, schema["prefixItems"][skipped:], strict=True):
                yield field.type, part
        else:
            for field in fields:
                yield field.type, schema["properties"][field.encode_name]

    def _may_be(self, member: inspect.Type, branch: dict[str, Any]) -> bool:
        """Whether this branch of a union is the member's; a union has only one member per JSON type."""
        if isinstance(member, inspect.Metadata):
            member = member.type
        if "$ref" in branch:
            return _is_of(member, self._definitions[branch["$ref"].rpartition("/")[2]])
        if isinstance(member, inspect.DateTimeType | inspect.TimeType):
            return branch.get("type") == "string" and "format" not in branch
        if isinstance(member, inspect.DictType):
            return branch.get("type") == "object"
        return branch.get("type") == "array" and not hasattr(member, "fields")


def _is_of(member: inspect.Type, definition: dict[str, Any]) -> bool:
    """Whether a named type's definition is the member's: two types in one union have different tags."""
    if not hasattr(member, "fields"):
        return False
    names = {field.encode_name for field in member.fields}
    tag = getattr(member, "tag", None)
    if "prefixItems" in definition:
        parts = definition["prefixItems"]
        return len(parts) == len(names) + (tag is not None) and (tag is None or parts[0].get("enum") == [tag])
    properties = definition.get("properties", {})
    if tag is None:
        return bool(properties.keys() == names)
    tag_field = getattr(member, "tag_field", None)
    return bool(properties.keys() == names | {tag_field} and properties[tag_field].get("enum") == [tag])
