"""Avro with fastavro; Apache's `avro` package checks whether one schema reads another's data.

Values are those of fastavro: dicts for records. An event of another version of the schema is resolved by Avro's rules:
fields by name or alias, defaults for missing fields, promoted numbers. Needs `pip install "nadi[avro]"`.
`avro_columns` reads and writes columns with the same `Schema`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nadi.errors import InvalidArgumentError, SerializationError

try:
    import avro.compatibility as apache
    import avro.schema
    import fastavro
    import fastavro.read
    from avro.errors import AvroException
except ImportError as error:
    raise ImportError("Avro needs two more packages: run pip install 'nadi[avro]'") from error

_MOST_LEVELS = 2_000  # of nesting; fastavro manages 8,000 with 8 MiB of stack
_MOST_EMPTY = 1_000  # values without bytes per event
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_MAX_NUMBER_BYTES = 10
_NO_SCHEMA = (ValueError, TypeError, KeyError)
_JSON_OF: dict[str, Any] = {  # JSON types of a default
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


# --- the schema ---------------------------------------------------------------------------------------


class Type:
    """A type of a schema; `parts` are the types of its fields, branches, items or values."""

    __slots__ = ("attributes", "kind", "parts")

    def __init__(self, kind: str, attributes: dict[str, Any]) -> None:
        self.kind, self.attributes = kind, attributes
        self.parts: list[Type] = []

    @property
    def is_record(self) -> bool:
        return self.kind in ("record", "error")

    @property
    def fields(self) -> Iterator[tuple[dict[str, Any], Type]]:
        return zip(self.attributes.get("fields", ()), self.parts, strict=False)

    @property
    def null_branch(self) -> int | None:
        """The index of null in a union; None for other types, and without null."""
        return next((n for n, part in enumerate(self.parts) if self.kind == "union" and part.kind == "null"), None)

    @property
    def is_empty(self) -> bool:
        """Whether its values take zero bytes; a union's value has the number of its branch."""
        if self.is_record:
            return all(part.is_empty for part in self.parts)
        return self.kind == "null" or (self.kind == "fixed" and self.attributes["size"] == 0)


class Schema:
    """A schema in two forms: `parsed` for fastavro, and `root`, a tree of types.

    fastavro takes a field's default as the schema's JSON has it; here it is a value of the field's type. plain_times:
    timestamps are numbers, as a datetime for each takes longer than all else. ValueError, TypeError or KeyError if it
    isn't a schema.

    >>> Schema(b'''{"type": "record", "name": "R", "fields": [
    ...     {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1}
    ... ]}''').parsed["fields"][0]["default"]
    datetime.date(1970, 1, 2)
    """

    def __init__(self, definition: bytes, *, plain_times: bool = False) -> None:
        known: dict[str, Any] = {}
        self.parsed: Any = fastavro.parse_schema(json.loads(definition), known)
        self._named: dict[str, Type] = {}
        self.root = self._type(self.parsed, plain_times)
        self.has_shared_defaults = self._convert_defaults()
        for part in self.parsed if isinstance(self.parsed, list) else [self.parsed]:
            if isinstance(part, dict):  # fastavro's marks, which save parsing for each event
                part.update({"__fastavro_parsed": True, "__named_schemas": known})
        self._check = AvroWalk(self.root).check if _needs_limits(self.root, (), set()) else None

    def _type(self, schema: Any, plain_times: bool) -> Type:
        if isinstance(schema, str):
            return self._named.get(schema) or Type(schema, {})
        if isinstance(schema, list):
            parsed, parts = Type("union", {}), schema
        else:
            parsed = Type(schema["type"], schema)
            if "name" in schema:
                self._named[schema["name"]] = parsed
            if plain_times and str(schema.get("logicalType")).removeprefix("local-").startswith("timestamp-"):
                del schema["logicalType"]
            parts = [field["type"] for field in schema.get("fields", ())]
            parts += [schema[name] for name in ("items", "values") if name in schema]
        parsed.parts = [self._type(part, plain_times) for part in parts]
        return parsed

    def _convert_defaults(self) -> bool:
        """Convert the defaults; return whether some are dicts or lists, which fastavro shares between events."""
        fields = [pair for kind in self._named.values() for pair in kind.fields if "default" in pair[0]]
        defaults = []
        for field, kind in fields:
            try:
                defaults.append(_default(field["default"], kind))
            except (*_NO_SCHEMA, ArithmeticError, RecursionError) as error:
                why = f"the default of the field {field['name']!r} is not a value of its type: {error}"
                raise ValueError(why) from error
        for (field, _), default in zip(fields, defaults, strict=True):
            field["default"] = default
        return any(isinstance(default, dict | list) for default in defaults)

    def reader(self, written: Schema | None = None) -> Callable[[bytes], Any]:
        """Return a function that reads events written with `written`, by default this schema; raises fastavro's
        errors."""
        writer, check = written or self, (written or self)._check
        source_schema, reader_schema = writer.parsed, None if written is None else self.parsed

        def read(event: bytes) -> Any:
            if check is not None:
                check(event)
            source = io.BytesIO(event)
            try:
                value = fastavro.schemaless_reader(source, source_schema, reader_schema)
            except EOFError:
                raise ValueError("it ends within a value") from None
            if source.tell() != len(event):
                raise ValueError(f"it has {len(event) - source.tell()} bytes after its value")
            return value

        return read


