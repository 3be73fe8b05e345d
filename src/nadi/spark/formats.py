"""What Spark asks a format for (`registered`), answered by `reading` and `writing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter, InputPartition
from pyspark.sql.types import DataType, StructType, TimestampType

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.places.moments import event_moment, is_moment
from nadi.client.scan.pieces import Piece, chained, divided, pieces_of
from nadi.client.scan.positions import with_positions
from nadi.client.scan.rows import arrow_schema
from nadi.client.values.options import Target, ValueOptions
from nadi.errors import InvalidArgumentError, NadiError, StreamNotFoundError
from nadi.spark.connections import client_of
from nadi.spark.options.columns import NO_TABLES, schema_of
from nadi.spark.options.given import NO_ENDING_MOMENT
from nadi.spark.options.read import ReadOptions
from nadi.spark.options.table import Format, Use
from nadi.spark.options.write import Creation, WriteOptions
from nadi.spark.reading import plan
from nadi.spark.reading.direct import read_pieces
from nadi.spark.reading.plan import streams_of
from nadi.spark.reading.streaming import RefusedStreamReader, StreamReader
from nadi.spark.reading.tasks import PiecesPartition, partitions_of
from nadi.spark.reading.united import UnionReader, is_union, schema_of_union
from nadi.spark.schemas import arrow_columns, spark_schema
from nadi.spark.writing.modes import check_overwrite, plan_of
from nadi.spark.writing.sink import BatchWriter, Columns, StreamWriter


async def ensure_stream(manager: StreamManager, scope: str, stream: str, creation: Creation) -> None:
    """Have the stream: it is there, or is made now. StreamNotFoundError, ScopeNotFoundError if it may not be."""
    if await stores_of(manager).controller.stream_exists(scope, stream):
        return
    if creation.scope:
        await manager.create_scope(scope)
    if not creation.stream:
        raise StreamNotFoundError(scope, stream)
    await manager.create_stream(scope, stream, scaling=creation.scaling, retention=creation.retention)


Row = tuple[str | None, ...]


class MetadataReader(DataSourceReader):
    """All rows in one task, as they are when it runs."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, _: InputPartition) -> Iterator[Row]:
        client = client_of(self._options.controller)
        return iter(client.run(_rows(client.manager, self._options)))


async def _rows(manager: StreamManager, options: ReadOptions) -> list[Row]:
    scope, stream = options.scope, options.stream
    if options.metadata == "Streams":
        return [(scope, name) for name in sorted(await manager.list_streams(scope))]
    if options.metadata == "StreamInfo":
        info = await manager.stream_info(scope, stream)
        return [(info.head.as_text(), info.tail.as_text())]
    await manager.stream_configuration(scope, stream)  # StreamNotFoundError
    bookmarks = await manager.bookmarks(scope).list(stream=stream)
    slices = await manager.slices(scope).list(stream=stream)
    return [
        *(("bookmark", one.name, one.cut.as_text(), None) for one in bookmarks),
        *(("slice", one.name, one.start.as_text(), one.end.as_text()) for one in slices),
    ]


