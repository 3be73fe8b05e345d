"""msgspec structs with their schema kept in the store.

The stored definition is the JSON schema that msgspec generates for the type, and the encoding of events, JSON or
msgpack. An event is decoded directly into the reader's type: unknown fields are dropped, missing fields get their
defaults. A stream may switch encodings: each event is read in the encoding of the version it names.

`differences(reader, writer)` names each path at which the writer's type has values that the reader's rejects. It errs
on the safe side: an unknown keyword has to be equal on both sides, and each union branch of the writer has to fit a
single branch of the reader.

>>> old = {"type": "object", "properties": {"wh": {"type": "integer"}}, "required": ["wh"]}
>>> new = {"type": "object", "properties": {"wh": {"type": "string"}, "at": {"type": "integer"}}, "required": ["at"]}
>>> differences(new, old)
['$.wh: string is read where integer was written', '$.at: is required but not always written']
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from nadi.client.serializers.plain import Json, Msgpack
from nadi.errors import InvalidArgumentError, SerializationError

Schema: TypeAlias = dict[str, Any]

_NOTES = {"title", "description", "default", "examples", "deprecated", "$defs", "$ref", "discriminator", "uniqueItems"}
_STRUCTURE = {
    "type", "anyOf", "enum", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems",
    "maxItems",
}  # fmt: skip
_ANY: Schema = {}
_NOTHING: Schema = {"enum": []}
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxProperties"}


def differences(reader: Schema, writer: Schema) -> list[str]:
    """Return where the reader's schema rejects values of the writer's, with the path of each problem."""
    return _SchemaComparison(reader, writer).compare(reader, writer, "$")


class _SchemaComparison:
    """A comparison of two schemas; pairs in progress count as compatible, so that recursive types end."""

    def __init__(self, reader: Schema, writer: Schema) -> None:
        self._reader_types: dict[str, Schema] = reader.get("$defs", {})
        self._writer_types: dict[str, Schema] = writer.get("$defs", {})
        self._pairs: set[tuple[int, int]] = set()  # by identity, which is unique while both schemas live

    def compare(self, reader: Any, writer: Any, path: str) -> list[str]:
        reader, writer = _resolve(reader, self._reader_types), _resolve(writer, self._writer_types)
        pair = (id(reader), id(writer))
        if pair in self._pairs:
            return []
        before = set(self._pairs)
        self._pairs.add(pair)
        problems = self._compare(reader, writer, path)
        if problems:
            self._pairs = before  # results of nested pairs may depend on this pair
        return problems

    def _compare(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        if not reader.keys() - _NOTES:
            return []  # any value
        if "anyOf" in writer:
            return [line for branch in writer["anyOf"] for line in self.compare(reader, branch, path)]
        if "anyOf" in reader:
            return self._compare_branches(reader["anyOf"], writer, path)
        if "enum" in writer:
            return [
                f"{path}: {value!r} is written but not read" for value in writer["enum"] if not _accepts(reader, value)
            ]
        if "enum" in reader:
            return [f"{path}: only {reader['enum']} can be read, {_name(writer)} was written"]
        expected, actual = reader.get("type"), writer.get("type")
        if expected != actual and (expected, actual) != ("number", "integer"):
            return [f"{path}: {expected} is read where {_name(writer)} was written"]
        problems = _constraints(reader, writer, path)
        if expected == "object":
            problems += self._compare_objects(reader, writer, path)
        elif expected == "array":
            problems += self._compare_arrays(reader, writer, path)
        return problems

    def _compare_branches(self, branches: list[Any], writer: Schema, path: str) -> list[str]:
        if "enum" in writer:  # its values may be of several branches
            return [
                f"{path}: {value!r} is written but not read"
                for value in writer["enum"]
                if not any(_accepts(_resolve(branch, self._reader_types), value) for branch in branches)
            ]
        tried: list[list[str]] = []
        for branch in branches:
            problems = self.compare(branch, writer, path)
            if not problems:
                return []
            if _resolve(branch, self._reader_types).get("type") == writer.get("type"):
                tried.append(problems)
        return min(tried, key=len, default=[f"{path}: {_name(writer)} was written, which no branch reads"])

    def _compare_objects(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        read: Schema = reader.get("properties", {})
        written: Schema = writer.get("properties", {})
        # a struct writes its fields only; a dict writes any
        others = writer.get("additionalProperties", True) if "properties" not in writer else False
        problems: list[str] = []
        for name, schema in read.items():
            if name in written:
                problems += self.compare(schema, written[name], f"{path}.{name}")
            elif others is not False:
                problems += self.compare(schema, others, f"{path}.{name}")
        always = set(writer.get("required", ()))
        problems += [
            f"{path}.{name}: is required but not always written"
            for name in reader.get("required", ())
            if name not in always
        ]
        others_read = reader.get("additionalProperties", True)
        unknown = {name: schema for name, schema in written.items() if name not in read}
        if others_read is False:
            problems += [f"{path}.{name}: is written, but unknown fields are forbidden" for name in unknown]
            if others is not False:
                problems.append(f"{path}: a dict was written, but unknown fields are forbidden")
        elif others_read is not True:
            for name, schema in unknown.items():
                problems += self.compare(others_read, schema, f"{path}.{name}")
            if others is not False:
                problems += self.compare(others_read, others, f"{path}[...]")
        return problems

    def _compare_arrays(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        problems: list[str] = []
        least, most = _lengths(writer)
        if least < reader.get("minItems", 0):
            problems.append(f"{path}: at least {reader['minItems']} items are required, {least} may be written")
        longest = reader.get("maxItems")
        if longest is not None and (most is None or most > longest):
            problems.append(f"{path}: at most {longest} items can be read, more may be written")
        fixed = max(len(reader.get("prefixItems", ())), len(writer.get("prefixItems", ())))
        for index in range(fixed if most is None else min(fixed, most)):
            problems += self.compare(_item(reader, index), _item(writer, index), f"{path}[{index}]")
        if most is None or most > fixed:
            problems += self.compare(reader.get("items", True), writer.get("items", True), f"{path}[...]")
        return problems


def _resolve(schema: Any, types: dict[str, Schema]) -> Schema:
    """Return the schema that is meant: the same object each time for a path."""
    if isinstance(schema, bool):
        return _ANY if schema else _NOTHING
    while "$ref" in schema:
        schema = types[schema["$ref"].rpartition("/")[2]]
    return schema  # type: ignore[no-any-return]


def _item(schema: Schema, index: int) -> Any:
    fixed = schema.get("prefixItems", ())
    return fixed[index] if index < len(fixed) else schema.get("items", True)


def _lengths(writer: Schema) -> tuple[int, int | None]:
    """Return the (minimum, maximum) number of items; an array-like struct writes each of its fields."""
    most = writer.get("maxItems")
    if most is None and "prefixItems" in writer:
        most = len(writer["prefixItems"])
    return writer.get("minItems", 0), most


def _constraints(reader: Schema, writer: Schema, path: str) -> list[str]:
    problems = []
    for key in sorted((reader.keys() | writer.keys()) - _NOTES - _STRUCTURE):
        expected, actual = reader.get(key), writer.get(key)
        if key in _LOWER or key in _UPPER:
            if expected is not None and (actual is None or (actual < expected if key in _LOWER else actual > expected)):
                problems.append(f"{path}: {key} is {expected} for the reader and {actual} for the writer")
        elif expected != actual and not (expected is None and key in ("pattern", "multipleOf")):
            problems.append(f"{path}: {key} is {expected} for the reader and {actual} for the writer")
    return problems


def _accepts(reader: Schema, value: Any) -> bool:
    """Return whether a value of an enum or Literal is readable; False for schemas too complex to decide."""
    if not reader.keys() - _NOTES:
        return True
    if "anyOf" in reader:
        return any(_accepts(branch, value) for branch in reader["anyOf"] if "$ref" not in branch)
    if "enum" in reader:
        return any(value == known and type(value) is type(known) for known in reader["enum"])
    if reader.keys() - _NOTES - {"type"}:
        return False
    return reader["type"] in {str: ("string",), int: ("integer", "number"), type(None): ("null",)}.get(type(value), ())


def _name(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {schema['enum']}"
    return str(schema.get("format") or schema.get("type") or "any value")


T = TypeVar("T")
Encoding = Literal["json", "msgpack"]


class SchemaDefinition(msgspec.Struct, frozen=True):
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
            raise InvalidArgumentError(f"msgspec can't describe {type} by a schema: {error}") from error
        self.definition = json.dumps({"encoding": encoding, "schema": schema}, sort_keys=True).encode()

    def serialize(self, value: T) -> bytes:
        # msgspec checks types only when decoding: the reader would notice a value of another type, too late
        if isinstance(self.type, type) and issubclass(self.type, msgspec.Struct) and not isinstance(value, self.type):
            raise SerializationError(
                f"expected a {self.type.__qualname__}, not {type(value).__qualname__}: convert the value first"
            )
        return self._codec.serialize(value)

    def deserialize(self, data: bytes) -> T:
        return self._codec.deserialize(data)

    def decoder(self, written: bytes) -> Callable[[bytes], T]:
        encoding = parsed(written).encoding
        if encoding == self.encoding:
            return self.deserialize
        return (Json(self.type) if encoding == "json" else Msgpack(self.type)).deserialize

    @staticmethod
    def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
        return differences(parsed(reader).schema, parsed(writer).schema)


def parsed(definition: bytes) -> SchemaDefinition:
    return msgspec.json.decode(definition, type=SchemaDefinition)


def precise_schema(kind: Any) -> dict[str, Any]:
    """Return msgspec's JSON schema plus what it omits: times without a time zone and the types of dict keys.

    Otherwise a str and a datetime, or dict[str, int] and dict[int, int], would look the same.

    >>> from datetime import datetime
    >>> precise_schema(dict[int, datetime])
    {'type': 'object', 'additionalProperties': {'type': 'string', 'format': 'any-date-time'}, \
'propertyNames': {'format': 'int'}}
    """
    schema = msgspec.json.schema(kind)
    _Precision(schema.get("$defs", {})).add(inspect.type_info(kind), schema)
    return schema


class _Precision:
    """Walks a type and its schema in parallel, each named type once."""

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
        """Return whether this branch of a union belongs to the member; a union has one member per JSON type."""
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
    """Return whether a named type's definition belongs to the member: two types in a union have different tags."""
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
