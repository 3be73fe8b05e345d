"""Convert Python values to Arrow columns field by field, and report the values that don't fit.

Each format supplies a function that extracts a field's values from structs (`Fields`).
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

# (structs, some of them None; their type; a field's number) -> the field's values
Fields = Callable[[Sequence[Any], pa.DataType, int], list[Any]]
MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXT_TIME, _EXT_TIMES = -1, {4: ">I", 8: ">Q", 12: ">Iq"}  # the extension code of timestamps; formats by size
_MAX_REASON_CHARS = 300
OF_DOCUMENTS = {SECONDS, LOCAL_SECONDS, *COUNTED.values()}
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded values of events.

    rows: the event's index of each value, if an event may have several. wrong: the error of each unreadable event by
    its index; such an event has one value, null.
    """

    values: pa.Array
    rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
    wrong: Mapping[int, str] = field(default_factory=dict)


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"


def decoded(events: Sequence[bytes], read: Callable[[bytes], Any], kind: pa.DataType, fields: Fields) -> Decoded:
    """Decode each event and convert the values to a column. read: decodes an event, or raises."""
    wrong: dict[int, str] = {}
    try:
        values = [read(event) for event in events]
    except Exception:  # libraries raise errors of many types for foreign bytes
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
    """Return the column, and the error of each value that doesn't fit; such a value is null in the column."""
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
    """Return the values as an array of their `plain` type; raises one of MISFITS if a value doesn't fit."""
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
        array = pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted)
        _check_keys(array)  # keys that differ in the event may be equal here: 00:00Z and 01:00+01:00, 1e0 and 1.0
        return array
    if types.is_list(kind):
        flat = [item for value in values if value is not None for item in value]
        return pa.ListArray.from_arrays(_offsets(values), array_of(flat, kind.value_type, fields), type=wanted)
    if types.is_timestamp(kind):
        return _times(values, kind, wanted)
    if is_json(kind):
        return pa.array(
            [None if value is None else msgspec.json.encode(value).decode() for value in values], pa.string()
        )
    if types.is_string(wanted) and not types.is_string(kind):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if types.is_float32(wanted):
        return _floats(values)
    return pa.array(values, wanted)


def _floats(values: Sequence[Any]) -> pa.Array:
    """Return an array of single precision; ValueError where Arrow would make a value infinite."""
    array = pa.array(values, pa.float32())
    is_infinite = compute.is_inf(array)
    if compute.any(is_infinite).as_py():
        for value, became_infinite in zip(values, is_infinite.to_pylist(), strict=True):
            if became_infinite and isfinite(value):
                raise ValueError(f"{value!r} exceeds the range of a float, at most {_FLOAT_MOST:.4g}")
    return array


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return the offset of each value in the concatenated values, null for a null."""
    ends = [0, *accumulate(0 if value is None else len(value) for value in values)]
    starts = [None if value is None else start for value, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())


def _times(values: Sequence[Any], kind: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Convert ISO 8601 texts, datetimes, msgpack's timestamps, or numbers in the type's unit; numbers may be texts if
    the type names its unit."""
    if kind in COUNTED.values():
        values = [int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value for value in values]
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {int} and kind not in OF_DOCUMENTS:
        array = cast(pa.array(values, pa.int64()).cast(kind), wanted)
    elif kinds <= {datetime}:
        array = pa.array(values, wanted)
    else:
        try:
            if kinds != {str}:
                raise pa.ArrowInvalid
            array = pa.array(values, pa.string()).cast(wanted)
        except pa.ArrowInvalid:  # some are numbers, lack a zone, or have a format unknown to Arrow
            micros = [None if value is None else _micros(value, kind) for value in values]
            array = pa.array(micros, pa.int64()).cast(wanted)
    check_taken(array)
    return array


