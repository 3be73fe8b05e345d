"""Avro, by fastavro; Apache's `avro` package checks whether one schema reads another's data.

Values are what fastavro takes and returns: dicts for records. An event read under another version of the schema
is resolved by Avro's rules: fields by name or alias, defaults for what wasn't written, promoted numbers.
fastavro takes a field's default as the schema's JSON has it; `parsed_schema` makes it a value of the field's type.
Needs `pip install "nadi[avro]"`.

`limits` keeps a few bytes from taking down whoever reads them. fastavro calls itself for each level of a value, without
a limit, so that values of a type that contains itself can end the process at some thousand levels; and an array of
values that take no bytes, as nulls, may say that it has any number of them. So where a schema allows for either, an
event's bytes are walked over first. Other schemas cost nothing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from nadi.errors import InvalidArgumentError, SerializationError

_MOST_LEVELS = 2_000  # of records, arrays, maps and unions within each other; fastavro takes 8,000 in 8 MiB of stack
_MOST_EMPTY = 1_000  # values without bytes, in an event
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_MAX_NUMBER_BYTES = 10


class _OddError(Exception):
    """fastavro refuses it, and says why."""


def limits(schema: Any) -> Callable[[bytes], None] | None:
    """What raises ValueError for an event that goes beyond the limits; None if no event of the schema can. schema: as
    fastavro parses it, with full names."""
    named: dict[str, Any] = {}
    return _Walk(named).check(schema) if _needs_limits(schema, named, ()) else None


def _needs_limits(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> bool:
    """Whether it contains itself, or an array of values without bytes; named: gets the types by their names."""
    if isinstance(schema, str):
        return schema in within
    if isinstance(schema, list):
        return _any_needs_limits(schema, named, within)
    kind = schema["type"]
    if not isinstance(kind, str):
        return _needs_limits(kind, named, within)
    if "name" in schema:
        named[schema["name"]] = schema
        within = (*within, schema["name"])
    if kind in ("record", "error"):
        return _any_needs_limits([field["type"] for field in schema["fields"]], named, within)
    if kind == "array":
        found = _needs_limits(schema["items"], named, within)
        return found or _takes_nothing(schema["items"], named)
    if kind == "map":
        return _needs_limits(schema["values"], named, within)
    return kind in within


def _any_needs_limits(schemas: list[Any], named: dict[str, Any], within: tuple[str, ...]) -> bool:
    found = [_needs_limits(one, named, within) for one in schemas]  # all of them, for the names
    return any(found)


def _takes_nothing(schema: Any, named: dict[str, Any]) -> bool:
    """Whether a value of the type has no bytes."""
    if isinstance(schema, list):
        return False  # the number of its branch
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _takes_nothing(named[schema], named))
    kind = schema["type"]
    if kind in ("record", "error"):
        return all(_takes_nothing(field["type"], named) for field in schema["fields"])
    return schema["size"] == 0 if kind == "fixed" else _takes_nothing(kind, named)


class _Walk:
    """Walks over events of one schema, with a stack of its own."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._data, self._at, self._empty = b"", 0, 0

    def check(self, schema: Any) -> Callable[[bytes], None]:
        def checked(event: bytes) -> None:
            self._data, self._at, self._empty = event, 0, 0
            try:
                self._walk(schema)
            except _OddError:
                pass

        return checked

    def _walk(self, schema: Any) -> None:
        left: list[tuple[Any, int]] = [(schema, 0)]  # what comes next is last; with its level
        while left:
            one, level = left.pop()
            if level > _MOST_LEVELS:
                raise ValueError(f"its values lie within each other more than {_MOST_LEVELS:,} deep")
            if isinstance(one, _Items):
                self._items(one, level, left)
                continue
            if isinstance(one, list):
                try:
                    left.append((one[self._number()], level + 1))
                except IndexError:
                    raise _OddError from None
                continue
            kind = one if isinstance(one, str) else one["type"]
            if kind in ("record", "error"):
                left += [(field["type"], level + 1) for field in reversed(one["fields"])]
            elif kind in ("array", "map"):
                left.append((_Items(one["items" if kind == "array" else "values"], kind == "map"), level + 1))
            elif isinstance(kind, str) and kind not in self._named:
                self._leaf(kind, one)
            else:
                left.append((self._named[kind] if isinstance(kind, str) else kind, level))

    def _items(self, items: _Items, level: int, left: list[tuple[Any, int]]) -> None:
        """One more value of an array or map, or its end."""
        if not items.left:
            items.left = self._number()
            if not items.left:
                return
            if items.left < 0:
                items.left = -items.left
                self._number()  # how many bytes they have
            if not items.has_keys and _takes_nothing(items.schema, self._named):
                self._empty += items.left
                if self._empty > _MOST_EMPTY:
                    raise ValueError(f"it has more than {_MOST_EMPTY:,} values without bytes")
        items.left -= 1
        left.append((items, level))
        if items.has_keys:
            self._skip(self._number())
        left.append((items.schema, level))

    def _leaf(self, kind: str, schema: Any) -> None:
        if kind in _NUMBERS:
            self._number()
        elif kind in ("string", "bytes"):
            self._skip(self._number())
        else:
            self._skip(schema["size"] if kind == "fixed" else _SIZES[kind])

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise _OddError
        self._at += size

    def _number(self) -> int:
        """Seven bits to a byte, the sign in the last."""
        found = 0
        for count in range(_MAX_NUMBER_BYTES):
            if self._at >= len(self._data):
                raise _OddError
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
        raise ValueError("it has a number of more than 64 bits")


