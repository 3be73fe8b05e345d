"""The columns of a read: the options `columns` and `metadata`; rejection of tables; conversion of Arrow schemas.

Spark starts a separate program to determine a schema, so this module imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nadi.errors import InvalidArgumentError
from nadi.naming import EVENT_TIME, NO_UNIT, PER_SECOND, USUAL, USUAL_UNIT, VALUE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TYPES = {  # of all columns, in Spark's DDL, where plain "timestamp" may mean one without a zone
    "event": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "long",
    "offset": "long",
    "position_before": "string",
    "position": "string",
    "append_time": "timestamp_ltz",
    "event_time": "timestamp_ltz",
}
METADATA_SCHEMAS = {  # by the values of the option `metadata`
    "Streams": "scope_name string, stream_name string",
    "StreamInfo": "head_stream_cut string, tail_stream_cut string",
    "StreamCuts": "kind string, name string, start_stream_cut string, end_stream_cut string",
}

NO_TABLES = (
    "Spark keeps the options of a table of a Python source without passing them to queries: use CREATE TEMPORARY VIEW "
    "… USING nadi OPTIONS (…), which can be read and inserted into, or give the options with each query: "
    "SELECT * FROM t WITH (scope = …)"
)


def refuse_tables(given: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError for the options that Spark passes when a table is created."""
    if {"provider", "owner"} <= given.keys():
        raise InvalidArgumentError(NO_TABLES)


def named_schema(options: Mapping[str, str]) -> str | None:
    """Return the schema that follows from the options alone; None if it contains the values, or comes from a lake's
    table."""
    if options.get("source", "").lower() == "union":
        return None
    if "metadata" in options:
        return METADATA_SCHEMAS.get(options["metadata"], schema_of(USUAL))
    columns = columns_of(options)
    return None if VALUE in columns else schema_of(columns, event_time_unit(options, columns))


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns to read in the given order; InvalidArgumentError for unknown ones."""
    text, has_value = options.get("columns"), "value_format" in options
    if text is None:
        return tuple(VALUE if has_value and name == "event" else name for name in USUAL)
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in TYPES and name != VALUE:
            raise InvalidArgumentError(
                f"the option 'columns' contains {name[:40]!r}: use {', '.join(TYPES)} or {VALUE}"
            )
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"the option 'columns' is {text[:80]!r}: remove the duplicate")
    if has_value != (VALUE in names):
        raise InvalidArgumentError(
            "the option 'value_format' needs the column 'value': add it to 'columns'"
            if has_value
            else "the column 'value' in 'columns' needs the option 'value_format'"
        )
    return names


def event_time_unit(options: Mapping[str, str], columns: tuple[str, ...]) -> str:
    """Return the unit of the times that writers note, or "none"; InvalidArgumentError for others."""
    text = options.get("eventtimeunit")
    if text is None:
        return USUAL_UNIT
    if text.lower() not in (*PER_SECOND, NO_UNIT):
        raise InvalidArgumentError(
            f"the option 'eventTimeUnit' is {text[:40]!r}: it must be {', '.join(PER_SECOND)} since 1970, or {NO_UNIT}"
        )
    if EVENT_TIME not in columns:
        raise InvalidArgumentError(f"the option 'eventTimeUnit' needs the column {EVENT_TIME!r}: add it to 'columns'")
    return text.lower()


def schema_of(columns: tuple[str, ...], unit: str = USUAL_UNIT) -> str:
    """Return the columns as a Spark schema. unit: of event times; without one they are numbers.

    >>> schema_of(("event", "offset"))
    'event binary, offset long'
    """
    types = TYPES | {EVENT_TIME: "long"} if unit == NO_UNIT else TYPES
    return ", ".join(f"{name} {types[name]}" for name in columns)


def spark_schema(columns: pa.Schema) -> StructType:
    """Return the Spark schema of columns of plain types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema: StructType = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    return schema


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow columns of Spark's rows, as passed to tasks."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