def _micros(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return instant_of(value, kind.unit)
    is_ext = isinstance(value, msgspec.msgpack.Ext)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if kind.tz is None and (is_ext or getattr(moment, "tzinfo", None) is not None):
        raise ValueError(f"{value} has a time zone, but its field has none")
    if is_ext:
        return _ext_micros(value.code, bytes(value.data))
    if not isinstance(moment, datetime):
        raise ValueError(f"a {type(value).__name__} is not a time")
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _MICROSECOND


def _ext_micros(code: int, data: bytes) -> int:
    """Return the microseconds of msgpack's timestamp, which has seconds and nanoseconds.

    >>> _ext_micros(-1, bytes.fromhex("3b9ac9ffffffffffffffffff"))
    -1
    """
    form = _EXT_TIMES.get(len(data)) if code == _EXT_TIME else None
    if form is None:
        raise ValueError(f"msgpack's extension {code} of {len(data)} bytes is not a timestamp")
    *nanos, seconds = struct.unpack(form, data)
    if form == ">Q":
        nanos, seconds = [seconds >> 34], seconds & ((1 << 34) - 1)
    return instant_of(seconds * 10**9 + sum(nanos), "ns")


def check_taken(column: pa.Array) -> None:
    """Raise ValueError for values that Arrow allows and engines reject, at any depth of a column of a plain type: times
    outside the years 1 to 9999, and maps with a duplicate key."""
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
            raise ValueError(f"{number} {unit} since 1970 is outside the years 1 to 9999")


def _check_keys(column: pa.MapArray) -> None:
    keys = column.keys
    if pa.types.is_nested(keys.type):
        keys = pa.array([repr(key) for key in keys.to_pylist()], pa.string())
    elif pa.types.is_floating(keys.type):
        keys = compute.add(keys, pa.scalar(0.0, keys.type))  # makes -0.0 equal to 0.0
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = column.offsets.to_numpy()
    row_keys = np.repeat(np.arange(len(column)), np.diff(offsets)) * max(len(keys), 1) + codes
    distinct, first = np.unique(row_keys, return_index=True)
    if len(distinct) < len(row_keys):
        duplicate = int(np.setdiff1d(np.arange(len(row_keys)), first)[0])
        raise ValueError(f"the map has the key {column.keys[duplicate].as_py()!r} duplicate")


def check_finite(column: pa.Array) -> None:
    """Raise ValueError for NaN or an infinity at any depth, which JSON can't represent."""
    _check_each(column, _check_finite)


def _check_finite(column: pa.Array) -> None:
    if pa.types.is_floating(column.type) and not compute.all(compute.is_finite(column), min_count=0).as_py():
        raise ValueError("JSON can't represent NaN or infinity")


def _check_each(column: pa.Array, check: Callable[[pa.Array], None]) -> None:
    """Check the column and its children; an error names the struct's field."""
    types, kind = pa.types, column.type
    if types.is_map(kind):
        column = column.take(pa.array(np.arange(len(column))))  # drops values outside the slice
    check(column)
    if types.is_struct(kind):
        for field, child in zip(kind, column.flatten(), strict=True):
            try:
                _check_each(child, check)
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from None
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_each(column.flatten(), check)
    elif types.is_map(kind):
        _check_each(column.keys, check)
        _check_each(column.items, check)


def _native_key(key: Any, kind: pa.DataType) -> Any:
    """Convert a map's key: a time becomes text, as msgpack's timestamp can't be a key."""
    key = native(key, kind)
    return key.isoformat().replace("+00:00", "Z") if isinstance(key, datetime) else key


def native(value: Any, kind: pa.DataType) -> Any:
    """Return a column's value in the form that is written; a field is omitted if it may not be null, or has a default
    and wasn't given."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        record = {}
        for field in kind:
            child, notes = value.get(field.name), field.metadata or {}
            if child is None and not field.nullable:
                raise ValueError(f"the field {field.name!r} is null but required")
            has_default = field.name not in value and DEFAULT in notes
            if child is not None or not (has_default or ABSENT in notes):
                record[field.name] = native(child, field.type)
        return record
    if types.is_map(kind):
        return {_native_key(key, kind.key_type): native(item, kind.item_type) for key, item in value}
    if types.is_list(kind):
        return [native(item, kind.value_type) for item in value]
    if kind in COUNTED.values():
        count, remainder = divmod(_micros(value, kind) * PER_SECOND[kind.unit], PER_SECOND_US)
        return value if remainder else count
    if is_json(kind):
        return msgspec.json.decode(value)
    if types.is_timestamp(kind) and kind.unit == "ns":
        return _micros(value, kind) * 1000  # fastavro supports no other datetimes than milliseconds and microseconds
    if is_uuid(kind):
        return UUID(value)
    return time.fromisoformat(value) if types.is_time(kind) else value
