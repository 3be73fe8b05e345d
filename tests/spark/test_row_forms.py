"""Each form in which Spark passes rows to Python and back: the rows are equal under any setting of Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row

from tests.support.spark import with_settings

from .conftest import World

pytestmark = pytest.mark.spark
_SCHEMA = "event binary, routing_key string"
_ROWS = 17  # of different lengths, including an empty one and one beyond ASCII
_ARROW = "execution.arrow"
SETTINGS = {
    "rows": {f"{_ARROW}.pyspark.enabled": "false", "execution.pyspark.binaryAsBytes": "false"},
    "large": {f"{_ARROW}.pyspark.enabled": "true", f"{_ARROW}.useLargeVarTypes": "true"},
    "small": {
        f"{_ARROW}.maxRecordsPerBatch": "3",
        "execution.pythonUDF.arrow.enabled": "true",
        f"{_ARROW}.compression.codec": "zstd",
    },
}


def events() -> list[tuple[bytes, str]]:
    return [(bytes(range(number)), f"k{number % 4}é") for number in range(_ROWS)]


def rows_of_pandas(frame: Any) -> list[tuple[bytes, str]]:
    return [(bytes(event), key) for event, key in zip(frame["event"], frame["routing_key"], strict=True)]


def rows_of_arrow(table: Any) -> list[tuple[bytes, str]]:
    return list(zip(table["event"].to_pylist(), table["routing_key"].to_pylist(), strict=True))


def rows_of_rows(rows: Any) -> list[tuple[bytes, str]]:
    return [(bytes(row.event), row.routing_key) for row in rows]


READS: dict[str, Callable[[DataFrame], list[tuple[bytes, str]]]] = {
    "collect": lambda frame: rows_of_rows(frame.collect()),
    "toLocalIterator": lambda frame: rows_of_rows(frame.toLocalIterator()),
    "toPandas": lambda frame: rows_of_pandas(frame.toPandas()),
    "toArrow": lambda frame: rows_of_arrow(frame.toArrow()),
    "mapInPandas": lambda frame: rows_of_rows(frame.mapInPandas(lambda frames: frames, _SCHEMA).collect()),
    "mapInArrow": lambda frame: rows_of_rows(frame.mapInArrow(lambda batches: batches, _SCHEMA).collect()),
    "rdd": lambda frame: rows_of_rows(frame.rdd.map(lambda row: Row(**row.asDict())).collect()),
}
MADE: dict[str, Callable[[Any], DataFrame]] = {
    "tuples": lambda spark: spark.createDataFrame(events(), _SCHEMA),
    "Row": lambda spark: spark.createDataFrame([Row(event=event, routing_key=key) for event, key in events()], _SCHEMA),
    "pandas": lambda spark: spark.createDataFrame(in_arrow().to_pandas()),
    "Arrow": lambda spark: spark.createDataFrame(in_arrow()),
    "mapInPandas": lambda spark: MADE["tuples"](spark).mapInPandas(lambda frames: frames, _SCHEMA),
    "mapInArrow": lambda spark: MADE["tuples"](spark).mapInArrow(lambda batches: batches, _SCHEMA),
}


def in_arrow() -> pa.Table:
    return pa.Table.from_pylist([{"event": event, "routing_key": key} for event, key in events()])


def places(world: World, stream: str) -> dict[bytes, int]:
    """Return the segment of each event."""
    end = world.manager.stream_info("home", stream).tail
    return {event.data: event.segment_id for event in world.manager.read_events("home", stream, end=end)}


@pytest.mark.parametrize("name", ["rows", *(pytest.param(name, marks=pytest.mark.slow) for name in ("large", "small"))])
def test_rows_in_every_form_are_the_same(world: World, tmp_path: Path, name: str) -> None:
    expected = sorted(events())
    with with_settings(world.spark, {f"spark.sql.{key}": value for key, value in SETTINGS[name].items()}):
        streams = []
        for made, make in MADE.items():
            streams.append(f"{made}-{name}")
            world.manager.create_stream("home", streams[-1], 2)
            options = world.options(streams[-1])
            make(world.spark).write.format("nadi").options(**options).mode("append").save()
        found = [places(world, stream) for stream in streams]
        assert sorted(found[0]) == [event for event, _ in expected]
        assert len(set(found[0].values())) == 2, "keys say where events go"
        for stream, one in zip(streams, found, strict=True):
            assert one == found[0], stream
        rows = world.read(streams[0]).selectExpr("event", "concat('k', length(event) % 4, 'é') AS routing_key")
        for way, read in READS.items():
            assert sorted(read(rows)) == expected, way
        batches: list[tuple[bytes, str]] = []
        query = (
            world.read_stream(streams[0], columns="event, offset, stream")
            .selectExpr("event", "concat('k', length(event) % 4, 'é') AS routing_key")
            .writeStream.foreachBatch(lambda frame, _: batches.extend(rows_of_arrow(frame.toArrow())))
            .option("checkpointLocation", str(tmp_path / name))
        )
        query.trigger(availableNow=True).start().awaitTermination()
        assert sorted(batches) == expected
