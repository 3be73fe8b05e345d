"""What events are to be read as, and what becomes of those that can't be."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

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
class Target:
    """What events are read as, found when the read is planned. kind: the Arrow type of values; definition: that of the
    schema in the store, and schema_id its number there, None if the options gave it."""

    options: ValueOptions
    kind: pa.DataType
    definition: bytes | None = None
    schema_id: int | None = None
