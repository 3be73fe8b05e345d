"""Values in Python as Arrow's columns, made field by field, with what is wrong with those that have no place in them.

A format says how the values of one field are had from those of a struct (`Fields`); all else is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from itertools import accumulate
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import compute

from nadi.client.values.types import ABSENT, is_json, is_uuid, plain

# (structs, some of them None; their type; a field's number) -> that field's values
Fields = Callable[[Sequence[Any], pa.DataType, int], list[Any]]
MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_REASON_CHARS = 300
_FLOAT_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The values of some events. rows: of which event each value is, where an event has any number; wrong: what is
    wrong with the events that can't be read, by their number: these have one value, null."""

    values: pa.Array
    rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
    wrong: Mapping[int, str] = field(default_factory=dict)


def told(error: BaseException) -> str:
    """The error in a few words."""
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"


def decoded(events: Sequence[bytes], read: Callable[[bytes], Any], kind: pa.DataType, fields: Fields) -> Decoded:
    """Read each event, and make a column of what was read. read: raises what an event is refused for."""
    wrong: dict[int, str] = {}
    try:
        values = [read(event) for event in events]
    except Exception:  # a library raises whatever bytes that aren't its own lead to
        values = []
        for number, event in enumerate(events):
            try:
                values.append(read(event))
            except Exception as error:
                wrong[number] = told(error)
                values.append(None)
    column, misfits = built(values, kind, fields)
    return Decoded(column, None, wrong | misfits)


def built(values: Sequence[Any], kind: pa.DataType, fields: Fields) -> tuple[pa.Array, dict[int, str]]:
    """The column, and what is wrong with the values that don't fit, which are null in it."""
    try:
        return array_of(values, kind, fields), {}
    except MISFITS as error:
        if len(values) == 1:
            return pa.nulls(1, plain(kind)), {0: told(error)}
    middle = len(values) // 2
    left, wrong = built(values[:middle], kind, fields)
    right, more = built(values[middle:], kind, fields)
    return pa.concat_arrays([left, right]), wrong | {middle + number: why for number, why in more.items()}


def array_of(values: Sequence[Any], kind: pa.DataType, fields: Fields) -> pa.Array:
    """The values as an array of the type that `plain` says; one of MISFITS if one doesn't fit."""
    wanted, types = plain(kind), pa.types
    if types.is_struct(kind):
        nulls = [value is None for value in values]
        children = []
        for number in range(kind.num_fields):
            field = kind.field(number)
            try:
                children.append(array_of(fields(values, kind, number), field.type, fields))
            except MISFITS as error:
                raise ValueError(f"{field.name}: {error}") from error
        mask = pa.array(nulls) if any(nulls) else None
        return pa.StructArray.from_arrays(children, fields=[*map(wanted.field, range(kind.num_fields))], mask=mask)
    if types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in value.items()]
        keys = array_of([key for key, _ in pairs], kind.key_type, fields)
        items = array_of([item for _, item in pairs], kind.item_type, fields)
        return pa.MapArray.from_arrays(_borders(values), keys, items, type=wanted)
    if types.is_list(kind):
        flat = [one for value in values if value is not None for one in value]
        return pa.ListArray.from_arrays(_borders(values), array_of(flat, kind.value_type, fields), type=wanted)
    if types.is_timestamp(kind):
        return _times(values, kind, wanted)
    if is_json(kind):
        return pa.array([None if one is None else msgspec.json.encode(one).decode() for one in values], pa.string())
    if types.is_string(wanted) and not types.is_string(kind):
        return pa.array([None if one is None else str(one) for one in values], pa.string())
    if types.is_float32(wanted):
        return _floats(values)
    return pa.array(values, wanted)


def _floats(values: Sequence[Any]) -> pa.Array:
    """Of single precision: Arrow makes those infinite that are beyond it."""
    made = pa.array(values, pa.float32())
    is_infinite = compute.is_inf(made)
    if compute.any(is_infinite).as_py():
        for value, became_infinite in zip(values, is_infinite.to_pylist(), strict=True):
            if became_infinite and isfinite(value):
                raise ValueError(f"{value!r} is beyond what a float holds: {_FLOAT_MOST:.4g} at most")
    return made


def _borders(values: Sequence[Any]) -> pa.Array:
    """Where each value's part of what was joined begins, null for a null."""
    ends = [0, *accumulate(0 if value is None else len(value) for value in values)]
    starts = [None if value is None else start for value, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())


def _times(values: Sequence[Any], kind: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Texts in ISO 8601, datetimes, or integers that count the type's unit."""
    found = set(map(type, values)) - {type(None)}
    if found == {int}:
        return cast(pa.array(values, pa.int64()).cast(kind), wanted)
    if found <= {datetime}:
        return pa.array(values, wanted)
    if found == {str}:
        try:
            return pa.array(values, pa.string()).cast(wanted)
        except pa.ArrowInvalid:
            pass  # some have no zone, or a form that Arrow doesn't know
    return pa.array([None if value is None else _micros(value, kind) for value in values], pa.int64()).cast(wanted)


def _micros(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, int):
        return int(pa.scalar(value, pa.int64()).cast(kind).cast(pa.timestamp("us", kind.tz)).value)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if kind.tz is None and moment.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, and its field has none")
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _MICROSECOND


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column in another type that has its values; of times only what is smaller than its unit is lost."""
    if column.type == wanted:
        return column
    return compute.cast(column, options=compute.CastOptions(wanted, allow_time_truncate=True))


def native(value: Any, kind: pa.DataType) -> Any:
    """A value of a column, as it is written: what would be null and may not be is left out."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        found = {}
        for field in map(kind.field, range(kind.num_fields)):
            one = value.get(field.name)
            if one is None and not field.nullable:
                raise ValueError(f"the field {field.name!r} is null, and must not be")
            if one is not None or ABSENT not in (field.metadata or {}):
                found[field.name] = native(one, field.type)
        return found
    if types.is_map(kind):
        return {key: native(one, kind.item_type) for key, one in value}
    if types.is_list(kind):
        return [native(one, kind.value_type) for one in value]
    if is_json(kind):
        return msgspec.json.decode(value)
    if types.is_timestamp(kind) and kind.unit == "ns":
        return _micros(value, kind) * 1000  # Avro's library knows no others than milliseconds and microseconds
    if is_uuid(kind):
        return UUID(value)
    return time.fromisoformat(value) if types.is_time(kind) else value
