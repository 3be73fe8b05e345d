"""What Spark asks a format for (`registered`), and the two readers of events.

The streaming reader lives beside the driver for as long as the query runs; `read` runs in the tasks,
on a pickled copy, so only a reader's options matter there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import (
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

from nadi.client.manager.streams import stores_of
from nadi.client.places.cuts import SegmentSlice
from nadi.client.places.moments import TAIL, is_moment
from nadi.client.reading.read_ahead import what_became_of
from nadi.errors import (
    InvalidArgumentError,
    NadiError,
    QueryTruncatedError,
    SegmentNotFoundError,
    TruncatedError,
)
from nadi.spark import plan
from nadi.spark.connections import Client, client_of
from nadi.spark.creation import ensure_stream
from nadi.spark.metadata import MetadataReader
from nadi.spark.option_names import NO_ENDING_MOMENT
from nadi.spark.option_table import Format, Use
from nadi.spark.options import METADATA_SCHEMAS, Options
from nadi.spark.progress import Offset, Progress, StreamView
from nadi.spark.rows import SCHEMA, read_slices
from nadi.spark.sink import BatchWriter, StreamWriter


class SlicesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, slices: tuple[SegmentSlice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


class Source:
    """One use of a format: what Spark asks its data source for. given: the options, as the user gave them."""

    def __init__(self, given: Mapping[str, str], format_: Format) -> None:
        self._given, self._format = given, format_

    def schema(self) -> str:
        metadata = {name.lower(): value for name, value in self._given.items()}.get("metadata")
        return SCHEMA if metadata is None else METADATA_SCHEMAS.get(metadata, SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(Use.READ)
        if options.metadata is not None:
            return MetadataReader(options)
        return BatchReader(_readable(options, schema))

    def stream_reader(self, schema: StructType) -> StreamReader | RefusedStreamReader:
        try:
            options = _readable(self._options(Use.READ_STREAM), schema)
            if isinstance(options.end, str) and is_moment(options.end):
                raise InvalidArgumentError(f"the option 'end' is a time, {options.end}: {NO_ENDING_MOMENT}")
        except NadiError as error:
            return RefusedStreamReader(error)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidArgumentError('a stream can only be appended to: use .mode("append")')
        return BatchWriter(_writable(self._options(Use.WRITE)), schema)

    def stream_writer(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidArgumentError('a stream can only be appended to: use .outputMode("append")')
        return StreamWriter(_writable(self._options(Use.WRITE_STREAM)), schema)

    def _options(self, use: Use) -> Options:
        return Options.from_spark(self._given, use, self._format)


def _readable(options: Options, schema: StructType) -> Options:
    found = ", ".join(f"{field.name} {field.dataType.typeName()}" for field in schema.fields)
    if found != SCHEMA:
        raise InvalidArgumentError(f"a stream is read with its own schema, {SCHEMA}: leave out .schema(...)")
    return options


def _writable(options: Options) -> Options:
    client = client_of(options.controller)
    client.run(ensure_stream(client.manager, options.scope, options.stream, options.creation))
    return options


def _partitions(options: Options, slices: list[SegmentSlice]) -> list[SlicesPartition]:
    """The partitions, at least one: with none, Spark calls `read` with None."""
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
    """The stream from a cut on; offsets are those of `progress` as JSON, where `cut` is the text of a stream cut."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._progress: Progress | None = None  # beside the driver only

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Options]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:
        client = client_of(self._options.controller)
        return Offset(client.run(plan.start_of(client.manager, self._options))).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        client, progress = self._begun()
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return client.run(progress.next(Offset.from_json(start), max_bytes)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        client, progress = self._begun()
        tail = client.run(plan.resolve(client.manager, self._options, TAIL))
        client.run(progress.limit_to("what is available now", tail))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        client, progress = self._begun()
        slices = client.run(progress.slices(Offset.from_json(start), Offset.from_json(end)))
        return _partitions(self._options, client.run(plan.narrowed(client.manager, self._options, slices)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicesPartition)
        options = self._options
        try:
            yield from read_slices(options, partition.slices)
        except (TruncatedError, SegmentNotFoundError) as error:  # since the batch was planned
            gap: NadiError = error
            if isinstance(error, SegmentNotFoundError):
                client = client_of(options.controller)
                gap = client.run(what_became_of(stores_of(client.manager), error.segment))
            if not isinstance(gap, TruncatedError):
                raise gap from error
            stream = f"{options.scope}/{options.stream}"
            raise QueryTruncatedError(stream, gap, is_skipping=options.skip_truncated) from error

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark keeps the offsets, and the stream has its own retention."""

    def _begun(self) -> tuple[Client, Progress]:
        client = client_of(self._options.controller)
        if self._progress is None:
            options = client.run(plan.with_slice(client.manager, self._options))
            view = StreamView(client.manager, options.scope, options.stream, options.on_damage)
            progress = Progress(view, skip_truncated=options.skip_truncated)
            if options.end is not None:
                end = client.run(plan.resolve(client.manager, options, options.end))
                client.run(progress.limit_to("end", end))
            self._progress = progress
        return client, self._progress


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what is wrong with a query at Spark's first call: an error raised while a reader is created is hidden by
    Spark's own (it stops the reader that it doesn't have)."""

    def __init__(self, error: NadiError) -> None:
        self._error = error

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self._error

    getDefaultReadLimit = _refuse
    initialOffset = _refuse
    latestOffset = _refuse
    prepareForTriggerAvailableNow = _refuse
    partitions = _refuse
    read = _refuse
