"""Values in Python as Arrow's columns, made field by field, with what is wrong with those that have no place in them.

A format says how the values of one field are had from those of a struct (`Fields`); all else is the same for all.
"""

from __future__ import annotations

import re
import struct
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

from nadi.client.serializers.arrow_columns import cast, plain
from nadi.client.serializers.types import ABSENT, COUNTED, DEFAULT, LOCAL_SECONDS, SECONDS, is_json, is_uuid
from nadi.model.instants import EARLIEST_DAY, EARLIEST_US, LATEST_DAY, LATEST_US, PER_SECOND_US, instant_of
from nadi.naming import PER_SECOND

# (structs, some of them None; their type; a field's number) -> that field's values
Fields = Callable[[Sequence[Any], pa.DataType, int], list[Any]]
MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXT_TIME, _EXT_TIMES = -1, {4: ">I", 8: ">Q", 12: ">Iq"}  # the code of msgpack's timestamps; their forms, by sizes
_MAX_REASON_CHARS = 300
OF_DOCUMENTS = {SECONDS, LOCAL_SECONDS, *COUNTED.values()}
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The values of some events. rows: of which event each value is, where an event has any number; wrong: what is
    wrong with the events that can't be read, by their number: these have one value, null."""

    values: pa.Array
    rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
    wrong: Mapping[int, str] = field(default_factory=dict)


def reason(error: BaseException) -> str:
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
                wrong[number] = reason(error)
                values.append(None)
    column, misfits = built(values, kind, fields)
    return Decoded(column, None, wrong | misfits)


def built(values: Sequence[Any], kind: pa.DataType, fields: Fields) -> tuple[pa.Array, dict[int, str]]:
    """The column, and what is wrong with the values that don't fit, which are null in it."""
    try:
        return array_of(values, kind, fields), {}
    except MISFITS as error:
        if len(values) == 1:
            return pa.nulls(1, plain(kind)), {0: reason(error)}
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
        for number, field in enumerate(kind):
            try:
                children.append(array_of(fields(values, kind, number), field.type, fields))
            except MISFITS as error:
                raise ValueError(f"{field.name}: {error}") from error
        mask = pa.array(nulls) if any(nulls) else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    if types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in value.items()]
        keys = array_of([key for key, _ in pairs], kind.key_type, fields)
        items = array_of([item for _, item in pairs], kind.item_type, fields)
        made = pa.MapArray.from_arrays(_borders(values), keys, items, type=wanted)
        _check_keys(made)  # keys that differ in the event may be one here: 00:00Z and 01:00+01:00, 1e0 and 1.0
        return made
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
    """Texts in ISO 8601, datetimes, msgpack's timestamps, or numbers that count the type's unit; of a type that names
    its unit these may be texts, too."""
    if kind in COUNTED.values():
        values = [int(one) if isinstance(one, str) and _INTEGER.fullmatch(one) else one for one in values]
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {int} and kind not in OF_DOCUMENTS:
        made = cast(pa.array(values, pa.int64()).cast(kind), wanted)
    elif kinds <= {datetime}:
        made = pa.array(values, wanted)
    else:
        try:
            if kinds != {str}:
                raise pa.ArrowInvalid
            made = pa.array(values, pa.string()).cast(wanted)
        except pa.ArrowInvalid:  # some are numbers, have no zone, or a form that Arrow doesn't know
            micros = [None if value is None else _micros(value, kind) for value in values]
            made = pa.array(micros, pa.int64()).cast(wanted)
    check_taken(made)
    return made


