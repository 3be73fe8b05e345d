"""Which columns a read has: the options `columns` and `metadata`. Spark has a program of its own find out, so
nothing is imported here that takes time."""

from __future__ import annotations

from collections.abc import Mapping

from nadi.errors import InvalidArgumentError

TYPES = {  # of all columns there are, as Spark writes them
    "event": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "long",
    "offset": "long",
    "position_before": "string",
    "position": "string",
    "append_time": "timestamp",
}
VALUE = "value"  # its type is that of the events' schema
USUAL = ("event", "scope", "stream", "segment_id", "offset")
APPEND_TIME = "append_time"
NEED_EVENTS = ("event", VALUE)  # the others need to know no more than where events lie
POSITIONS = ("position_before", "position")
METADATA_SCHEMAS = {  # of what the option `metadata` may be
    "Streams": "scope_name string, stream_name string",
    "StreamInfo": "head_stream_cut string, tail_stream_cut string",
    "StreamCuts": "kind string, name string, start_stream_cut string, end_stream_cut string",
}


def named_schema(options: Mapping[str, str]) -> str | None:
    """The schema that follows from the options alone; None if the events' values are a column."""
    if "metadata" in options:
        return METADATA_SCHEMAS.get(options["metadata"], schema_of(USUAL))
    columns = columns_of(options)
    return None if VALUE in columns else schema_of(columns)


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


def schema_of(columns: tuple[str, ...]) -> str:
    """The columns as Spark's schema.

    >>> schema_of(("event", "offset"))
    'event binary, offset long'
    """
    return ", ".join(f"{name} {TYPES[name]}" for name in columns)
