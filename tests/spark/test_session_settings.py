"""Settings of a Spark session change neither a stream's instants nor its rows.

The clocks of New York change on 2026-03-08 at 07:00 UTC, skipping 02:30, and on 2026-11-01 at 06:00 UTC, repeating
01:30.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import window
from pyspark.sql.types import TimestampNTZType, TimestampType

from nadi.client.serializers import Arrow, Avro, Json, Struct
from tests.support.spark import with_settings
from tests.support.waiting import until

from .conftest import World
from .queries import Home

pytestmark = pytest.mark.spark
SERVER_LIMITS = "watermark_period_s=0.05"  # they are made often
UTC = datetime.UTC
MOMENTS = [
    datetime.datetime(2026, 3, 8, 6, 30, tzinfo=UTC),  # 01:30
    datetime.datetime(2026, 3, 8, 7, 30, 0, 123456, tzinfo=UTC),  # 03:30
    datetime.datetime(2026, 11, 1, 5, 30, tzinfo=UTC),  # 01:30, summer
    datetime.datetime(2026, 11, 1, 6, 30, tzinfo=UTC),  # 01:30, winter
]
WALLS = ["2026-03-08 02:30:00", "2026-11-01 01:30:00"]
SETTINGS = {
    "zone": {"session.timeZone": "America/New_York"},
    "ntz": {"timestampType": "TIMESTAMP_NTZ", "session.timeZone": "America/New_York", "ansi.enabled": "false"},
}


@pytest.fixture(params=SETTINGS)
def session(request: pytest.FixtureRequest, world: World) -> Iterator[str]:
    """The settings' name, in a session with those settings."""
    with with_settings(world.spark, {f"spark.sql.{name}": value for name, value in SETTINGS[request.param].items()}):
        yield request.param


def micros(moment: datetime.datetime) -> int:
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=UTC)) // datetime.timedelta(microseconds=1)


def test_times_of_values_are_the_same_instants_in_every_session(world: World, session: str) -> None:
    stream = f"documents-{session}"
    world.manager.create_stream("home", stream)
    with world.manager.create_writer("home", stream, serializer=Json()) as writer:
        for moment, wall in zip(MOMENTS, WALLS * 2, strict=True):
            writer.write_event({"at": moment, "wall": wall.replace(" ", "T")}, "k")
    rows = world.read(stream, value_format="json", value_schema="at timestamp, wall timestamp_ntz").select("value.*")
    assert [field.dataType for field in rows.schema.fields] == [TimestampType(), TimestampNTZType()]
    found = rows.selectExpr("unix_micros(at) AS at", "cast(wall AS string) AS wall").collect()
    assert [(row.at, row.wall) for row in found] == list(zip(map(micros, MOMENTS), WALLS * 2, strict=True))
    for moment in MOMENTS[2:]:
        text = moment.isoformat()
        assert rows.where(f"at = timestamp_micros({micros(moment)})").count() == 1, text


class Reading(msgspec.Struct):
    at: datetime.datetime
    n: int


_AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "n", "type": "int"},
    ],
}
_ARROW = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])


def moment_of(value: Any) -> datetime.datetime:
    """Return the instant of a serializer's value."""
    if isinstance(value, Reading):
        return value.at
    row = value.to_pylist()[0] if isinstance(value, pa.RecordBatch) else value
    moment: datetime.datetime = row["at"]
    return moment


def test_written_times_are_the_same_instants_in_every_session(world: World, session: str) -> None:
    formats: dict[str, list[tuple[str, Any, str]]] = {  # times don't depend on both
        "zone": [("json", Struct(Reading), "bigint"), ("arrow", Arrow(_ARROW), "int")],
        "ntz": [("msgpack", Struct(Reading, "msgpack"), "bigint"), ("avro", Avro(_AVRO), "int")],
    }
    for format_, serializer, number in formats[session]:
        stream = f"written-{format_}-{session}"
        world.manager.create_stream("home", stream)
        world.manager.schemas("home", stream).register(serializer)
        given = world.spark.createDataFrame([(micros(at), n) for n, at in enumerate(MOMENTS)], "at long, n int")
        rows = given.selectExpr(f"struct(timestamp_micros(at) AS at, cast(n AS {number}) AS n) AS value")
        writer = rows.coalesce(1).write.format("nadi").options(**world.options(stream, value_format=format_))
        writer.mode("append").save()
        end = world.manager.stream_info("home", stream).tail
        found = [
            moment_of(one.value) for one in world.manager.read_events("home", stream, serializer=serializer, end=end)
        ]
        assert sorted(found) == MOMENTS, format_
    wall = given.selectExpr("struct(cast(timestamp_micros(at) AS timestamp_ntz) AS at, n) AS value")
    with pytest.raises(PySparkException, match=r"value\.at is timestamp\[us\].*timestamp\[us, tz=UTC\]"):
        wall.write.format("nadi").options(**world.options(stream, value_format=format_)).mode("append").save()


def test_times_of_rows_are_the_same_instants_in_every_session(world: World, session: str) -> None:
    stream = f"appended-{session}"
    world.manager.create_stream("home", stream)
    began = time.time_ns() // 1000
    with world.manager.create_writer("home", stream) as writer:
        writer.write_event(b"x", "k")
    ended = time.time_ns() // 1000
    rows = world.read(stream, columns="append_time,event_time")
    assert [field.dataType for field in rows.schema.fields] == [TimestampType(), TimestampType()]
    (row,) = rows.selectExpr("unix_micros(append_time) AS at", "event_time").collect()
    assert began - 1_500 <= row.at <= ended + 1_500
    assert row.event_time is None
    for option, moment, count in (
        ("startingTimestamp", "2025-11-02T01:30-05:00", 1),
        ("endingTimestamp", "2025-03-09T07:00Z", 0),
    ):
        assert world.read(stream, **{option: moment}).count() == count
    with pytest.raises(PySparkException, match="2025-11-02T01:30"):
        world.read(stream, startingTimestamp="2025-11-02T01:30").count()


def test_event_times_in_repeated_hour_are_equal_in_every_session(home: Home, spark: Any, session: str) -> None:
    stream = f"noted-{session}"
    home.manager.create_stream("home", stream)
    cuts = home.manager.cuts("home", stream)
    with home.manager.create_writer("home", stream, writer_id="kitchen") as writer:
        for noted_ms in (micros(moment) // 1000 for moment in MOMENTS):
            writer.note_time(noted_ms)
            until(partial(cuts.after_event_time, noted_ms))
            writer.write_batch([b"a", b"b"], ["k", "k"])
    options = {"controller": home.uri, "scope": "home", "stream": stream, "columns": "event_time"}
    rows = spark.read.format("nadi").options(**options).load()
    counted = (
        rows.groupBy(window("event_time", "1 hour")).count().selectExpr("unix_millis(window.start) AS at", "count")
    )
    assert {row.at: row["count"] for row in counted.collect()} == {
        micros(moment) // 1000 // 3_600_000 * 3_600_000: 2 for moment in MOMENTS
    }