def _micros(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return instant_of(value, kind.unit)
    is_moment = isinstance(value, msgspec.msgpack.Ext)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if kind.tz is None and (is_moment or getattr(moment, "tzinfo", None) is not None):
        raise ValueError(f"{value} has a time zone, and its field has none")
    if is_moment:
        return _ext_micros(value.code, bytes(value.data))
    if not isinstance(moment, datetime):
        raise ValueError(f"a {type(value).__name__} is not a time")
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _MICROSECOND


def _ext_micros(code: int, data: bytes) -> int:
    """Of a timestamp as msgpack has it: seconds, and nanoseconds beyond them.

    >>> _ext_micros(-1, bytes.fromhex("3b9ac9ffffffffffffffffff"))
    -1
    """
    form = _EXT_TIMES.get(len(data)) if code == _EXT_TIME else None
    if form is None:
        raise ValueError(f"it is msgpack's extension {code} of {len(data)} bytes, and no timestamp")
    *nanos, seconds = struct.unpack(form, data)
    if form == ">Q":
        nanos, seconds = [seconds >> 34], seconds & ((1 << 34) - 1)
    return instant_of(seconds * 10**9 + sum(nanos), "ns")


def check_taken(column: pa.Array) -> None:
    """ValueError for what Arrow has and an engine behind it can't take, however deep, in a column of a plain type: a
    time outside the years 1 to 9999, or a map with a key twice."""
    _check_each(column, _check_taken)


def _check_taken(column: pa.Array) -> None:
    types, kind = pa.types, column.type
    if types.is_map(kind):
        _check_keys(column)
    elif types.is_date32(kind):
        _check_range(column.cast(pa.int32()), EARLIEST_DAY, LATEST_DAY, "days")
    elif types.is_timestamp(kind):
        _check_range(column.cast(pa.int64()), EARLIEST_US, LATEST_US, "microseconds")


def _check_range(numbers: pa.Array, first: int, last: int, unit: str) -> None:
    for number in (one.as_py() for one in compute.min_max(numbers).values()):
        if number is not None and not first <= number <= last:
            raise ValueError(f"{number} {unit} since 1970 are outside the years 1 to 9999")


def _check_keys(column: pa.MapArray) -> None:
    keys = column.keys
    if pa.types.is_nested(keys.type):
        keys = pa.array([repr(key) for key in keys.to_pylist()], pa.string())
    elif pa.types.is_floating(keys.type):
        keys = compute.add(keys, pa.scalar(0.0, keys.type))  # -0.0 is 0.0
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = column.offsets.to_numpy()
    places = np.repeat(np.arange(len(column)), np.diff(offsets)) * max(len(keys), 1) + codes
    distinct, first = np.unique(places, return_index=True)
    if len(distinct) < len(places):
        twice = int(np.setdiff1d(np.arange(len(places)), first)[0])
        raise ValueError(f"the map has the key {column.keys[twice].as_py()!r} twice")


def check_finite(column: pa.Array) -> None:
    """ValueError if NaN or an infinity is in it, however deep, which JSON has no numbers for."""
    _check_each(column, _check_finite)


def _check_finite(column: pa.Array) -> None:
    if pa.types.is_floating(column.type) and not compute.all(compute.is_finite(column), min_count=0).as_py():
        raise ValueError("it is NaN or infinite, and JSON has no such numbers")


def _check_each(column: pa.Array, check: Callable[[pa.Array], None]) -> None:
    """Check the column and those inside it; what is wrong with a struct's names its field."""
    types, kind = pa.types, column.type
    if types.is_map(kind):
        column = column.take(pa.array(np.arange(len(column))))  # without what lies beside a slice
    check(column)
    if types.is_struct(kind):
        for field, one in zip(kind, column.flatten(), strict=True):
            try:
                _check_each(one, check)
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from None
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_each(column.flatten(), check)
    elif types.is_map(kind):
        _check_each(column.keys, check)
        _check_each(column.items, check)


def _native_key(key: Any, kind: pa.DataType) -> Any:
    """Of a map: a time is a text, for msgpack's own form of one can't be a key."""
    made = native(key, kind)
    return made.isoformat().replace("+00:00", "Z") if isinstance(made, datetime) else made


def native(value: Any, kind: pa.DataType) -> Any:
    """A value of a column, as it is written: what would be null and may not be is left out, and what isn't given and
    has a default."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        record = {}
        for field in kind:
            one, notes = value.get(field.name), field.metadata or {}
            if one is None and not field.nullable:
                raise ValueError(f"the field {field.name!r} is null, and must not be")
            has_default = field.name not in value and DEFAULT in notes
            if one is not None or not (has_default or ABSENT in notes):
                record[field.name] = native(one, field.type)
        return record
    if types.is_map(kind):
        return {_native_key(key, kind.key_type): native(one, kind.item_type) for key, one in value}
    if types.is_list(kind):
        return [native(one, kind.value_type) for one in value]
    if kind in COUNTED.values():
        whole, rest = divmod(_micros(value, kind) * PER_SECOND[kind.unit], PER_SECOND_US)
        return value if rest else whole
    if is_json(kind):
        return msgspec.json.decode(value)
    if types.is_timestamp(kind) and kind.unit == "ns":
        return _micros(value, kind) * 1000  # Avro's library knows no others than milliseconds and microseconds
    if is_uuid(kind):
        return UUID(value)
    return time.fromisoformat(value) if types.is_time(kind) else value
