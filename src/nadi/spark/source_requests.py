"""Answers Spark's requests to a format (`registered`) with `reading` and `sink`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.scan.pieces import chained, pieces_of, split_large
from nadi.client.scan.positions import with_positions
from nadi.client.scan.rows import arrow_schema
from nadi.client.stream_cuts.timestamps import event_moment, is_moment
from nadi.client.values.options import ReadTarget, ValueOptions
from nadi.errors import InvalidArgumentError, NadiError, StreamNotFoundError
from nadi.spark.columns import NO_TABLES, arrow_columns, schema_of, spark_schema
from nadi.spark.connections import client_of
from nadi.spark.options.parsed import ReadOptions, WriteOptions
from nadi.spark.options.table import NO_ENDING_MOMENT, SparkFormat, Use
from nadi.spark.reading import plan
from nadi.spark.reading.direct import read_pieces
from nadi.spark.reading.plan import PiecesPartition, partitions_of
from nadi.spark.reading.streaming import RefusedStreamReader, StreamReader
from nadi.spark.reading.union_batch import UnionReader, is_union, schema_of_union
from nadi.spark.sink import BatchWriter, SinkColumns, StreamWriter, check_overwrite, plan_of

# the options that determine a schema: Spark requests it before the other options are known
_OF_SCHEMA = {
    *("controller", "scope", "stream", "streams", "stream_pattern", "stream_tag", "columns", "eventtimeunit"),
    *("auth_user", "auth_password", "auth_token", "auth_certificate", "auth_key", "trust_store", "validate_host_name"),
    *("value_format", "value_schema", "value_version", "value_mode"),
}
_SEEN_S = 1.0  # a query checks twice per batch that its stream exists
Row = tuple[str | None, ...]


class MetadataReader(DataSourceReader):
    """Reads all rows in one task, when it runs."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, _: InputPartition) -> Iterator[Row]:
        client = client_of(self._options.controller)
        return iter(client.run(self._rows(client.manager)))

    async def _rows(self, manager: StreamManager) -> list[Row]:
        scope, stream = self._options.scope, self._options.stream
        if self._options.metadata == "Streams":
            return [(scope, name) for name in sorted(await manager.list_streams(scope))]
        if self._options.metadata == "StreamInfo":
            info = await manager.stream_info(scope, stream)
            return [(info.head.as_text(), info.tail.as_text())]
        await manager.stream_configuration(scope, stream)  # StreamNotFoundError
        bookmarks = await manager.bookmarks(scope).list(stream=stream)
        slices = await manager.slices(scope).list(stream=stream)
        return [
            *(("bookmark", bookmark.name, bookmark.cut.as_text(), None) for bookmark in bookmarks),
            *(("slice", named.name, named.start.as_text(), named.end.as_text()) for named in slices),
        ]


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        client = client_of(self._options.controller)
        return client.run(self._planned(client.manager))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return read_pieces(self._options, partition.pieces)

    async def _planned(self, manager: StreamManager) -> list[PiecesPartition]:
        options = self._options
        names = await plan.streams_of(manager, options)
        if not names:
            raise InvalidArgumentError(
                f"scope {options.scope} lacks a stream that matches {options.several}: check the option"
            )
        pieces = []
        for name in names:
            pieces += pieces_of(name, await plan.batch_slices(manager, options.of_stream(name)))
        pieces = await with_positions(manager, options, pieces)
        if options.ordered:
            return partitions_of(options, pieces, await chained(manager, options.scope, pieces))
        sizes = options.max_partitions, options.min_partition_bytes
        return partitions_of(options, await split_large(manager, options.scope, pieces, *sizes))


