"""What a read says of its events' values: `value_format`, and the options that go with it.

>>> from nadi.spark.options.value_format import value_options_of
>>> value_options_of({"value_format": "json", "value_schema": "wh long"})
ValueOptions(format='json', mode='PERMISSIVE', ddl='wh long', version=None)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from nadi.errors import InvalidArgumentError
from nadi.limits import SCHEMA_MAX_VERSIONS
from nadi.spark.options.values import number

FORMATS = ("json", "msgpack", "avro", "protobuf", "arrow")
DOCUMENTS = ("json", "msgpack")  # which need no schema of the stream's
PERMISSIVE, DROP, FAIL = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"  # as Spark's own readers call them
_OTHERS = ("value_schema", "value_version", "value_mode")


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """format: of the events. mode: what becomes of those that can't be read. ddl: the fields to read, in Spark's DDL;
    None: those of the stream's schema, its newest version or `version`."""

    format: str
    mode: str = PERMISSIVE
    ddl: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What events are read as, found when the read is planned. kind: the Arrow type of values; definition: that of the
    schema in the store, and schema_id its number there, None if the options gave it."""

    options: ValueOptions
    kind: pa.DataType
    definition: bytes | None = None
    schema_id: int | None = None


def value_options_of(options: Mapping[str, str]) -> ValueOptions | None:
    """What the options say; None if events aren't to be parsed."""
    text = options.get("value_format")
    for other in _OTHERS:
        if other in options and text is None:
            raise InvalidArgumentError(f"the option {other!r} has no effect without 'value_format'")
    if text is None:
        return None
    if text.lower() not in FORMATS:
        raise InvalidArgumentError(f"the option 'value_format' is {text[:40]!r}: it must be {', '.join(FORMATS)}")
    if "metadata" in options:
        raise InvalidArgumentError("the options 'metadata' and 'value_format' exclude each other")
    found, ddl = text.lower(), options.get("value_schema")
    if ddl is not None and found not in DOCUMENTS:
        raise InvalidArgumentError(
            f"the option 'value_schema' has no effect with 'value_format' = {found}: its schema is the stream's, "
            "of which 'value_version' names a version"
        )
    if ddl is not None and "value_version" in options:
        raise InvalidArgumentError("the options 'value_schema' and 'value_version' exclude each other")
    mode = options.get("value_mode", PERMISSIVE).upper()
    if mode not in (PERMISSIVE, DROP, FAIL):
        raise InvalidArgumentError(
            f"the option 'value_mode' is {mode[:40]!r}: it must be {PERMISSIVE}, {DROP} or {FAIL}"
        )
    has_version = "value_version" in options
    version = number(options, "value_version", 1, 1, SCHEMA_MAX_VERSIONS) if has_version else None
    return ValueOptions(found, mode, ddl, version)
