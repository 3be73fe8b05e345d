"""A scope's streams and tables as views in Spark SQL."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import nadi
from nadi.client.serializers import Struct
from nadi.errors import InvalidArgumentError
from nadi.spark import register
from tests.support.spark import with_settings

from .conftest import World

SCHEMA = "meter string, wh long, at timestamp"


class Reading(msgspec.Struct):
    meter: str
    wh: int
    offset: int


@pytest.fixture(scope="module")
def views(world: World) -> World:
    """Scope home: stream meters, with a table with a key, and one of its changes; typed, with a schema; plain-text,
    with neither; and broken, whose schema has changed since its table was defined."""
    manager = world.manager
    world.spark.conf.set("spark.sql.shuffle.partitions", "2")
    for stream in ("meters", "meter-changes", "typed", "plain-text", "broken"):
        manager.create_stream("home", stream, 2)
    with manager.create_writer("home", "meters") as writer:
        for number in range(300):
            meter = f"m{number % 7}"
            row: dict[str, Any] = {"meter": meter, "at": f"2026-11-14T00:{number // 60:02}:{number % 60:02}Z"}
            row |= {} if number in (297, 298) else {"wh": number}
            writer.write_event(json.dumps(row).encode(), meter)
            if number == 150:
                manager.scale_stream("home", "meters", [0], [(0.0, 0.2), (0.2, 0.5)])
        writer.write_event(b"nonsense", "m1")
    manager.stream_tables("home").define("meters", value_schema=SCHEMA, key=["meter"], event_time="at")
    nadi.write_changes(manager, "home", "meters", "meter-changes", end="tail")
    with manager.create_writer("home", "typed", serializer=Struct(Reading)) as typed:
        typed.write_event(Reading("m1", 3, 9), "m1")
    with manager.create_writer("home", "plain-text") as plain:
        plain.write_event(b"text")
    manager.schemas("home", "broken").register(Struct(Reading))
    manager.stream_tables("home").define("broken", key=["meter"])
    manager.schemas("home", "broken").register(Struct(msgspec.defstruct("Other", [("wh", int)])))
    return world


def rows(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=str)


def test_a_scope_in_sql(views: World, caplog: pytest.LogCaptureFixture) -> None:
    spark = views.spark
    with caplog.at_level(logging.WARNING):
        names = register(spark, "home", controller=views.uri)
    assert names == ["meter-changes", "meter-changes_latest", "meters", "meters_latest", "plain-text", "typed"]
    assert "home/broken" in caplog.text
    sums = "select meter, sum(wh) as wh from {} where meter is not null group by meter order by meter"
    table = nadi.stream_table(views.manager, "home", "meters")
    expected = pa.table(table.rows()).group_by("meter").aggregate([("wh", "sum")]).to_pylist()
    assert rows(spark.sql(sums.format("meters"))) == sorted(
        ({"meter": row["meter"], "wh": row["wh_sum"]} for row in expected if row["meter"]), key=str
    )
    latest = rows(spark.sql("select meter, wh, segment_id, offset from meters_latest"))
    assert latest == sorted(pa.table(table.latest()).drop(["at"]).to_pylist(), key=str)
    assert len(latest) == 5, "two are deleted"
    again = rows(spark.sql("select meter, wh from `meter-changes_latest`"))
    assert again == rows(spark.sql("select meter, wh from meters_latest"))
    assert spark.table("typed").columns == ["meter", "wh", "offset", "segment_id"], "its own offset"
    assert rows(spark.sql("select meter, wh, offset from typed")) == [{"meter": "m1", "wh": 3, "offset": 9}]
    assert bytes(spark.table("`plain-text`").first().event) == b"text"


def test_views_with_upper_case_columns(views: World) -> None:
    manager, spark = views.manager, views.spark
    manager.create_stream("home", "capitals")
    manager.stream_tables("home").define("capitals", value_schema="Meter string, OFFSET long", key=["Meter"])
    with manager.create_writer("home", "capitals") as writer:
        writer.write_event(b'{"Meter": "m1", "OFFSET": 9}', "m1")
    try:
        register(spark, "home", prefix="upper_", controller=views.uri)
    finally:
        manager.stream_tables("home").delete("capitals")
    for view in ("upper_capitals", "upper_capitals_latest"):
        assert spark.table(view).columns == ["Meter", "OFFSET", "segment_id"]
        assert rows(spark.sql(f"select Meter, OFFSET from {view}")) == [{"Meter": "m1", "OFFSET": 9}]


def test_views_with_prefix_and_range_are_fixed(views: World) -> None:
    manager, spark = views.manager, views.spark
    manager.create_stream("home", "grows")
    manager.stream_tables("home").define("grows", value_schema="wh long", value_mode="DROPMALFORMED")
    with manager.create_writer("home", "grows") as writer:
        writer.write_event(b'{"wh": 1}', "k").result(60)
        assert "home_grows" in register(spark, "home", prefix="home_", controller=views.uri)
        writer.write_event(b'{"wh": 2}', "k")
        writer.write_event(b"nonsense", "k")
    assert spark.table("home_grows").count() == 1, "it stays what it was"
    register(spark, "home", prefix="home_", controller=views.uri)
    assert spark.table("home_grows").count() == 2
    with pytest.raises(InvalidArgumentError, match="'value_format'"):
        register(spark, "home", controller=views.uri, value_format="json")


def test_streaming_views_have_watermarks(views: World, tmp_path: Path) -> None:
    spark = views.spark
    given = {"controller": views.uri, "start": "head"}
    names = register(spark, "home", prefix="live_", streaming=True, watermark="1 minute", **given)
    assert "live_meters" in names
    assert not any(name.endswith("_latest") for name in names)
    assert spark.table("live_meters").isStreaming
    by_minute = (
        "select w.start as minute, count(*) as readings from (select window(at, '1 minute') as w from {}) group by w"
    )
    counts = spark.sql(by_minute.format("live_meters"))
    query = (
        counts.writeStream.format("memory").queryName("by_minute").outputMode("append")
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(120)
        found = [row.readings for row in spark.sql("select readings from by_minute order by minute").collect()]
        assert found[:2] == [60, 60], "windows that the watermark has passed"
    finally:
        query.stop()


def test_streaming_view_with_an_event_time_of_any_name_has_a_watermark(views: World) -> None:
    manager, spark = views.manager, views.spark
    manager.create_scope("times")
    for name, column in (("shipped", "@timestamp"), ("dotted", "event.created"), ("spaced", "made at")):
        manager.create_stream("times", name)
        schema = f"meter string, wh long, `{column}` timestamp"
        manager.stream_tables("times").define(name, value_schema=schema, event_time=column)
    assert register(spark, "times", streaming=True, controller=views.uri) == ["dotted", "shipped", "spaced"]
    for name in ("dotted", "shipped", "spaced"):
        assert "EventTimeWatermark" in str(spark.table(name)._jdf.queryExecution().analyzed())


def test_views_with_names_differing_in_case_are_skipped(views: World, caplog: pytest.LogCaptureFixture) -> None:
    manager, spark = views.manager, views.spark
    manager.create_scope("cases")
    for name in ("Doors", "doors", "DOORS", "halls"):
        manager.create_stream("cases", name)
        with manager.create_writer("cases", name) as writer:
            writer.write_event(name.encode())
    with with_settings(spark, {"spark.sql.caseSensitive": "false"}), caplog.at_level(logging.WARNING):
        assert register(spark, "cases", prefix="c_", controller=views.uri) == ["c_halls"]
        assert "DOORS and Doors and doors" in caplog.text
    with with_settings(spark, {"spark.sql.caseSensitive": "true"}):
        names = register(spark, "cases", prefix="c_", controller=views.uri)
        assert names == ["c_DOORS", "c_Doors", "c_doors", "c_halls"]
        assert [bytes(spark.table(name).first().event).decode() for name in names] == [name[2:] for name in names]
        for name in names:
            spark.catalog.dropTempView(name)


@pytest.mark.parametrize("given", [{"prefix": 5}, {"prefix": None}, {"streaming": "no"}])
def test_views_reject_arguments_of_wrong_type(views: World, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        register(views.spark, "home", **given)
