"""The fields of values as columns of their own."""

from __future__ import annotations

import pyarrow as pa

from nadi.errors import InvalidArgumentError
from nadi.naming import VALUE


def unnested_schema(made: pa.Schema) -> pa.Schema:
    """The columns with the fields in place of the value. InvalidArgumentError where there are none, or where two
    columns had one name.

    >>> unnested_schema(pa.schema({"value": pa.struct({"wh": pa.int64()}), "offset": pa.int64()})).names
    ['wh', 'offset']
    """
    value = made.field(VALUE)
    if not pa.types.is_struct(value.type):
        raise InvalidArgumentError(f"unnest has no effect on values that are {value.type}, and have no fields")
    fields: list[pa.Field] = []
    for column in made:
        fields += list(value.type) if column.name == VALUE else [column]
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"the values have a field {twice!r}, as is a column called: leave that out of columns, or don't unnest"
        )
    return pa.schema(fields)


def unnested(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with those columns; where a value is null, its fields are."""
    columns: list[pa.Array] = []
    for name in batch.schema.names:
        column = batch.column(name)
        columns += column.flatten() if name == VALUE else [column]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