def _default(given: Any, kind: Type) -> Any:
    """Convert a default's JSON to a value of the type."""
    if kind.kind == "union":
        for branch in kind.parts:  # the first branch, or another in newer versions of Avro
            try:
                return _default(given, branch)
            except ValueError:
                pass
        raise ValueError(f"{given!r} fits no type of the union")
    name = kind.kind
    if not isinstance(given, _JSON_OF.get(name, object)) or (isinstance(given, bool) and name != "boolean"):
        raise ValueError(f"{given!r} is not a default of type {name}")
    value = _native(given, kind)
    read = fastavro.read.LOGICAL_READERS.get(f"{name}-{kind.attributes.get('logicalType')}")
    return value if read is None else read(value, kind.attributes, None)


def _native(given: Any, kind: Type) -> Any:
    name, attributes = kind.kind, kind.attributes
    if kind.is_record:
        record = {}
        for field, part in kind.fields:
            if field["name"] not in given and "default" not in field:
                raise ValueError(f"it lacks the field {field['name']!r}")
            record[field["name"]] = _default(given.get(field["name"], field.get("default")), part)
        return record
    if name == "array":
        return [_default(item, kind.parts[0]) for item in given]
    if name == "map":
        return {key: _default(item, kind.parts[0]) for key, item in given.items()}
    if name in ("bytes", "fixed"):
        data: bytes = given.encode("iso-8859-1")  # each character is a byte
        if name == "fixed" and len(data) != attributes["size"]:
            raise ValueError(f"{given!r} has {len(data)} bytes, but the type has {attributes['size']}")
        return data
    if name == "enum" and given not in attributes["symbols"]:
        raise ValueError(f"{given!r} is not among the symbols {', '.join(attributes['symbols'])}")
    if name in _BITS and not -(1 << _BITS[name]) <= given < 1 << _BITS[name]:
        raise ValueError(f"{given} exceeds the range of an {name}")
    return float(given) if name in ("float", "double") else given


# --- limits -------------------------------------------------------------------------------------------


def _needs_limits(kind: Type, ancestors: tuple[Type, ...], seen: set[Type]) -> bool:
    """Return whether few bytes of the type can crash a reader: it is recursive, or an array of values without bytes.

    fastavro calls itself for each level of a value, without a limit, so that some thousand levels end the process; and
    an array of values without bytes, as nulls, may say that it has any number of them.
    """
    if kind in ancestors:
        return True
    if kind in seen:
        return False
    seen.add(kind)
    if kind.kind == "array" and kind.parts[0].is_empty:
        return True
    return any(_needs_limits(part, (*ancestors, kind), seen) for part in kind.parts)


class AvroWalk:
    """Walks over an event's bytes with an explicit stack, before fastavro decodes them."""

    def __init__(self, root: Type) -> None:
        self._root = root
        self._data, self.at, self._empty = b"", 0, 0

    def check(self, event: bytes) -> None:
        """Raise ValueError for an event beyond the limits."""
        self._data, self.at, self._empty = event, 0, 0
        try:
            self._walk()
        except IndexError:
            pass  # fastavro raises a better error

    def _walk(self) -> None:
        pending: list[tuple[Type | _Items, int]] = [(self._root, 0)]  # the next type is last; with its level
        while pending:
            item, level = pending.pop()
            if level > _MOST_LEVELS:
                raise ValueError(f"its values are nested more than {_MOST_LEVELS:,} levels deep")
            if isinstance(item, _Items):
                if self._has_next(item):
                    pending += [(item, level), (item.kind, level)]
                continue
            kind = item.kind
            if kind in _NUMBERS:
                self._number()
            elif kind in ("string", "bytes"):
                self._skip(self._number())
            elif kind in _SIZES:
                self._skip(_SIZES[kind])
            elif kind == "fixed":
                self._skip(item.attributes["size"])
            elif kind == "union":
                pending.append((item.parts[self._number()], level + 1))
            elif kind in ("array", "map"):
                pending.append((_Items(item), level + 1))
            else:
                pending += [(part, level + 1) for part in reversed(item.parts)]

    def _has_next(self, items: _Items) -> bool:
        """Advance to the next value of an array or map; return False at its end."""
        if not items.remaining:
            items.remaining = self._number()
            if not items.remaining:
                return False
            if items.remaining < 0:
                items.remaining = -items.remaining
                self._number()  # their size in bytes
            if items.are_empty:
                self._empty += items.remaining
                if self._empty > _MOST_EMPTY:
                    raise ValueError(f"it has more than {_MOST_EMPTY:,} values without bytes")
        items.remaining -= 1
        if items.have_keys:
            self._skip(self._number())
        return True

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self.at:
            raise IndexError
        self.at += size

    def _number(self) -> int:
        """Read a number: seven bits per byte, the sign in the lowest bit."""
        number = 0
        for count in range(_MAX_NUMBER_BYTES):
            byte = self._data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError("a number has more than 64 bits")


