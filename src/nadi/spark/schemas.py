"""Arrow's schemas as Spark's, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(columns: pa.Schema) -> StructType:
    """Spark's schema of columns whose types are plain."""
    from pyspark.sql.pandas.types import from_arrow_schema

    found: StructType = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    return found


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of Spark's rows, as its tasks hand them over."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
