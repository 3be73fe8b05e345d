"""A lake's table and stream as one DataFrame, the table's files read by Spark's own Parquet reader.

Both parts end, and meet, at cuts that are fixed when it is made; so it stays what it is however table and stream go on.
Spark reads the files by the names of columns, and an Iceberg table knows its columns by ids. So where the files may
have other names (others have renamed, dropped or retyped columns), where others have deleted rows from them, or where
the cut lies before the table's in some segments only, it is what `option("source", "union")` gives.
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
    """Return a lake's table and stream as one, up to `end`: a cut's text, a bookmark or a time; the tail if not given.

    connection: auth_user, auth_password, auth_token, trust_store, validate_host_name, as options of `format("nadi")`.
    """
    from nadi.client import StreamManager  # who asks for a schema does without the client
    from nadi.lake.definition import lake_name, record_of
    from nadi.lake.union_scan import union as united
    from nadi.spark.columns import spark_schema
    from nadi.spark.options.parsed import ReadOptions

    where = {"controller": controller, "scope": scope, "stream": stream, **connection}
    options = ReadOptions.from_spark(where)
    to = options.controller
    given: dict[str, Any] = {"credentials": to.credentials, "trust_store": to.trust_store}
    with StreamManager(to.uri, validate_host_name=to.validate_host_name, **given) as manager:
        found = united(manager, scope, stream, at=end, name=lake)
        definition = record_of(manager, scope, lake_name(stream, lake)).definition
    conditions = found.table_conditions
    whole = spark_schema(found.schema)
    if conditions is None or len(conditions) > _MOST_CONDITIONS:
        more = {"end": end} if end is not None else {}
        more |= {"lake": lake} if lake is not None else {}
        return spark.read.format("nadi").options(**where, source="union", **more).load()
    parts = [spark.createDataFrame([], whole)]
    if found.table_files:
        parts = [spark.read.schema(whole).parquet(*found.table_files).where(_all(conditions))]
    if found.stream_bytes:
        parts.append(_stream(spark, where, found, definition))
    joined = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    return joined.select(*(f"`{name.replace('`', '``')}`" for name in whole.names))


def _all(conditions: list[tuple[int, int]]) -> Column:
    from pyspark.sql.functions import col, lit

    found = lit(True)
    for segment, limit in conditions:
        found = found & ((col("_segment_id") != segment) | (col("_offset") < limit))
    has_place = col("_segment_id").isNotNull() & col("_offset").isNotNull()  # else another engine's row
    return ~has_place | found if conditions else found


def _stream(spark: SparkSession, where: dict[str, str], found: Union, lake: LakeDefinition) -> DataFrame:
    from pyspark.sql.functions import col

    from nadi.client.values.options import DROP

    names = ["segment_id", "offset", APPEND_TIME, EVENT_TIME]
    more: dict[str, str] = {"eventTimeUnit": lake.event_time_unit}
    if lake.value_format is not None:
        more |= {"value_format": lake.value_format, "value_mode": DROP}
        more |= {"value_schema": lake.value_schema} if lake.value_schema is not None else {}
    first = [VALUE, *(["event"] if lake.keep_events else [])] if lake.value_format is not None else ["event"]
    frame = (
        spark.read.format("nadi")
        .options(**where, **more, columns=",".join([*first, *names]))
        .options(start=found.table_cut.as_text(), end=found.cut.as_text())
        .load()
    )
    own = [col("value.*")] if lake.value_format is not None else [col("event")]
    own += [col("event").alias("_event")] if lake.keep_events else []
    return frame.select(*own, *(col(name).alias(f"_{name}") for name in names))
