"""Read a lake's table and stream as one batch: planned in the driver's process, read in tasks
(`nadi.lake.union_scan`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from nadi.errors import InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.spark.columns import spark_schema
from nadi.spark.connections import begin_task, manager_of
from nadi.spark.options.parsed import ReadOptions, SparkOptions
from nadi.spark.options.table import SparkFormat, Use

if TYPE_CHECKING:
    from nadi.lake.union_scan import UnionSplit

SOURCE, UNION, LAKE, COLUMNS = "source", "union", "lake", "columns"
_WITH_UNION = {
    *(SOURCE, LAKE, COLUMNS, "controller", "scope", "stream", "end", "end_stream_cut", "endingtimestamp"),
    *("auth_user", "auth_password", "auth_token", "auth_certificate", "auth_key", "trust_store", "validate_host_name"),
    *("max_partitions", "min_partition_bytes"),
}


def is_union(given: Mapping[str, str]) -> bool:
    """Return whether the options select table and stream; InvalidArgumentError for unknown sources and unused lakes."""
    options = {name.lower(): value for name, value in given.items()}
    source = options.get(SOURCE, "stream").lower()
    if source not in (UNION, "stream"):
        raise InvalidArgumentError(f"the option 'source' is {source[:40]!r}: it must be stream or union")
    if LAKE in options and source != UNION:
        raise InvalidArgumentError("the option 'lake' has no effect without 'source' = union")
    return source == UNION


class _UnionRequest:
    def __init__(self, given: Mapping[str, str], format_: SparkFormat) -> None:
        begin_task()
        options = SparkOptions.checked(given, Use.READ, format_)
        for name in options:
            if name not in _WITH_UNION:
                raise InvalidArgumentError(f"the option {name!r} has no effect with 'source' = union")
        options.pop(SOURCE, None)
        self.lake, names = options.pop(LAKE, None), options.pop(COLUMNS, None)
        self.columns = None if names is None else [name.strip() for name in names.split(",")]
        self.options = ReadOptions.from_spark(options, Use.READ, format_)
        end = self.options.end
        self.end: StreamCut | datetime | str | None = (
            datetime.fromtimestamp(end / 1000, UTC) if isinstance(end, int) else end
        )
        self.stream = manager_of(self.options.controller), self.options.scope, self.options.stream


def schema_of_union(given: Mapping[str, str], format_: SparkFormat) -> StructType:
    from nadi.lake.union_scan import union_schema

    request = _UnionRequest(given, format_)
    return spark_schema(union_schema(*request.stream, columns=request.columns, name=request.lake))


class UnionPartition(InputPartition):
    def __init__(self, split: UnionSplit | None) -> None:
        super().__init__(split)
        self.split = split


class UnionReader(DataSourceReader):
    def __init__(self, given: Mapping[str, str], format_: SparkFormat, schema: StructType) -> None:
        self._given, self._format, self._schema = dict(given), format_, schema

    def partitions(self) -> Sequence[InputPartition]:
        from nadi.lake.union_scan import union

        request, names = _UnionRequest(self._given, self._format), self._schema.names
        if request.columns not in (None, names):
            raise InvalidArgumentError(
                f"the option 'columns' lists {', '.join(request.columns or ())}, but .schema(...) other columns: "
                "remove one of them"
            )
        scan = union(*request.stream, at=request.end, columns=names, name=request.lake)
        columns = spark_schema(scan.schema)
        if columns.simpleString() != self._schema.simpleString():
            raise InvalidArgumentError(
                f"the table's columns are {columns.simpleString()[:300]}, not {self._schema.simpleString()[:300]}: "
                "remove .schema(...), or load the table again, as its columns have changed"
            )
        options = request.options
        count = -(-(scan.table_bytes + scan.stream_bytes) // options.min_partition_bytes)
        splits = scan.splits(min(options.max_partitions, max(count, 1)))
        return [UnionPartition(split) for split in splits] or [UnionPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, UnionPartition)
        begin_task()
        return iter(()) if partition.split is None else partition.split.batches()
