"""Which columns a read has: the options `columns` and `metadata`; the refusal of tables; Arrow's schemas as Spark's.

Spark has a program of its own find out, so nothing is imported here that takes time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nadi.errors import InvalidArgumentError
from nadi.naming import EVENT_TIME, NO_UNIT, PER_SECOND, USUAL, USUAL_UNIT, VALUE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TYPES = {  # of all columns there are, in Spark's words; to it, "timestamp" may be one without a zone
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
METADATA_SCHEMAS = {  # of what the option `metadata` may be
    "Streams": "scope_name string, stream_name string",
    "StreamInfo": "head_stream_cut string, tail_stream_cut string",
    "StreamCuts": "kind string, name string, start_stream_cut string, end_stream_cut string",
}

NO_TABLES = (
    "Spark keeps the options of a table of a Python source, and hands them to no query: say CREATE TEMPORARY VIEW … "
    "USING nadi OPTIONS (…), which can be read and inserted into; or give them with each query: "
    "SELECT * FROM t WITH (scope = …)"
)


def refuse_tables(given: Mapping[str, str]) -> None:
    """InvalidArgumentError for what Spark hands over when a table is made."""
    if {"provider", "owner"} <= given.keys():
        raise InvalidArgumentError(NO_TABLES)


def named_schema(options: Mapping[str, str]) -> str | None:
    """The schema that follows from the options alone; None if the events' values are a column, or a lake's columns are
    those of its table."""
    if options.get("source", "").lower() == "union":
        return None
    if "metadata" in options:
        return METADATA_SCHEMAS.get(options["metadata"], schema_of(USUAL))
    columns = columns_of(options)
    return None if VALUE in columns else schema_of(columns, event_time_unit(options, columns))


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that are read, in the order in which they were named; InvalidArgumentError for others."""
    text, has_value = options.get("columns"), "value_format" in options
    if text is None:
        return tuple(VALUE if has_value and name == "event" else name for name in USUAL)
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in TYPES and name != VALUE:
            raise InvalidArgumentError(
                f"the option 'columns' names {name[:40]!r}: there are {', '.join(TYPES)}, {VALUE}"
            )
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"the option 'columns' is {text[:80]!r}: it names a column twice")
    if has_value != (VALUE in names):
        raise InvalidArgumentError(
            "the option 'value_format' has no effect where 'columns' leaves out 'value'"
            if has_value
            else "the option 'columns' names 'value', which needs 'value_format'"
        )
    return names


def event_time_unit(options: Mapping[str, str], columns: tuple[str, ...]) -> str:
    """In which the stream's writers note times, or "none"; InvalidArgumentError for others."""
    text = options.get("eventtimeunit")
    if text is None:
        return USUAL_UNIT
    if text.lower() not in (*PER_SECOND, NO_UNIT):
        raise InvalidArgumentError(
            f"the option 'eventTimeUnit' is {text[:40]!r}: it must be {', '.join(PER_SECOND)} since 1970, or {NO_UNIT}"
        )
    if EVENT_TIME not in columns:
        raise InvalidArgumentError(
            f"the option 'eventTimeUnit' has no effect where 'columns' leaves out {EVENT_TIME!r}"
        )
    return text.lower()


def schema_of(columns: tuple[str, ...], unit: str = USUAL_UNIT) -> str:
    """The columns as Spark's schema. unit: of event times, which without one are numbers.

    >>> schema_of(("event", "offset"))
    'event binary, offset long'
    """
    types = TYPES | {EVENT_TIME: "long"} if unit == NO_UNIT else TYPES
    return ", ".join(f"{name} {types[name]}" for name in columns)


def spark_schema(columns: pa.Schema) -> StructType:
    """Spark's schema of columns whose types are plain."""
    from pyspark.sql.pandas.types import from_arrow_schema

    found: StructType = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    return found


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of Spark's rows, as its tasks hand them over."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
