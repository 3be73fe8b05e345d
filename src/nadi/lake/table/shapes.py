"""A table's columns beside those that rows have: the table grows where Iceberg allows it, and rows are made to fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from nadi.client.serializers.types import alike
from nadi.errors import UnavailableError
from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table.catalogs import load_table
from nadi.lake.table.reaching import CATALOG, reaching
from nadi.lake.table.reading import columns_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def evolved(catalog: Catalog, table: Table, rows: pa.Schema) -> Table:
    """The table with all columns that rows have; LakeStoppedError for a change that Iceberg doesn't have.

    New columns are null in the rows that are there, and columns that rows don't have any more in new ones. Numbers
    grow: int to long, float to double, a decimal's digits before the point.
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationError

    name = ".".join(table.name())
    before = table.schema()
    problem = _problem(rows, columns_of(table))
    if problem is not None:
        raise _cannot_follow(name, problem)
    with reaching(CATALOG):
        try:
            with table.update_schema() as change:
                change.union_by_name(rows)
        except CommitFailedException as error:
            raise UnavailableError(f"another has changed the columns of {name} meanwhile: {error}") from error
        except (ValueError, TypeError, ValidationError) as error:
            raise _cannot_follow(name, str(error)) from error
    if table.schema() == before:
        return table
    found = load_table(catalog, name)
    if found is None:
        raise UnavailableError(f"table {name} was dropped meanwhile")
    return found


def _cannot_follow(name: str, why: str) -> LakeStoppedError:
    return LakeStoppedError(
        f"the events' columns have changed so that table {name} can't follow ({why}). What lies before the table's cut "
        "is in it. Give events of the new kind a stream, or the lake fields that both have (--schema), or start "
        "another lake with a table of its own from here (--name, --table, --from)"
    )


def case_problem(fields: Iterable[pa.Field], before: Iterable[pa.Field] = ()) -> str | None:
    """Why no engine could tell the columns of rows apart, or from those that a table has."""
    found = alike(fields, before)
    if found is None:
        return None
    return f"{found[0]!r} and {found[1]!r} differ by case alone, and SQL can't tell them apart: rename the field"


def _problem(rows: pa.Schema, table: pa.Schema) -> str | None:
    """What keeps rows from being rows of the table, grown or not; None if nothing does."""
    problems = (_misfit(one.type, table.field(one.name).type, one.name) for one in rows if one.name in table.names)
    return case_problem(rows, table) or next(filter(None, problems), None)


def _misfit(rows: pa.DataType, table: pa.DataType, path: str) -> str | None:
    types = pa.types
    if types.is_struct(rows) and types.is_struct(table):
        there = {one.name: one.type for one in table}
        problems = (_misfit(one.type, there[one.name], f"{path}.{one.name}") for one in rows if one.name in there)
        return next(filter(None, problems), None)
    if types.is_list(rows) and types.is_list(table):
        return _misfit(rows.value_type, table.value_type, f"{path}.element")
    if types.is_map(rows) and types.is_map(table):
        return _misfit(rows.key_type, table.key_type, f"{path}.key") or _misfit(
            rows.item_type, table.item_type, f"{path}.value"
        )
    grows = (
        rows == table
        or (types.is_integer(rows) and types.is_integer(table))
        or (types.is_floating(rows) and types.is_floating(table))
        or (types.is_decimal(rows) and types.is_decimal(table) and rows.scale == table.scale)
        or (types.is_string(rows) and types.is_binary(table))
    )
    return None if grows else f"{path} is {table} there, and {rows} now"


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns of a table, in their order."""
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        columns.append(pa.nulls(rows.num_rows, field.type) if at < 0 else _as(rows.column(at), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as that type: fields by their names, those that are missing null."""
    types = pa.types
    if column.type == kind:
        return column
    if types.is_struct(kind):
        fields = [
            _as(pa.compute.struct_field(column, one.name), one.type)
            if column.type.get_field_index(one.name) >= 0
            else pa.nulls(len(column), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if types.is_large_list(kind) and (types.is_list(column.type) or types.is_large_list(column.type)):
        offsets = column.offsets.cast(pa.int64())
        values = _as(column.values, kind.value_type)
        return pa.LargeListArray.from_arrays(
            offsets, values, type=kind, mask=column.is_null() if column.null_count else None
        )
    return column.cast(kind)
