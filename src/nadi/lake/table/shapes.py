"""A table's columns beside those that rows have: the table grows where Iceberg allows it, and rows are made to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nadi.errors import UnavailableError
from nadi.lake.stopped import LakeStoppedError
from nadi.lake.table.catalogs import load_table, reaching

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def evolved(catalog: Catalog, table: Table, rows: pa.Schema) -> Table:
    """The table with all columns that rows have; LakeStoppedError for a change that Iceberg doesn't have.

    New columns are null in the rows that are there, and columns that rows don't have any more in new ones. Numbers
    grow: int to long, float to double, a decimal's digits.
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationError

    name = ".".join(table.name())
    before = table.schema()
    with reaching("the catalog"):
        try:
            with table.update_schema() as change:
                change.union_by_name(rows)
        except CommitFailedException as error:
            raise UnavailableError(f"another has changed the columns of {name} meanwhile: {error}") from error
        except (ValueError, TypeError, ValidationError) as error:
            raise LakeStoppedError(
                f"the events' columns have changed so that table {name} can't follow ({error}). What lies before the "
                "table's cut is in it. Give events of the new kind a stream, or the lake fields that both have "
                "(--schema), or start another lake with a table of its own from here (--name, --table, --from)"
            ) from error
    if table.schema() == before:
        return table
    found = load_table(catalog, name)
    if found is None:
        raise UnavailableError(f"table {name} was dropped meanwhile")
    return found


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