class _Items:
    """The values of an array or map; remaining: those of the current block."""

    __slots__ = ("are_empty", "have_keys", "kind", "remaining")

    def __init__(self, container: Type) -> None:
        self.kind, self.remaining = container.parts[0], 0
        self.have_keys = container.kind == "map"
        self.are_empty = not self.have_keys and self.kind.is_empty


# --- rows ---------------------------------------------------------------------------------------------


class Avro:
    """Values of one Avro schema, given as JSON text or parsed."""

    schema_format = "avro"

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            self.definition = json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()
            self._schema = Schema(self.definition)
            # Apache's package rejects some schemas that fastavro accepts, such as a default of a wrong type
            avro.schema.parse(self.definition.decode())
        except (*_NO_SCHEMA, AvroException, fastavro.schema.SchemaParseException) as error:
            raise InvalidArgumentError(f"not an Avro schema: {type(error).__name__}: {error}") from error
        self._value = _value_reader(self._schema.reader())

    def serialize(self, value: Any) -> bytes:
        data = io.BytesIO()
        try:
            fastavro.schemaless_writer(data, self._schema.parsed, value, strict_allow_default=True)
        except Exception as error:  # fastavro raises errors of many types
            raise SerializationError(
                f"the value doesn't fit its Avro schema: {type(error).__name__}: {error}"
            ) from error
        return data.getvalue()

    def deserialize(self, data: bytes) -> Any:
        return self._value(data)

    def decoder(self, written: bytes) -> Callable[[bytes], Any]:
        if written == self.definition:
            return self.deserialize
        read = _value_reader(self._schema.reader(Schema(written)))
        return (lambda data: _unshared(read(data))) if self._schema.has_shared_defaults else read

    @staticmethod
    def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
        result = _Checker().get_compatibility(avro.schema.parse(reader.decode()), avro.schema.parse(writer.decode()))
        if result.compatibility is apache.SchemaCompatibilityType.compatible:
            return []
        kinds = ", ".join(sorted({str(kind.value).replace("_", " ") for kind in result.incompatibilities}))
        return [f"{kinds} at {', '.join(sorted(result.locations))} ({', '.join(sorted(result.messages))})"]


def _value_reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def value(data: bytes) -> Any:
        try:
            return read(data)
        except Exception as error:  # fastavro raises errors of many types
            raise SerializationError(
                f"the event can't be read with its Avro schema: {type(error).__name__}: {error}"
            ) from error

    return value


def _unshared(value: Any) -> Any:
    """Return the value with its own copies of nested dicts and lists."""
    pending = [value]
    while pending:
        container = pending.pop()
        parts = (
            container.items()
            if isinstance(container, dict)
            else enumerate(container)
            if isinstance(container, list)
            else ()
        )
        for key, part in parts:
            if isinstance(part, dict | list):
                container[key] = part.copy()
                pending.append(container[key])
    return value


# --- compatibility ------------------------------------------------------------------------------------


class _Checker(apache.ReaderWriterCompatibilityChecker):
    """Apache's check, stricter in three cases where data would be misread or unreadable.

    A logical type is part of a value's meaning (milliseconds read as microseconds); bytes need not be valid UTF-8;
    and aliases may match two of a record's fields to the same name.
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
        claimed: set[str] = set()  # the writer's fields that match one of the reader's
        for field in reader.fields:
            names = {field.name, *field.props.get("aliases", ())} & writer.fields_dict.keys()
            if len(names) > 1 or not claimed.isdisjoint(names):
                message = f"field {field.name} and its aliases: {', '.join(sorted(names))} are ambiguous"
                kind = apache.SchemaIncompatibilityType.name_mismatch
                return apache.merge(result, apache.incompatible(kind, message, [*location, "fields"]))
            claimed |= names
        return result


def _meaning(schema: avro.schema.Schema) -> tuple[Any, ...] | None:
    kind = schema.props.get("logicalType")
    return None if kind is None else (kind, schema.props.get("precision"), schema.props.get("scale", 0))
