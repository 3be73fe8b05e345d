"""What events are to be read as, and what becomes of those that can't be."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from nadi.client.control.arguments import checking
from nadi.errors import InvalidArgumentError

FORMATS = ("json", "msgpack", "avro", "protobuf", "arrow")
DOCUMENTS = ("json", "msgpack")  # which need no schema of the stream's
PERMISSIVE, DROP, FAIL = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"  # as Spark's own readers call them


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """format: of the events. mode: what becomes of those that can't be read. ddl: the fields to read, in Spark's DDL;
    None: those of the stream's schema, its newest version or `version`."""

    format: str
    mode: str = PERMISSIVE
    ddl: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """What events are read as, found when the read is planned. kind: the Arrow type of values; definition: that of the
    schema in the store, and schema_id its number there, None if the options gave it."""

    options: ValueOptions
    kind: pa.DataType
    definition: bytes | None = None
    schema_id: int | None = None


@checking
def value_options(
    value_format: str | None, value_schema: str | None, value_version: int | None, value_mode: str | None
) -> ValueOptions | None:
    """What is said of values; None if events aren't to be parsed. InvalidArgumentError for what is unknown, or would
    have no effect."""
    others = {"value_schema": value_schema, "value_version": value_version, "value_mode": value_mode}
    if value_format is None:
        for name, value in others.items():
            if value is not None:
                raise InvalidArgumentError(f"the option {name!r} has no effect without 'value_format'")
        return None
    format_name, mode = value_format.lower(), (value_mode or PERMISSIVE).upper()
    if format_name not in FORMATS:
        raise InvalidArgumentError(
            f"the option 'value_format' is {value_format[:40]!r}: it must be {', '.join(FORMATS)}"
        )
    if value_schema is not None and format_name not in DOCUMENTS:
        raise InvalidArgumentError(
            f"the option 'value_schema' has no effect with 'value_format' = {format_name}: its schema is the stream's, "
            "of which 'value_version' names a version"
        )
    if value_schema is not None and value_version is not None:
        raise InvalidArgumentError("the options 'value_schema' and 'value_version' exclude each other")
    if mode not in (PERMISSIVE, DROP, FAIL):
        raise InvalidArgumentError(
            f"the option 'value_mode' is {mode[:40]!r}: it must be {PERMISSIVE}, {DROP} or {FAIL}"
        )
    return ValueOptions(format_name, mode, value_schema, value_version)