class BatchReader(DataSourceReader):
    """Everything between two cuts."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return client_of(self._options.controller).run(self._planned())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return read_pieces(self._options, partition.pieces)

    async def _planned(self) -> list[PiecesPartition]:
        manager, options = client_of(self._options.controller).manager, self._options
        sizes = options.max_partitions, options.min_partition_bytes
        pieces = await with_positions(manager, options, await _pieces(manager, options))
        if options.ordered:
            return partitions_of(options, pieces, await chained(manager, options.scope, pieces))
        return partitions_of(options, await divided(manager, options.scope, pieces, *sizes))


async def _pieces(manager: StreamManager, options: ReadOptions) -> list[Piece]:
    pieces = []
    names = await plan.streams_of(manager, options)
    if not names:
        raise InvalidArgumentError(f"scope {options.scope} has no stream that {options.several} takes: check it")
    for name in names:
        pieces += pieces_of(name, await plan.batch_slices(manager, options.of_stream(name)))
    return pieces


# the options that a schema follows from: a schema is asked for before it is known what is read with it
_OF_SCHEMA = {
    "controller",
    "scope",
    "stream",
    "streams",
    "stream_pattern",
    "stream_tag",
    "auth_user",
    "auth_password",
    "auth_token",
    "trust_store",
    "validate_host_name",
    "columns",
    "eventtimeunit",
    "value_format",
    "value_schema",
    "value_version",
    "value_mode",
}


class Source:
    """One use of a format: what Spark asks its data source for. given: the options, as the user gave them."""

    def __init__(self, given: Mapping[str, str], format_: Format) -> None:
        self._given, self._format = given, format_

    def schema(self) -> StructType:
        """With a column of values; `options.columns` knows all others."""
        if is_union(self._given):
            return schema_of_union(self._given, self._format)
        given = {name.lower(): value for name, value in self._given.items()}
        known = {name: value for name, value in given.items() if name in _OF_SCHEMA}
        options = _with_target(ReadOptions.from_spark(known, Use.READ, self._format), lambda _: True)
        return spark_schema(arrow_schema(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        if is_union(self._given):
            return UnionReader(self._given, self._format, schema)
        options = self._read_options(Use.READ)
        if options.metadata is not None:
            return MetadataReader(options)
        return BatchReader(_readable(options, schema))

    def stream_reader(self, schema: StructType) -> StreamReader | RefusedStreamReader:
        try:
            options = _readable(self._read_options(Use.READ_STREAM), schema)
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
                'outputMode("complete") writes all results again with each batch: use .outputMode("append")'
            )
        return StreamWriter(self._writable(Use.WRITE_STREAM, schema), schema)

    def _read_options(self, use: Use) -> ReadOptions:
        self._check_any()
        return ReadOptions.from_spark(self._given, use, self._format)

    def _check_any(self) -> None:
        if not self._given:
            raise InvalidArgumentError(f"no option is given. {NO_TABLES}")

    def _writable(self, use: Use, schema: StructType) -> WriteOptions:
        self._check_any()
        options = WriteOptions.from_spark(self._given, use, self._format)
        client = client_of(options.controller)
        if use is Use.WRITE or not client.has_seen(options.scope, options.stream):  # a query asks twice a batch
            client.run(ensure_stream(client.manager, options.scope, options.stream, options.creation))
            client.see(options.scope, options.stream)
        return options if options.value is None else _with_encoding(options, options.value, schema)


def _with_encoding(options: WriteOptions, value: ValueOptions, schema: StructType) -> WriteOptions:
    """The options with what values are encoded as; InvalidArgumentError if the rows don't have them."""
    from nadi.client.values.parser import check_column
    from nadi.client.values.target import target_of

    client = client_of(options.controller)
    target = client.run(target_of(client.manager, value, options.scope, [options.stream]))
    assert target is not None
    event = schema.fields[Columns.of(schema, options).event]
    try:
        kind = arrow_columns(StructType([event])).field(0).type
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the column {options.event_column!r} is {event.dataType.simpleString()}, and Spark hands over no "
            f"values of such a type: cast what it has of it ({error})"
        ) from None
    check_column(kind, target, options.event_column)
    return replace(options, target=target)


def _with_target(options: ReadOptions, is_wanted: Callable[[ReadOptions], bool]) -> ReadOptions:
    """The options with what events are parsed as; without it if no version of the schema is the one that is wanted."""
    from nadi.client.values.target import target_of

    manager, value = client_of(options.controller).manager, options.value
    assert value is not None

    async def found() -> Target | None:
        streams = await streams_of(manager, options)
        return await target_of(
            manager, value, options.scope, streams, lambda target: is_wanted(replace(options, target=target))
        )

    return replace(options, target=client_of(options.controller).run(found()))


def _readable(options: ReadOptions, schema: StructType) -> ReadOptions:
    if options.value is not None:
        given = schema.simpleString()
        options = _with_target(options, lambda one: spark_schema(arrow_schema(one)).simpleString() == given)
        if options.target is None:
            raise InvalidArgumentError(
                f"a stream's values are read with their own schema, and no version of it is {given[:300]}: leave out "
                ".schema(...), or name the fields in 'value_schema'"
            )
        return options
    found = ", ".join(f"{field.name} {_type_name(field.dataType)}" for field in schema.fields)
    own = schema_of(options.columns, options.event_time_unit)
    if found != own:
        raise InvalidArgumentError(f"a stream is read with its own schema, {own}: leave out .schema(...)")
    return options


def _type_name(kind: DataType) -> str:
    return "timestamp_ltz" if isinstance(kind, TimestampType) else kind.typeName()