class _Items:
    """The values of an array or map; left: those of the block that is walked over."""

    def __init__(self, schema: Any, has_keys: bool) -> None:
        self.schema, self.has_keys, self.left = schema, has_keys, 0


try:
    import avro.compatibility as apache
    import avro.schema
    import fastavro
    import fastavro.read
    from avro.errors import AvroException
except ImportError as error:
    raise ImportError("Avro needs two more packages: pip install 'nadi[avro]'") from error

_NO_SCHEMA = (ValueError, TypeError, KeyError)
_JSON_OF: dict[str, Any] = {  # what JSON may have as a default
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float,
    "double": int | float,
    "bytes": str,
    "string": str,
    "fixed": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
    "error": dict,
}
_BITS = {"int": 31, "long": 63}


class Avro:
    """Values of one Avro schema, given as its JSON text or as that parsed."""

    schema_format = "avro"

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            self.definition = json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()
            self._schema = parsed_schema(json.loads(self.definition))
            # Apache's package refuses some that fastavro takes, as a default of a wrong type
            avro.schema.parse(self.definition.decode())
        except (*_NO_SCHEMA, AvroException, fastavro.schema.SchemaParseException) as error:
            raise InvalidArgumentError(f"this is no Avro schema: {type(error).__name__}: {error}") from error
        self._limits = limits(self._schema)

    def serialize(self, value: Any) -> bytes:
        data = io.BytesIO()
        try:
            fastavro.schemaless_writer(data, self._schema, value, strict_allow_default=True)
        except Exception as error:  # fastavro raises whatever a value of a wrong kind leads to
            raise SerializationError(f"the value doesn't fit its Avro schema: {_told(error)}") from error
        return data.getvalue()

    def deserialize(self, data: bytes) -> Any:
        return _read(data, self._schema, None, self._limits)

    def decoder(self, written: bytes) -> Callable[[bytes], Any]:
        if written == self.definition:
            return self.deserialize
        writer, reader = parsed_schema(json.loads(written)), self._schema
        most = limits(writer)
        if not any(isinstance(field["default"], dict | list) for field in _with_defaults(reader, {})):
            return lambda data: _read(data, writer, reader, most)
        return lambda data: _unshared(_read(data, writer, reader, most))

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        result = _Checker().get_compatibility(avro.schema.parse(reader.decode()), avro.schema.parse(writer.decode()))
        if result.compatibility is apache.SchemaCompatibilityType.compatible:
            return []
        kinds = ", ".join(sorted({str(kind.value).replace("_", " ") for kind in result.incompatibilities}))
        return [f"{kinds} at {', '.join(sorted(result.locations))} ({', '.join(sorted(result.messages))})"]


class _Checker(apache.ReaderWriterCompatibilityChecker):
    """Apache's check, stricter in three places where data would be read wrong or not at all.

    A logical type is part of a value's meaning (milliseconds read as microseconds); bytes need not be a string;
    and with aliases two of a record's fields may answer to one name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def calculate_compatibility(
        self, reader: avro.schema.Schema, writer: avro.schema.Schema, location: list[str]
    ) -> apache.SchemaCompatibilityResult:
        result = super().calculate_compatibility(reader, writer, location)
        if "union" in (reader.type, writer.type) or result.compatibility is not apache.CompatibleResult.compatibility:
            return result
        if reader.type == "string" and writer.type == "bytes":
            return apache.type_mismatch(reader, writer, location)
        meanings = [_meaning(schema) for schema in (reader, writer)]
        if meanings[0] != meanings[1]:
            message = f"reader's logical type: {meanings[0]}, writer's: {meanings[1]}"
            return apache.incompatible(apache.SchemaIncompatibilityType.type_mismatch, message, location)
        return result

    def check_reader_writer_record_fields(
        self, reader: avro.schema.RecordSchema, writer: avro.schema.RecordSchema, location: list[str]
    ) -> apache.SchemaCompatibilityResult:
        result = super().check_reader_writer_record_fields(reader, writer, location)
        claimed: set[str] = set()  # the writer's fields that one of the reader's takes
        for field in reader.fields:
            names = {field.name, *field.props.get("aliases", ())} & writer.fields_dict.keys()
            if len(names) > 1 or not claimed.isdisjoint(names):
                message = f"field {field.name} and its aliases: {', '.join(sorted(names))} can't be told apart"
                kind = apache.SchemaIncompatibilityType.name_mismatch
                return apache.merge(result, apache.incompatible(kind, message, [*location, "fields"]))
            claimed |= names
        return result


def _meaning(schema: avro.schema.Schema) -> tuple[Any, ...] | None:
    kind = schema.props.get("logicalType")
    return None if kind is None else (kind, schema.props.get("precision"), schema.props.get("scale", 0))


def _read(data: bytes, writer: Any, reader: Any, most: Callable[[bytes], None] | None) -> Any:
    source = io.BytesIO(data)
    try:
        if most is not None:
            most(data)
        value = fastavro.schemaless_reader(source, writer, reader)
    except Exception as error:  # fastavro raises whatever bytes that aren't Avro lead to
        raise SerializationError(f"the event can't be read by its Avro schema: {_told(error)}") from error
    if source.tell() != len(data):
        raise SerializationError(f"the event has {len(data) - source.tell()} bytes more than its Avro schema describes")
    return value


def _unshared(value: Any) -> Any:
    """The value with dicts and lists of its own: fastavro gives each event the schema's one object as its default."""
    left = [value]
    while left:
        one = left.pop()
        parts = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, part in parts:
            if isinstance(part, dict | list):
                one[key] = part.copy()
                left.append(one[key])
    return value


