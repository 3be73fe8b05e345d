"""Columns in the types of a table, where that loses nothing: what comes back from there is what was given.

Texts are read as numbers, times and so on where they are such; all else can be a text. Else a value fits if it is the
same after the way there and back: 2.0 is a whole number and 2.5 isn't, midnight is a date and noon isn't.

>>> lossless(pa.array([1.0, 2.0]), pa.int32()).to_pylist()
[1, 2]
>>> lossless(pa.array([0.5, 0.1]), pa.float32())
Traceback (most recent call last):
nadi.client.streamtables.lossless.MisfitError: something of it would be lost as float
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

_WIDEST = 76  # digits of a decimal


class MisfitError(Exception):
    """row: the first whose value has no place in the other type; None if no value of its type has."""

    def __init__(self, row: int | None, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


def lossless(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in the plain type of that one; MisfitError if a value would be another then. kind: its timestamps name
    the unit that numbers count."""

    def made(some: pa.Array) -> pa.Array:
        some.validate(full=True)  # texts that aren't UTF-8, which others would fail at
        return _made(ordinary(some), kind)

    try:
        return made(column)
    except MISFITS as error:
        row = first_wrong(column, made)
        if row is not None:
            error = _error_of(column.slice(row, 1), made) or error
        raise MisfitError(row, reason(error)) from None


def first_wrong(column: pa.Array, check: Callable[[pa.Array], object]) -> int | None:
    """The first row at which the check fails, of a column at which it does; None if it fails without rows, too."""
    if _error_of(column.slice(0, 0), check) is not None:
        return None
    good, wrong = 0, len(column)  # so many rows are right, so many are not
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


def _made(column: pa.Array, kind: pa.DataType) -> pa.Array:
    made = _in_plain(column, kind)
    if pa.types.is_timestamp(kind) and kind not in OF_DOCUMENTS:
        pc.cast(made, kind)  # what is finer than its unit would be lost; documents have a text for it
    return made


def _in_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    types, wanted = pa.types, plain(kind)
    if column.type == pa.uuid() and types.is_string(wanted):
        return pa.array([None if one is None else str(one) for one in column.to_pylist()], wanted)
    if column.type == pa.bool8():
        column = column.storage.cast(pa.bool_())
    elif isinstance(column.type, pa.BaseExtensionType):
        if types.is_string(wanted) and not _is_text(column.storage.type):
            raise ValueError(f"the text of an {column.type} is unknown")
        column = column.storage
    elif types.is_float16(column.type):
        column = pc.cast(column, pa.float32())
    if column.type == wanted:
        return column
    if types.is_null(column.type):
        return pa.nulls(len(column), wanted)
    if types.is_struct(wanted) and types.is_struct(column.type):
        return _struct(column, kind, wanted)
    if (types.is_list(wanted) and _is_list(column.type)) or (types.is_map(wanted) and types.is_map(column.type)):
        kinds = iter((kind.key_type, kind.item_type) if types.is_map(kind) else (kind.value_type,))
        column = column.take(pa.array(np.arange(len(column))))  # without what lies beside a slice, and within nulls
        return within(column, wanted, lambda part: _made(part, next(kinds)))
    if types.is_nested(wanted) or types.is_nested(column.type):
        raise ValueError(f"{column.type} is no {wanted}")
    if types.is_timestamp(kind) and types.is_integer(column.type):
        return _counted(column, kind.unit, wanted)
    if types.is_time(kind) and types.is_time(column.type):
        column = pc.cast(column, kind)  # what is finer than its unit would be lost
    return _leaf(column, wanted)


def _struct(column: pa.StructArray, kind: pa.DataType, wanted: pa.DataType) -> pa.Array:
    given = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    names = [field.name for field in wanted]
    if len(given) < column.type.num_fields:
        raise ValueError("it has two fields of one name")
    for name in given:
        if name not in names:
            raise ValueError(f"it has a field {name!r}, and there are {', '.join(names)}")
    fields = []
    for field in kind:
        try:
            one = given.get(field.name)
            fields.append(pa.nulls(len(column), plain(field.type)) if one is None else _made(one, field.type))
        except MISFITS as error:
            raise ValueError(f"{field.name}: {error}") from error
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=column.is_null())


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _counted(column: pa.Array, unit: str, wanted: pa.DataType) -> pa.Array:
    """Numbers as the times that they are in events: they count the column's unit, not Arrow's microseconds."""

    def micros_of(number: int) -> int:
        micros = instant_of(number, unit)
        if micros * PER_SECOND[unit] != number * PER_SECOND_US:
            raise ValueError(f"something of it would be lost as {wanted}")
        return micros

    micros = [None if one is None else micros_of(one) for one in column.to_pylist()]
    return pa.array(micros, pa.int64()).cast(wanted)


def _leaf(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_duration(column.type) and _is_number(wanted):
        column = pc.cast(column, pa.duration("us"))  # a number counts microseconds
    elif types.is_temporal(column.type) and _is_number(wanted):
        raise ValueError(f"a {column.type} is not a number: cast it to the unit that is meant")
    elif types.is_temporal(wanted) and _is_number(column.type):
        raise ValueError(f"a number is not a {wanted}: cast it from the unit that is meant")
    if types.is_decimal(wanted) and types.is_integer(column.type):
        return pc.cast(pc.cast(column, pa.decimal256(_WIDEST, wanted.scale)), wanted)
    if types.is_decimal(wanted) and types.is_floating(column.type):
        return pc.cast(pc.cast(column, pa.string()), wanted)  # by their shortest texts: 0.1 is 0.1
    is_rounded = types.is_decimal(column.type) and types.is_floating(wanted)
    made = pc.cast(pc.cast(column, pa.string()) if is_rounded else column, wanted)
    if _is_text(column.type):
        if types.is_floating(wanted) and _are_some(pc.and_(pc.is_inf(made), pc.match_substring_regex(column, "[0-9]"))):
            raise ValueError(f"it is beyond what a {wanted} holds")
        return made
    if types.is_string(wanted) or types.is_binary(wanted):
        return made
    if types.is_decimal(column.type):
        wide = pa.decimal256(_WIDEST, column.type.scale)
        again = pc.cast(made, pa.string()) if is_rounded else made
        same = pc.equal(pc.cast(again, wide), pc.cast(column, wide))
    else:
        same = pc.equal(pc.cast(made, column.type), column)
    if types.is_floating(column.type):
        same = pc.or_(same, pc.is_nan(column))
    if not pc.all(same, min_count=0).as_py():
        raise ValueError(f"something of it would be lost as {wanted}")
    return made


def _are_some(flags: pa.Array) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
