"""The columns of a stream table, and the checks of its key and event time.

Checked when a table is defined, and whenever it is opened: the stream's schema may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.types import names_differing_in_case
from nadi.errors import InvalidArgumentError

CHANGE = "_change_type"  # the column of a table of changes
_KEYS: tuple[Callable[[pa.DataType], bool], ...] = (  # types without fields whose values equal themselves
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


def fields_of(kind: pa.DataType, subject: str) -> list[pa.Field]:
    """Return the columns of values of that type; InvalidArgumentError if they lack fields."""
    struct = plain(kind)
    if not pa.types.is_struct(struct):
        raise InvalidArgumentError(f"{subject} has values of type {struct}: a table needs fields for its columns")
    return list(struct)


def check_columns(fields: Sequence[pa.Field], key: Sequence[str], event_time: str | None, subject: str) -> None:
    """Raise InvalidArgumentError if the key or the event time is missing from the columns or has the wrong type, or if
    two columns differ in case only, which SQL doesn't distinguish."""
    same = names_differing_in_case(fields)
    if same is not None:
        raise InvalidArgumentError(
            f"{subject} has columns {same[0]!r} and {same[1]!r}, which differ in case only, so SQL can't distinguish "
            "them: "
            "rename one"
        )
    types = {field.name: field.type for field in fields}
    for name in (*key, *([] if event_time is None else [event_time])):
        if name not in types:
            raise InvalidArgumentError(f"{subject} has no column {name[:60]!r}: it has {', '.join(types)}")
    for name in key:
        if name == CHANGE or not any(is_allowed(types[name]) for is_allowed in _KEYS):
            raise InvalidArgumentError(
                f"column {name!r} of {subject} is {types[name]} and can't be part of its key: use numbers without "
                "fractions, "
                "strings, bytes, booleans, dates or timestamps"
            )
    if event_time is not None and not (pa.types.is_timestamp(types[event_time]) or pa.types.is_date(types[event_time])):
        raise InvalidArgumentError(
            f"column {event_time!r} of {subject} is {types[event_time]} and can't be its event time: use a timestamp "
            "or a "
            f"date, as in value_schema='{event_time} timestamp, …'"
        )
    if CHANGE in types and not pa.types.is_string(types[CHANGE]):
        raise InvalidArgumentError(
            f"column {CHANGE!r} of {subject} is {types[CHANGE]}, but it must be a string, the type of change"
        )
    if len(key) and types.keys() <= {*key, event_time, CHANGE}:
        raise InvalidArgumentError(
            f"{subject} lacks columns besides its key and its time: a row without values deletes its key, so the "
            "table "
            "would stay empty"
        )
