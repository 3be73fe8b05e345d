"""Convert columns to a table's types without loss: reading returns the values that were written.

Strings are parsed as numbers, times and so on; any type can become a string. Other values fit if they survive the
conversion there and back: 2.0 is an integer and 2.5 isn't, midnight is a date and noon isn't.

>>> lossless(pa.array([1.0, 2.0]), pa.int32()).to_pylist()
[1, 2]
>>> lossless(pa.array([0.5, 0.1]), pa.float32())
Traceback (most recent call last):
nadi.client.streamtables.lossless.ValueMismatchError: it would lose precision as float
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client.serializers.arrow_columns import ordinary, plain, within
from nadi.client.serializers.columns import MISFITS, OF_DOCUMENTS, reason
from nadi.model.instants import PER_SECOND_US, instant_of
from nadi.naming import PER_SECOND

_WIDEST = 76  # the most digits of a decimal


class ValueMismatchError(Exception):
    """A value doesn't fit. row: the first wrong row; None if no value of the type would fit."""

    def __init__(self, row: int | None, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


def lossless(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert the column to the plain type of `kind`; ValueMismatchError if a value would change. Timestamps of `kind`
    name the unit of numbers."""

    def convert(values: pa.Array) -> pa.Array:
        values.validate(full=True)  # rejects strings that aren't UTF-8, which later steps would
        return _converted(ordinary(values), kind)

    try:
        return convert(column)
    except MISFITS as error:
        row = first_wrong(column, convert)
        if row is not None:
            error = _error_of(column.slice(row, 1), convert) or error
        raise ValueMismatchError(row, reason(error)) from None


def first_wrong(column: pa.Array, check: Callable[[pa.Array], object]) -> int | None:
    """Return the first row that fails the check, in a column that does; None if it fails even without rows."""
    if _error_of(column.slice(0, 0), check) is not None:
        return None
    good, wrong = 0, len(column)  # the number of rows that pass, and one that doesn't
    while wrong - good > 1:
        middle = (good + wrong) // 2
        if _error_of(column.slice(0, middle), check) is None:
            good = middle
        else:
            wrong = middle
    return good


def _error_of(column: pa.Array, check: Callable[[pa.Array], object]) -> Exception | None:
    try:
        check(column)
    except MISFITS as error:
        return error
    return None


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    plain_column = _in_plain(column, kind)
    if pa.types.is_timestamp(kind) and kind not in OF_DOCUMENTS:
        pc.cast(plain_column, kind)  # raises if a value is finer than the unit; documents would use text
    return plain_column


def _in_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    types, target = pa.types, plain(kind)
    if column.type == pa.uuid() and types.is_string(target):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], target)
    if column.type == pa.bool8():
        column = column.storage.cast(pa.bool_())
    elif isinstance(column.type, pa.BaseExtensionType):
        if types.is_string(target) and not _is_text(column.storage.type):
            raise ValueError(f"an {column.type} can't be written as text")
        column = column.storage
    elif types.is_float16(column.type):
        column = pc.cast(column, pa.float32())
    if column.type == target:
        return column
    if types.is_null(column.type):
        return pa.nulls(len(column), target)
    if types.is_struct(target) and types.is_struct(column.type):
        return _struct(column, kind, target)
    if (types.is_list(target) and _is_list(column.type)) or (types.is_map(target) and types.is_map(column.type)):
        kinds = iter((kind.key_type, kind.item_type) if types.is_map(kind) else (kind.value_type,))
        column = column.take(pa.array(np.arange(len(column))))  # drops values outside the slice and under nulls
        return within(column, target, lambda part: _converted(part, next(kinds)))
    if types.is_nested(target) or types.is_nested(column.type):
        raise ValueError(f"{column.type} can't become {target}")
    if types.is_timestamp(kind) and types.is_integer(column.type):
        return _counted(column, kind.unit, target)
    if types.is_time(kind) and types.is_time(column.type):
        column = pc.cast(column, kind)  # raises if a value is finer than the unit
    return _leaf(column, target)


def _struct(column: pa.StructArray, kind: pa.DataType, target: pa.DataType) -> pa.Array:
    children = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    names = [field.name for field in target]
    if len(children) < column.type.num_fields:
        raise ValueError("it has two fields of the same name")
    for name in children:
        if name not in names:
            raise ValueError(f"its field {name!r} is not one of {', '.join(names)}")
    fields = []
    for field in kind:
        try:
            child = children.get(field.name)
            fields.append(pa.nulls(len(column), plain(field.type)) if child is None else _converted(child, field.type))
        except MISFITS as error:
            raise ValueError(f"{field.name}: {error}") from error
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=column.is_null())


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _counted(column: pa.Array, unit: str, target: pa.DataType) -> pa.Array:
    """Convert numbers to times as in events: they count the column's unit, not Arrow's microseconds."""

    def micros_of(number: int) -> int:
        micros = instant_of(number, unit)
        if micros * PER_SECOND[unit] != number * PER_SECOND_US:
            raise ValueError(f"it would lose precision as {target}")
        return micros

    micros = [None if number is None else micros_of(number) for number in column.to_pylist()]
    return pa.array(micros, pa.int64()).cast(target)


def _leaf(column: pa.Array, target: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_duration(column.type) and _is_number(target):
        column = pc.cast(column, pa.duration("us"))  # a number counts microseconds
    elif types.is_temporal(column.type) and _is_number(target):
        raise ValueError(f"a {column.type} is not a number: cast it to an explicit unit")
    elif types.is_temporal(target) and _is_number(column.type):
        raise ValueError(f"a number is not a {target}: cast it from an explicit unit")
    if types.is_decimal(target) and types.is_integer(column.type):
        return pc.cast(pc.cast(column, pa.decimal256(_WIDEST, target.scale)), target)
    if types.is_decimal(target) and types.is_floating(column.type):
        return pc.cast(pc.cast(column, pa.string()), target)  # via the shortest text: 0.1 stays 0.1
    is_rounded = types.is_decimal(column.type) and types.is_floating(target)
    cast_column = pc.cast(pc.cast(column, pa.string()) if is_rounded else column, target)
    if _is_text(column.type):
        if types.is_floating(target) and _any(
            pc.and_(pc.is_inf(cast_column), pc.match_substring_regex(column, "[0-9]"))
        ):
            raise ValueError(f"it exceeds the range of a {target}")
        return cast_column
    if types.is_string(target) or types.is_binary(target):
        return cast_column
    if types.is_decimal(column.type):
        wide = pa.decimal256(_WIDEST, column.type.scale)
        returned = pc.cast(cast_column, pa.string()) if is_rounded else cast_column
        same = pc.equal(pc.cast(returned, wide), pc.cast(column, wide))
    else:
        same = pc.equal(pc.cast(cast_column, column.type), column)
    if types.is_floating(column.type):
        same = pc.or_(same, pc.is_nan(column))
    if not pc.all(same, min_count=0).as_py():
        raise ValueError(f"it would lose precision as {target}")
    return cast_column


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
