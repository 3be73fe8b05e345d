"""Options of reading events as values: the format, the schema, and the treatment of unreadable events."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from nadi.client.control.arguments import checking
from nadi.defaults import VALUE_FORMATS
from nadi.errors import InvalidArgumentError

DOCUMENTS = ("json", "msgpack")  # readable without a stored schema
KAFKA = "kafka"  # has one type for all streams
PERMISSIVE, DROP, FAIL = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"  # named as in Spark's readers


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Options of reading values.

    format: of the events. mode: treatment of unreadable events. ddl: the fields to read, in Spark's DDL; None: those of
    the stream's schema, in its newest version or `version`.
    """

    format: str
    mode: str = PERMISSIVE
    ddl: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """What events are decoded as, resolved when the read is planned.

    kind: the Arrow type of values. definition: the stored schema and schema_id: its id, None if the options gave it.
    """

    options: ValueOptions
    kind: pa.DataType
    definition: bytes | None = None
    schema_id: int | None = None


@checking
def value_options(
    value_format: str | None, value_schema: str | None, value_version: int | None, value_mode: str | None
) -> ValueOptions | None:
    """Return the options of reading values; None if events aren't parsed. InvalidArgumentError for unknown values, and
    for options without effect."""
    others = {"value_schema": value_schema, "value_version": value_version, "value_mode": value_mode}
    if value_format is None:
        for name, value in others.items():
            if value is not None:
                raise InvalidArgumentError(f"the option {name!r} has no effect without 'value_format'")
        return None
    format_name, mode = value_format.lower(), (value_mode or PERMISSIVE).upper()
    if format_name not in VALUE_FORMATS:
        raise InvalidArgumentError(
            f"the option 'value_format' is {value_format[:40]!r}: it must be {', '.join(VALUE_FORMATS)}"
        )
    if value_schema is not None and format_name not in DOCUMENTS:
        raise InvalidArgumentError(
            f"the option 'value_schema' has no effect with 'value_format' = {format_name}: it uses the stream's "
            "schema; "
            "select a version of it with 'value_version'"
        )
    if value_schema is not None and value_version is not None:
        raise InvalidArgumentError("the options 'value_schema' and 'value_version' exclude each other")
    if mode not in (PERMISSIVE, DROP, FAIL):
        raise InvalidArgumentError(
            f"the option 'value_mode' is {mode[:40]!r}: it must be {PERMISSIVE}, {DROP} or {FAIL}"
        )
    return ValueOptions(format_name, mode, value_schema, value_version)