class SourceRequest:
    """One request of Spark to the data source. given: the options as the user gave them."""

    def __init__(self, given: Mapping[str, str], format_: SparkFormat) -> None:
        self._given, self._format = given, format_

    def schema(self) -> StructType:
        """Return the schema of a read with a column of values, or of a union; other schemas follow from `columns`."""
        if is_union(self._given):
            return schema_of_union(self._given, self._format)
        known = {name: value for name, value in self._given.items() if name.lower() in _OF_SCHEMA}
        options = _with_target(ReadOptions.from_spark(known, Use.READ, self._format), lambda _: True)
        return spark_schema(arrow_schema(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        if is_union(self._given):
            return UnionReader(self._given, self._format, schema)
        self._check_any()
        options = ReadOptions.from_spark(self._given, Use.READ, self._format)
        return BatchReader(_readable(options, schema)) if options.metadata is None else MetadataReader(options)

    def stream_reader(self, schema: StructType) -> StreamReader | RefusedStreamReader:
        try:
            self._check_any()
            options = _readable(ReadOptions.from_spark(self._given, Use.READ_STREAM, self._format), schema)
            for end in (options.end, *options.ends.values()):
                if isinstance(end, str) and is_moment(end) and event_moment(end) is None:
                    raise InvalidArgumentError(f"the option 'end' is a time, {end}: {NO_ENDING_MOMENT}")
        except NadiError as error:
            return RefusedStreamReader(error)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        self._check_any()
        check_overwrite(WriteOptions.from_spark(self._given, Use.WRITE, self._format), overwrite=overwrite)
        options = self._writable(Use.WRITE, schema)
        client = client_of(options.controller)
        return BatchWriter(options, schema, client.run(plan_of(client.manager, options)))

    def stream_writer(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidArgumentError(
                'outputMode("complete") rewrites all results in each batch: use .outputMode("append")'
            )
        self._check_any()
        return StreamWriter(self._writable(Use.WRITE_STREAM, schema), schema)

    def _check_any(self) -> None:
        if not self._given:
            raise InvalidArgumentError(f"no options were given. {NO_TABLES}")

    def _writable(self, use: Use, schema: StructType) -> WriteOptions:
        options = WriteOptions.from_spark(self._given, use, self._format)
        client = client_of(options.controller)
        key, now = (options.scope, options.stream), time.monotonic()
        if use is Use.WRITE or now - client.seen.get(key, -_SEEN_S) >= _SEEN_S:
            client.run(_ensure_stream(client.manager, options))
            client.seen[key] = now
        return options if options.value is None else _with_encoding(options, options.value, schema)


async def _ensure_stream(manager: StreamManager, options: WriteOptions) -> None:
    """Create the stream if it doesn't exist; StreamNotFoundError, ScopeNotFoundError if that isn't allowed."""
    scope, stream = options.scope, options.stream
    if await stores_of(manager).controller.stream_exists(scope, stream):
        return
    if options.creates_scope:
        await manager.create_scope(scope)
    if not options.creates_stream:
        raise StreamNotFoundError(scope, stream)
    await manager.create_stream(scope, stream, scaling=options.scaling, retention=options.retention)


def _with_encoding(options: WriteOptions, value: ValueOptions, schema: StructType) -> WriteOptions:
    """Return the options with the encoding of values; InvalidArgumentError if the rows' column doesn't fit."""
    from nadi.client.values.parser import check_column
    from nadi.client.values.target import target_of

    client = client_of(options.controller)
    target = client.run(target_of(client.manager, value, options.scope, [options.stream]))
    assert target is not None
    event = schema.fields[SinkColumns.of(schema, options).event]
    try:
        kind = arrow_columns(StructType([event])).field(0).type
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the column {options.event_column!r} is {event.dataType.simpleString()}, a type that Spark can't pass to "
            f"Python: cast it to another type ({error})"
        ) from None
    check_column(kind, target, options.event_column)
    return replace(options, target=target)


def _with_target(options: ReadOptions, is_accepted: Callable[[ReadOptions], bool]) -> ReadOptions:
    """Return the options with the type of values; without it if `is_accepted` rejects all versions of the schema."""
    from nadi.client.values.target import target_of

    client, value = client_of(options.controller), options.value
    assert value is not None

    async def resolved() -> ReadTarget | None:
        streams = await plan.streams_of(client.manager, options)
        return await target_of(
            client.manager, value, options.scope, streams, lambda target: is_accepted(replace(options, target=target))
        )

    return replace(options, target=client.run(resolved()))


def _readable(options: ReadOptions, schema: StructType) -> ReadOptions:
    if options.value is not None:
        given = schema.simpleString()
        options = _with_target(options, lambda read: spark_schema(arrow_schema(read)).simpleString() == given)
        if options.target is None:
            raise InvalidArgumentError(
                f"values are read with the stream's own schema, which is in no version {given[:300]}: remove "
                ".schema(...), or list the fields in 'value_schema'"
            )
        return options
    own = schema_of(options.columns, options.event_time_unit)
    names = ((field.name, field.dataType.typeName()) for field in schema.fields)
    if own != ", ".join(f"{name} {'timestamp_ltz' if kind == 'timestamp' else kind}" for name, kind in names):
        raise InvalidArgumentError(f"the schema of this read is {own}: remove .schema(...)")
    return options
