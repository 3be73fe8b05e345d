"""Convert Arrow columns of any type to plain types; defines the plain type of each Arrow type.

Arrow has several layouts for the same values: views of strings, bytes and lists, dictionaries, run-end encoding. Events
are written in the `ordinary` layout only, so readers need not support the others, in which few bytes may expand to many
values. `plain` returns the type of a column in a scan and in Spark, nullable throughout; `cast` converts to it.

>>> ordinary(pa.array(["hall", "hall", None]).dictionary_encode()).type
DataType(string)
>>> cast(pa.array([-1], pa.timestamp("ns")), pa.timestamp("us")).cast(pa.int64()).to_pylist()
[-1]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from nadi.errors import InvalidArgumentError
from nadi.naming import PER_SECOND

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_AS_EVENT = "read the bytes as 'event'"


# --- the ordinary layout ----------------------------------------------------------------------------------


def ordinary_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with the same values in Arrow's ordinary layout."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return ordinary_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        storage = ordinary_type(kind.storage_type)
        return kind if storage == kind.storage_type else storage
    if types.is_struct(kind):
        return pa.struct([*map(_ordinary_field, kind)])
    if types.is_map(kind):
        return pa.map_(_ordinary_field(kind.key_field), _ordinary_field(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_ordinary_field(kind.value_field), kind.list_size)
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(_ordinary_field(kind.value_field))
    return pa.list_(_ordinary_field(kind.value_field)) if types.is_list(kind) or types.is_list_view(kind) else kind


def _ordinary_field(field: pa.Field) -> pa.Field:
    return field.with_type(ordinary_type(field.type))


def ordinary_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*map(_ordinary_field, schema)], schema.metadata)


def ordinary(column: pa.Array) -> pa.Array:
    """Return the same values in the type that `ordinary_type` returns."""
    types, kind = pa.types, column.type
    target = ordinary_type(kind)
    if target == kind:
        return column
    if types.is_dictionary(kind):
        return ordinary(column.dictionary).take(column.indices)
    if types.is_run_end_encoded(kind):
        rows = np.arange(column.offset, column.offset + len(column))
        return ordinary(column.values).take(pa.array(np.searchsorted(column.run_ends.to_numpy(), rows, side="right")))
    if isinstance(kind, pa.BaseExtensionType):
        return ordinary(column.storage)
    return column.cast(target) if not types.is_nested(kind) else within(column, target, ordinary)


def within(column: pa.Array, wanted: pa.DataType, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return a column of structs, maps or lists as the type `wanted`, its parts converted by `convert`."""
    types, kind = pa.types, column.type
    mask = column.is_null() if column.null_count else None
    if types.is_struct(kind):
        parts = [convert(part) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
    if types.is_map(kind):
        offsets, start, end = _list_offsets(column)
        keys, items = (convert(part.slice(start, end - start)) for part in (column.keys, column.items))
        return pa.MapArray.from_arrays(offsets.cast(pa.int32()), keys, items, type=wanted, mask=mask)
    if types.is_list(kind) or types.is_large_list(kind):
        offsets, start, end = _list_offsets(column)
        values = convert(column.values.slice(start, end - start))
    elif types.is_fixed_size_list(kind):
        size = kind.list_size
        values = convert(column.values.slice(column.offset * size, len(column) * size))
        if types.is_fixed_size_list(wanted):
            return pa.FixedSizeListArray.from_arrays(values, type=wanted, mask=mask)
        offsets = pa.array(np.arange(len(column) + 1) * size)
    else:  # views: pyarrow 26 would create an array with too few offsets
        offsets, indices = _view_indices(column)
        values = convert(column.values).take(indices)
    if types.is_large_list(wanted):
        return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), values, type=wanted, mask=mask)
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), values, type=wanted, mask=mask)


def _list_offsets(column: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the offset of each list in the slice of values, and the start and end of that slice."""
    offsets: _Numbers = column.offsets.to_numpy().astype(np.int64)
    start, end = int(offsets[0]), int(offsets[-1])
    return pa.array(offsets - start), start, end


def _view_indices(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets of a column of list views as contiguous lists, and the indices of their values."""
    is_valid = column.is_valid().to_numpy(zero_copy_only=False)
    sizes: _Numbers = np.where(is_valid, column.sizes.to_numpy(), 0).astype(np.int64)
    ends = np.append(0, np.cumsum(sizes))
    shifts = column.offsets.to_numpy().astype(np.int64) - ends[:-1]
    return pa.array(ends), pa.array(np.arange(ends[-1]) + np.repeat(shifts, sizes))


# --- the types of scans and of Spark -------------------------------------------------------------------------


def plain(kind: pa.DataType, path: str = "value", instead: str = _AS_EVENT) -> pa.DataType:
    """Return the type of a column of these values in a scan and in Spark; InvalidArgumentError if it has none.

    path: the values' path and instead: the remedy, both for the error.
    """
    types = pa.types
    kind = ordinary_type(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if kind == pa.bool8() else plain(kind.storage_type, path, instead)
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"{path} has two fields of the same name ({', '.join(names)}): rename one")
        return pa.struct([(field.name, plain(field.type, f"{path}.{field.name}", instead)) for field in kind])
    if types.is_map(kind):
        item = plain(kind.item_type, f"{path}.value", instead)
        return pa.map_(plain(kind.key_type, f"{path}.key", instead), item)
    if any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        return pa.list_(pa.field("element", plain(kind.value_type, f"{path}.element", instead)))
    leaf = _plain_leaf(kind)
    if leaf is None:
        raise InvalidArgumentError(f"{path} is {kind}, a type that Spark lacks: {instead}")
    return leaf


def _plain_leaf(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind):
        fits = kind.precision <= 38 and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if fits else pa.string()
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[kind.bit_width]
    if types.is_signed_integer(kind) or types.is_boolean(kind):
        return kind
    if types.is_floating(kind):
        return pa.float64() if kind.bit_width == 64 else pa.float32()
    if types.is_date(kind):
        return pa.date32()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    texts = (types.is_string, types.is_large_string, types.is_null, types.is_time)
    return pa.string() if any(test(kind) for test in texts) else None


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the column in another type with the same values; times are truncated to a coarser unit."""
    types, kind = pa.types, column.type
    if kind == wanted:
        return column
    if isinstance(kind, pa.BaseExtensionType):
        return cast(column.storage, wanted)
    ordinary_column = ordinary(column)
    if ordinary_column is not column:
        return cast(ordinary_column, wanted)
    if types.is_struct(kind) and types.is_struct(wanted):
        parts = zip(column.flatten(), wanted, strict=True)
        mask = column.is_null() if column.null_count else None
        converted = [cast(part, field.type) for part, field in parts]
        return pa.StructArray.from_arrays(converted, fields=list(wanted), mask=mask)
    if types.is_map(kind) and types.is_map(wanted):
        kinds = iter((wanted.key_type, wanted.item_type))
        return within(column, wanted, lambda part: cast(part, next(kinds)))
    if types.is_list(wanted) and types.is_nested(kind):
        return within(column, wanted, lambda part: cast(part, wanted.value_type))
    if types.is_timestamp(kind) and types.is_timestamp(wanted):
        return floored(column, wanted)
    return compute.cast(column, options=compute.CastOptions(wanted, allow_time_truncate=True))


def floored(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return timestamps in another unit, rounded down to a coarser one; Arrow would round towards 1970."""
    per = PER_SECOND[column.type.unit] // PER_SECOND[wanted.unit]
    if per <= 1:
        return compute.cast(column, wanted)
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy() // per
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(numbers, mask=mask).cast(wanted)
