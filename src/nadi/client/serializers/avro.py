"""Avro, by fastavro; Apache's `avro` package checks whether one schema reads another's data.

Values are what fastavro takes and returns: dicts for records. An event read under another version of the schema
is resolved by Avro's rules: fields by name or alias, defaults for what wasn't written, promoted numbers.
Needs `pip install "nadi[avro]"`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from nadi.client.serializers.avro_limits import limits
from nadi.errors import InvalidArgumentError, SerializationError

try:
    import avro.compatibility as apache
    import avro.schema
    import fastavro
    from avro.errors import AvroException
except ImportError as error:
    raise ImportError("Avro needs two more packages: pip install 'nadi[avro]'") from error


class Avro:
    """Values of one Avro schema, given as its JSON text or as that parsed."""

    schema_format = "avro"

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            self.definition = json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()
            self._schema = fastavro.parse_schema(json.loads(self.definition))
            # Apache's package refuses some that fastavro takes, as a default of a wrong type
            avro.schema.parse(self.definition.decode())
        except (ValueError, TypeError, KeyError, AvroException, fastavro.schema.SchemaParseException) as error:
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
        writer, reader = fastavro.parse_schema(json.loads(written)), self._schema
        most = limits(writer)
        return lambda data: _read(data, writer, reader, most)

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


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
