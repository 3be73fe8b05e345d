"""Partitions: parses `day(event_time),bucket(16,key)`, and divides rows by partition.

The transforms are PyIceberg's, computed once for each distinct value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.errors import InvalidArgumentError
from nadi.lake.table.error_mapping import LakeStoppedError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table.metadata import TableMetadata

_FIELD = re.compile(r"\s*(?:([a-z]+)\(\s*(?:(\d{1,9})\s*,\s*)?([^(),]+?)\s*\)|([^(),]+?))\s*")
_OF_TIMES = ("year", "month", "day", "hour")
_SIZED = ("bucket", "truncate")
_HOUR_US = 3_600_000_000
_EXACT = Context(prec=76)
Key = tuple[Any, ...]


def partition_fields(text: str) -> list[tuple[str, str]]:
    """Return columns with Iceberg's transforms; InvalidArgumentError for other text.

    >>> partition_fields("day(event_time), bucket(16, key), site")
    [('event_time', 'day'), ('key', 'bucket[16]'), ('site', 'identity')]
    """
    fields = []
    for part in re.split(r",(?![^(]*\))", text) if text.strip() else []:
        match = _FIELD.fullmatch(part)
        if match is None:
            raise _wrong(part)
        name, size, column, alone = match.groups()
        if alone is not None:
            fields.append((alone, "identity"))
        elif name in ("identity", *_OF_TIMES) and size is None:
            fields.append((column, name))
        elif name in _SIZED and size is not None and int(size) > 0:
            fields.append((column, f"{name}[{int(size)}]"))
        else:
            raise _wrong(part)
    return fields


def _wrong(part: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"invalid partition {part.strip()[:60]!r}: write columns, year(c), month(c), day(c), hour(c), bucket(n,c) or "
        "truncate(n,c), separated by commas"
    )


def check_columns(fields: Iterable[tuple[str, str]], rows: pa.Schema) -> None:
    """Raise InvalidArgumentError unless rows of that schema have these columns, of types that the transforms accept."""
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.transforms import parse_transform

    schema = assign_fresh_schema_ids(Catalog._convert_schema_if_needed(rows))
    for name, transform in fields:
        if name not in schema.column_names:
            raise InvalidArgumentError(f"partition column {name!r} doesn't exist: choose from {', '.join(rows.names)}")
        kind = schema.find_type(name)
        if not parse_transform(transform).can_transform(kind):
            raise InvalidArgumentError(
                f"partition column {name!r} is {kind}, which {transform} doesn't accept: choose another transform"
            )


def misplaced(fields: Iterable[tuple[str, str]], batch: pa.RecordBatch) -> dict[int, str]:
    """Return the rows that can't have a partition, by number, with reasons: `truncate` maps the least numbers of a type
    to ones out of its range. Missing columns are ignored.

    >>> rows = pa.RecordBatch.from_pydict({"wh": pa.array([-(2**31), 0], pa.int32())})
    >>> misplaced([("wh", "truncate[10]")], rows)
    {0: 'wh: truncate[10] of -2147483648 is less than the least int32, so it has no partition'}
    """
    reasons: dict[int, str] = {}
    for name, transform in fields:
        if not transform.startswith("truncate") or (column := _column(batch, name)) is None:
            continue
        width = int(transform[len("truncate[") : -1])
        if pa.types.is_integer(column.type):
            least = -(1 << column.type.bit_width - 1)
            limit = pa.scalar(-(-least // width) * width, column.type)
        elif pa.types.is_decimal(column.type):
            least = 1 - 10**column.type.precision
            limit = pa.scalar(Decimal(-(-least // width) * width).scaleb(-column.type.scale, _EXACT), column.type)
        else:
            continue
        for row in np.flatnonzero(pc.less(column, limit).fill_null(False).to_numpy(zero_copy_only=False)).tolist():
            why = f"{transform} of {column[row].as_py()} is less than the least {column.type}, so it has no partition"
            reasons.setdefault(row, f"{name}: {why}")
    return reasons


class Partitions:
    def __init__(self, metadata: TableMetadata) -> None:
        schema = metadata.schema()
        self._fields = [(field, schema.find_column_name(field.source_id) or "") for field in metadata.spec().fields]
        self._types = [schema.find_type(field.source_id) for field, _ in self._fields]

    def of(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if not self._fields:
            yield (), batch
            return
        codes = np.zeros(batch.num_rows, np.int64)
        columns = []
        for (field, name), kind in zip(self._fields, self._types, strict=True):
            try:
                column = _transformed(field, kind, _column(batch, name)).dictionary_encode("encode")
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise LakeStoppedError(
                    f"column {name!r} has a value that the partition transform {field.transform} can't handle: "
                    f"{error}. Events before the table's cut are in the table"
                ) from error
            columns.append(column.dictionary)
            _, codes = np.unique(
                codes * max(len(column.dictionary), 1) + column.indices.to_numpy(zero_copy_only=False),
                return_inverse=True,
            )  # dense codes, so that any number of fields can't overflow
        order = np.argsort(codes, kind="stable")
        borders = np.flatnonzero(np.diff(codes[order])) + 1
        for rows in np.split(order, borders):
            first = int(rows[0])
            key = tuple(
                _transformed(field, kind, _column(batch, name).slice(first, 1))[0].as_py()
                for (field, name), kind in zip(self._fields, self._types, strict=True)
            )
            yield key, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column, or a member of a struct by Iceberg's path, in which names may have dots; None if missing."""
    column, remaining = batch.to_struct_array(), name
    while remaining:
        names = [field.name for field in column.type] if pa.types.is_struct(column.type) else []
        first = max(
            (field_name for field_name in names if f"{remaining}.".startswith(f"{field_name}.")), key=len, default=None
        )
        if first is None:
            return None
        column = pc.struct_field(column, [names.index(first)])
        remaining = remaining[len(first) + 1 :]
    return column


def _transformed(field: PartitionField, kind: Any, column: pa.Array) -> pa.Array:
    """Return a transformed column as Iceberg stores it: times are numbers."""
    name, types = str(field.transform), pa.types
    if types.is_timestamp(column.type):
        column = column.cast(pa.int64())
        if name in _OF_TIMES:  # equal within an hour, and there are fewer hours than times
            micros = column.fill_null(0).to_numpy(zero_copy_only=False)
            column = pa.array(micros - micros % _HOUR_US, mask=column.is_null().to_numpy(zero_copy_only=False))
    elif types.is_date(column.type):
        column = column.cast(pa.int32()).cast(pa.int64())
    if name == "identity":
        return column
    if name == "void":
        return pa.nulls(len(column), pa.int32())
    apply = field.transform.transform(kind)
    encoded = column.dictionary_encode("encode")
    transformed = [None if value is None else apply(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(transformed, column.type if name.startswith("truncate") else pa.int32()).take(encoded.indices)
