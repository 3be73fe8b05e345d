"""A lake's table and stream as one DataFrame, with the table's files read by Spark's own Parquet reader.

The two parts meet and end at cuts that are fixed on creation, so the DataFrame doesn't change as table and stream grow.
Spark matches columns of files by name, Iceberg by id. So `option("source", "union")` is used instead where other
engines have renamed, dropped or retyped columns or deleted rows, and where the end is before the table's cut in some
segments only.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from nadi.defaults import DEFAULT_URI
from nadi.naming import APPEND_TIME, EVENT_TIME, VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from nadi.lake.definition import LakeDefinition
    from nadi.lake.union_scan import Union

_MOST_CONDITIONS = 500


def union(
    spark: SparkSession,
    scope: str,
    stream: str,
    *,
    controller: str = DEFAULT_URI,
    end: str | None = None,
    lake: str | None = None,
    **connection: str,
) -> DataFrame:
    """Return a lake's table and stream as one DataFrame, up to `end`: a cut's text, a bookmark or a time; by default
    the stream's tail.

    connection: auth_user, auth_password, auth_token, auth_certificate, auth_key, trust_store, validate_host_name, as
    options of `format("nadi")`.
    """
    from nadi.client import StreamManager  # loads the client, which schema requests don't need
    from nadi.lake.definition import lake_name, record_of
    from nadi.lake.union_scan import union as union_scan
    from nadi.spark.columns import spark_schema
    from nadi.spark.options.parsed import ReadOptions

    where = {"controller": controller, "scope": scope, "stream": stream, **connection}
    options = ReadOptions.from_spark(where)
    address = options.controller
    given: dict[str, Any] = {"credentials": address.credentials, "trust_store": address.trust_store}
    with StreamManager(address.uri, validate_host_name=address.validate_host_name, **given) as manager:
        scan = union_scan(manager, scope, stream, at=end, name=lake)
        definition = record_of(manager, scope, lake_name(stream, lake)).definition
    conditions = scan.table_conditions
    schema = spark_schema(scan.schema)
    if conditions is None or len(conditions) > _MOST_CONDITIONS:
        extra = {"end": end} if end is not None else {}
        extra |= {"lake": lake} if lake is not None else {}
        return spark.read.format("nadi").options(**where, source="union", **extra).load()
    parts = [spark.createDataFrame([], schema)]
    if scan.table_files:
        parts = [spark.read.schema(schema).parquet(*scan.table_files).where(_all(conditions))]
    if scan.stream_bytes:
        parts.append(_stream(spark, where, scan, definition))
    joined = reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), parts)
    return joined.select(*(f"`{name.replace('`', '``')}`" for name in schema.names))


def _all(conditions: list[tuple[int, int]]) -> Column:
    from pyspark.sql.functions import col, lit

    condition = lit(True)
    for segment, limit in conditions:
        condition = condition & ((col("_segment_id") != segment) | (col("_offset") < limit))
    has_position = col("_segment_id").isNotNull() & col("_offset").isNotNull()  # null in rows of another engine
    return ~has_position | condition if conditions else condition


def _stream(spark: SparkSession, where: dict[str, str], scan: Union, lake: LakeDefinition) -> DataFrame:
    from pyspark.sql.functions import col

    from nadi.client.values.options import DROP

    names = ["segment_id", "offset", APPEND_TIME, EVENT_TIME]
    options: dict[str, str] = {"eventTimeUnit": lake.event_time_unit}
    if lake.value_format is not None:
        options |= {"value_format": lake.value_format, "value_mode": DROP}
        options |= {"value_schema": lake.value_schema} if lake.value_schema is not None else {}
    first = [VALUE, *(["event"] if lake.keep_events else [])] if lake.value_format is not None else ["event"]
    frame = (
        spark.read.format("nadi")
        .options(**where, **options, columns=",".join([*first, *names]))
        .options(start=scan.table_cut.as_text(), end=scan.cut.as_text())
        .load()
    )
    own = [col("value.*")] if lake.value_format is not None else [col("event")]
    own += [col("event").alias("_event")] if lake.keep_events else []
    return frame.select(*own, *(col(name).alias(f"_{name}") for name in names))
