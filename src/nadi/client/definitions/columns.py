"""The columns that a stream table's rows have, and which of them can be its key or its time.

They are looked at when a table is defined, and each time that it is opened: the schema of its stream may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.types import alike
from nadi.errors import InvalidArgumentError

CHANGE = "_change_type"  # the column that makes a table's rows changes of another's
_KEYS: tuple[Callable[[pa.DataType], bool], ...] = (  # what has no fields, and is equal to itself
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


def fields_of(kind: pa.DataType, what: str) -> list[pa.Field]:
    """The columns of values of that type; InvalidArgumentError if they have no fields."""
    found = plain(kind)
    if not pa.types.is_struct(found):
        raise InvalidArgumentError(
            f"{what} is of values that are {found}: a table's have fields, which are its columns"
        )
    return list(found)


def check_columns(fields: Sequence[pa.Field], key: Sequence[str], event_time: str | None, what: str) -> None:
    """InvalidArgumentError if the key or the time isn't among the columns, or can't be one; or SQL couldn't tell two of
    the columns apart."""
    same = alike(fields)
    if same is not None:
        raise InvalidArgumentError(
            f"{what} has {same[0]!r} and {same[1]!r}, which differ by case alone, and SQL can't tell them apart: "
            "rename one"
        )
    types = {field.name: field.type for field in fields}
    for name in (*key, *([] if event_time is None else [event_time])):
        if name not in types:
            raise InvalidArgumentError(f"{what} has no column {name[:60]!r}: it has {', '.join(types)}")
    for name in key:
        if name == CHANGE or not any(is_one(types[name]) for is_one in _KEYS):
            raise InvalidArgumentError(
                f"column {name!r} of {what} is {types[name]}, and can't be a part of its key: numbers without "
                "fractions can, texts, bytes, booleans, dates and times"
            )
    if event_time is not None and not (pa.types.is_timestamp(types[event_time]) or pa.types.is_date(types[event_time])):
        raise InvalidArgumentError(
            f"column {event_time!r} of {what} is {types[event_time]}, and can't be its event time: a timestamp or a "
            f"date can, as in value_schema='{event_time} timestamp, …'"
        )
    if CHANGE in types and not pa.types.is_string(types[CHANGE]):
        raise InvalidArgumentError(
            f"column {CHANGE!r} of {what} is {types[CHANGE]}, and says how rows change: it must be a string"
        )
    if len(key) and types.keys() <= {*key, event_time, CHANGE}:
        raise InvalidArgumentError(
            f"{what} has no column besides its key and its time: a row without values deletes its key, so nothing "
            "would be in it"
        )
