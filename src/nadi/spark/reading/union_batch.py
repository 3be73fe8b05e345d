"""A lake's table and stream as one batch: planned beside the driver, read in the tasks (`nadi.lake.union`)."""

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
from nadi.spark.options.parsed import GivenOptions, ReadOptions
from nadi.spark.options.table import SparkFormat, Use

if TYPE_CHECKING:
    from nadi.lake.union_scan import UnionSplit

SOURCE, UNION, LAKE, COLUMNS = "source", "union", "lake", "columns"
_WITH_UNION = {
    *(SOURCE, LAKE, COLUMNS, "controller", "scope", "stream", "end", "end_stream_cut", "endingtimestamp"),
    *("auth_user", "auth_password", "auth_token", "trust_store", "validate_host_name"),
    *("max_partitions", "min_partition_bytes"),
}


def is_union(given: Mapping[str, str]) -> bool:
    """Whether the options ask for table and stream; InvalidArgumentError for another source, or a lake without one."""
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
        found = GivenOptions.checked(given, Use.READ, format_)
        for name in found:
            if name not in _WITH_UNION:
                raise InvalidArgumentError(f"the option {name!r} has no effect with 'source' = union")
        found.pop(SOURCE, None)
        self.lake, names = found.pop(LAKE, None), found.pop(COLUMNS, None)
        self.columns = None if names is None else [name.strip() for name in names.split(",")]
        self.options = ReadOptions.from_spark(found, Use.READ, format_)
        end = self.options.end
        self.end: StreamCut | datetime | str | None = (
            datetime.fromtimestamp(end / 1000, UTC) if isinstance(end, int) else end
        )
        self.stream = manager_of(self.options.controller), self.options.scope, self.options.stream


def schema_of_union(given: Mapping[str, str], format_: SparkFormat) -> StructType:
    from nadi.lake.union_scan import union_schema

    wanted = _UnionRequest(given, format_)
    return spark_schema(union_schema(*wanted.stream, columns=wanted.columns, name=wanted.lake))


class UnionPartition(InputPartition):
    def __init__(self, split: UnionSplit | None) -> None:
        super().__init__(split)
        self.split = split


class UnionReader(DataSourceReader):
    def __init__(self, given: Mapping[str, str], format_: SparkFormat, schema: StructType) -> None:
        self._given, self._format, self._schema = dict(given), format_, schema

    def partitions(self) -> Sequence[InputPartition]:
        from nadi.lake.union_scan import union

        wanted, names = _UnionRequest(self._given, self._format), self._schema.names
        if wanted.columns not in (None, names):
            raise InvalidArgumentError(
                f"the option 'columns' names {', '.join(wanted.columns or ())}, and .schema(...) other columns: leave "
                "one of them out"
            )
        found = union(*wanted.stream, at=wanted.end, columns=names, name=wanted.lake)
        columns = spark_schema(found.schema)
        if columns.simpleString() != self._schema.simpleString():
            raise InvalidArgumentError(
                f"the table's columns are {columns.simpleString()[:300]}, not {self._schema.simpleString()[:300]}: "
                "leave out .schema(...), or load it again, for they have changed since"
            )
        options = wanted.options
        enough = -(-(found.table_bytes + found.stream_bytes) // options.min_partition_bytes)
        splits = found.splits(min(options.max_partitions, max(enough, 1)))
        return [UnionPartition(split) for split in splits] or [UnionPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, UnionPartition)
        begin_task()
        return iter(()) if partition.split is None else partition.split.batches()
