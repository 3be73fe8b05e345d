"""The data source that Spark finds as `nadi`, and its two readers.

The streaming reader lives beside the driver for as long as the query runs; `read` runs in the tasks,
on a pickled copy, so that a reader holds its options and nothing else that matters there.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from nadi.client.cuts import HEAD, TAIL, SegmentSlice
from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.model.streamcut import StreamCut
from nadi.spark import plan
from nadi.spark.connections import client_of
from nadi.spark.options import Options
from nadi.spark.rows import SCHEMA, read_slices
from nadi.spark.sink import BatchWriter, StreamWriter


class SlicesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, slices: tuple[SegmentSlice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


class DefaultSource(DataSource):
    """`format("nadi")`: a stream as rows (event, scope, stream, segment_id, offset), and rows as events."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed: Options | None = None

    @classmethod
    def name(cls) -> str:
        return "nadi"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(_readable(Options.from_spark(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _readable(Options.from_spark(self.options), schema)
        if isinstance(options.end, int):  # a restart would find another cut for a moment still to come
            raise InvalidArgumentError(
                "a streaming query takes no option 'endingTimestamp': end it at a cut or bookmark with 'end', "
                "or read the slice as a batch"
            )
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(_writable(Options.from_spark(self.options), overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(_writable(Options.from_spark(self.options), overwrite), schema)


def _readable(options: Options, schema: StructType) -> Options:
    found = ", ".join(f"{field.name} {field.dataType.typeName()}" for field in schema.fields)
    if found != SCHEMA:
        raise InvalidArgumentError(f"a stream is read with its own schema, {SCHEMA}: leave out .schema(...)")
    return options


def _writable(options: Options, overwrite: bool) -> Options:
    if overwrite:
        raise InvalidArgumentError('a stream can only be appended to: use .mode("append")')
    return options


def _partitions(options: Options, slices: list[SegmentSlice]) -> list[SlicesPartition]:
    """At least one: with none Spark calls `read` with None."""
    tasks = plan.tasks(slices, options.max_partitions, options.min_partition_bytes)
    return [SlicesPartition(task) for task in tasks] or [SlicesPartition(())]


class BatchReader(DataSourceReader):
    """Everything between two cuts."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        client = client_of(self._options.controller)
        slices = client.run(plan.batch_slices(client.manager, self._options))
        return _partitions(self._options, slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicesPartition)
        return read_slices(self._options, partition.slices)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream from a cut on; offsets are `{"cut": <the text of a stream cut>}`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: StreamCut | None = None  # that Trigger.AvailableNow may go to
        self._end: StreamCut | None = None

    def initialOffset(self) -> dict[str, Any]:
        client = client_of(self._options.controller)
        options = client.run(plan.with_slice(client.manager, self._options))
        return _offset(
            client.run(plan.resolve(client.manager, options, HEAD if options.start is None else options.start))
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        client = client_of(self._options.controller)
        cut = _cut(start)
        if self._end is None and (self._options.end or self._options.slice_name):
            options = client.run(plan.with_slice(client.manager, self._options))
            self._end = client.run(plan.resolve(client.manager, options, options.end or TAIL))
        bounds = [bound for bound in (self._last, self._end) if bound is not None]
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        end = client.run(plan.next_cut(client.manager, self._options, cut, bounds, max_bytes))
        return start if end == cut else _offset(end)

    def prepareForTriggerAvailableNow(self) -> None:
        client = client_of(self._options.controller)
        self._last = client.run(plan.resolve(client.manager, self._options, TAIL))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        client = client_of(self._options.controller)
        slices = plan.slices_of(_cut(start), _cut(end))
        return _partitions(self._options, client.run(plan.narrowed(client.manager, self._options, slices)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicesPartition)
        return read_slices(self._options, partition.slices)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the offsets are Spark's to keep, and the stream's retention is its own."""


def _offset(cut: StreamCut) -> dict[str, Any]:
    return {"cut": cut.as_text()}


def _cut(offset: dict[str, Any]) -> StreamCut:
    text = offset.get("cut")
    if not isinstance(text, str):
        raise InvalidStreamCutError(f"{offset} is no offset of a nadi stream: the checkpoint is another query's")
    return StreamCut.from_text(text)