# --- defaults -----------------------------------------------------------------------------------------


def parsed_schema(schema: Any) -> Any:
    """The schema as fastavro parses it, with each default as a value of its field's type; ValueError if it isn't one.

    >>> parsed_schema({"type": "record", "name": "R", "fields": [
    ...     {"name": "raw", "type": "bytes", "default": "\\u00ff"},
    ...     {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
    ... ]})["fields"][1]["default"]
    datetime.date(1970, 1, 2)
    """
    known: dict[str, Any] = {}
    parsed: Any = fastavro.parse_schema(schema, known)
    named: dict[str, Any] = {}
    fields = _with_defaults(parsed, named)
    defaults = []
    for field in fields:
        try:
            defaults.append(_default(field["default"], field["type"], named))
        except (*_NO_SCHEMA, ArithmeticError, RecursionError) as error:
            why = f"the default of the field {field['name']!r} is not a value of its type: {error}"
            raise ValueError(why) from error
    for field, default in zip(fields, defaults, strict=True):
        field["default"] = default
    for part in parsed if isinstance(parsed, list) else [parsed]:
        if isinstance(part, dict):  # as fastavro marks a record, so that it doesn't parse these for each event again
            part.update({"__fastavro_parsed": True, "__named_schemas": known})
    return parsed


def _with_defaults(schema: Any, named: dict[str, Any]) -> list[dict[str, Any]]:
    """All fields that have a default, of all records within; named: gets the types by their names."""
    if isinstance(schema, list):
        return [field for one in schema for field in _with_defaults(one, named)]
    if isinstance(schema, str):
        return []
    if "name" in schema:
        named[schema["name"]] = schema
    found: list[dict[str, Any]] = []
    for field in schema.get("fields", ()):
        found += [field] if "default" in field else []
        found += _with_defaults(field["type"], named)
    for part in ("type", "items", "values"):
        if not isinstance(schema.get(part, ""), str):
            found += _with_defaults(schema[part], named)
    return found


def _default(given: Any, schema: Any, named: dict[str, Any]) -> Any:
    """A value of the schema's type, of the JSON that stands for it as a default."""
    if isinstance(schema, list):
        for branch in schema:  # the first, unless another one is meant, which newer versions of Avro allow
            try:
                return _default(given, branch, named)
            except ValueError:
                pass
        raise ValueError(f"{given!r} is of none of the union's types")
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if not isinstance(kind, str) or kind in named:
        return _default(given, kind, named)
    if not isinstance(given, _JSON_OF.get(kind, object)) or (isinstance(given, bool) and kind != "boolean"):
        raise ValueError(f"{given!r} stands for no {kind}")
    value = _native(given, kind, schema, named)
    read = fastavro.read.LOGICAL_READERS.get(f"{kind}-{schema.get('logicalType')}")
    return value if read is None else read(value, schema, None)


def _native(given: Any, kind: str, schema: dict[str, Any], named: dict[str, Any]) -> Any:
    if kind in ("record", "error"):
        found = {}
        for field in schema["fields"]:
            if field["name"] not in given and "default" not in field:
                raise ValueError(f"it lacks the field {field['name']!r}")
            found[field["name"]] = _default(given.get(field["name"], field.get("default")), field["type"], named)
        return found
    if kind == "array":
        return [_default(one, schema["items"], named) for one in given]
    if kind == "map":
        return {key: _default(one, schema["values"], named) for key, one in given.items()}
    if kind in ("bytes", "fixed"):
        data: bytes = given.encode("iso-8859-1")  # each character is a byte
        if kind == "fixed" and len(data) != schema["size"]:
            raise ValueError(f"{given!r} has {len(data)} bytes, and the type has {schema['size']}")
        return data
    if kind == "enum" and given not in schema["symbols"]:
        raise ValueError(f"{given!r} is none of the symbols {', '.join(schema['symbols'])}")
    if kind in _BITS and not -(1 << _BITS[kind]) <= given < 1 << _BITS[kind]:
        raise ValueError(f"{given} is beyond what an {kind} holds")
    return float(given) if kind in ("float", "double") else given


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
