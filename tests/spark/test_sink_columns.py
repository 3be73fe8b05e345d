"""The columns of written rows: matched in any case, and rejected if they have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from nadi.errors import InvalidArgumentError
from nadi.spark.options.parsed import WriteOptions
from nadi.spark.options.table import SparkFormat, Use
from nadi.spark.sink import SinkColumns
from tests.support.spark import with_settings

from .conftest import World

_HOME = {"controller": "tcp://127.0.0.1:9090", "scope": "home", "stream": "s"}


def columns_of(ddl: str, **options: str) -> SinkColumns:
    schema = StructType()
    for name, kind in (column.split(" ") for column in ddl.split(", ")):
        schema.add(name, kind)
    return SinkColumns.of(schema, WriteOptions.from_spark({**_HOME, **options}))


@pytest.mark.parametrize(
    ("ddl", "options", "expected"),
    [
        ("event binary, routing_key string", {}, SinkColumns(0, 1)),
        ("Routing_Key string, event string", {}, SinkColumns(1, 0)),
        ("EVENT binary, ROUTING_KEY string", {}, SinkColumns(0, 1)),
        ("Event binary, Owner string", {"routing_key_attribute_name": "OWNER"}, SinkColumns(0, 1)),
        ("w string, TEXT string", {"event_attribute_name": "text", "routing_key_attribute_name": "W"}, SinkColumns(1,
        0)), ("event binary, scope string, stream string, segment_id long, offset long", {}, SinkColumns(0, None)),
        ("position string, append_time timestamp, Event_Time timestamp, Position_Before string, event binary", {},
         SinkColumns(4, None)),
        ("event binary, text string", {"event_attribute_name": "text"}, SinkColumns(1, None)),
    ],
)  # fmt: skip
def test_columns_are_found_in_any_case(ddl: str, options: dict[str, str], expected: SinkColumns) -> None:
    assert columns_of(ddl, **options) == expected


@pytest.mark.parametrize(
    ("ddl", "options", "named"),
    [
        ("event binary, routingkey string", {}, "'routingkey'.*'routing_key'"),
        ("event binary, key string", {}, "'key'"),
        ("event binary, partition integer", {}, "'partition'"),
        ("event binary, owner string, routing_key string", {"routing_key_attribute_name": "owner"}, "'routing_key'"),
        ("event binary, Event string", {}, "event, Event.*'event'"),
        ("event binary, routing_key string, Routing_Key string", {}, "routing_key, Routing_Key"),
        ("event binary, Key string, KEY string", {"routing_key_attribute_name": "key"}, "Key, KEY.*'key'"),
        ("event binary, event binary", {}, "event, event.*'event'"),
        ("text string", {}, "'event'"),
        ("event binary", {"routing_key_attribute_name": "owner"}, "'owner'"),
        ("Event integer", {}, "'event' is int"),
        ("event binary, Routing_Key long", {}, "'routing_key'"),
    ],
)
def test_columns_without_effect_are_rejected(ddl: str, options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        columns_of(ddl, **options)


def test_other_columns_are_ignored_in_pravega_format() -> None:
    schema = StructType().add("event", "string").add("routing_key", "string").add("sensor", "long")
    options = WriteOptions.from_spark(_HOME, Use.WRITE, SparkFormat.PRAVEGA)
    assert SinkColumns.of(schema, options) == SinkColumns(0, 1)


def segments(world: World, stream: str) -> dict[bytes, int]:
    end = world.manager.stream_info("home", stream).tail
    return {event.data: event.segment_id for event in world.manager.read_events("home", stream, end=end)}


def stream_of(world: World, folder: Path, rows: DataFrame) -> DataFrame:
    """Return the rows as a stream, from a file."""
    rows.write.parquet(str(folder / "rows"))
    streaming: DataFrame = world.spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
    return streaming


def write_stream(world: World, stream: str, folder: Path, rows: DataFrame) -> None:
    writer = rows.writeStream.format("nadi").options(**world.options(stream))
    query = writer.option("checkpointLocation", str(folder / stream)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_key_column_in_any_case_routes_rows(world: World, tmp_path: Path) -> None:
    with with_settings(world.spark, {"spark.sql.caseSensitive": "true"}):
        found = []
        rows = world.spark.range(40).selectExpr("cast(id as string) AS Event", "cast(id as string) AS Routing_Key")
        for way in ("plain", "batch", "query"):
            stream = f"{way}-keys"
            world.manager.create_stream("home", stream, 4)
            if way == "plain":
                with world.manager.create_writer("home", stream) as writer:
                    for number in range(40):
                        writer.write_event(b"%d" % number, f"{number}")
            elif way == "batch":
                rows.write.format("nadi").options(**world.options(stream)).mode("append").save()
            else:
                write_stream(world, stream, tmp_path, stream_of(world, tmp_path, rows))
            found.append(segments(world, stream))
        assert len(set(found[0].values())) == 4
        assert found == found[:1] * 3


def test_rows_written_as_read_are_a_copy(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "original")
    every = "event,scope,stream,segment_id,offset,position_before,position,append_time,event_time"
    with world.manager.create_writer("home", "original") as writer:
        writer.write_batch([b"%d" % number for number in range(20)], ["k"] * 20)
    for copy, columns in (("copy-1", None), ("copy-2", every)):
        world.manager.create_stream("home", copy)
        options = {} if columns is None else {"columns": columns}
        rows = world.read("original", **options)
        rows.write.format("nadi").options(**world.options(copy)).mode("append").save()
        assert sorted(segments(world, copy)) == sorted(segments(world, "original"))
    world.manager.create_stream("home", "copy-3")
    write_stream(world, "copy-3", tmp_path, world.read_stream("original", columns=every))
    assert sorted(segments(world, "copy-3")) == sorted(segments(world, "original"))
