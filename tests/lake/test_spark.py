"""Spark reads a lake's table and stream as one, with the same results as other engines."""

from __future__ import annotations

import collections
import os
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import nadi
import nadi.lake
import nadi.spark
from nadi.lake.table import files
from nadi.testing import RestartableServer
from tests.support.spark import spark_session, with_settings

from .world import Meters, catalog_in, places, table_of

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


def options_of(server: RestartableServer, meters: Meters, **more: Any) -> dict[str, Any]:
    return {"controller": server.controller_uri, "scope": meters.scope, "stream": "meters", "source": "union"} | more


@pytest.mark.slow
@pytest.mark.timeout(400)  # a dozen Spark jobs
def test_queries_agree_while_the_stream_changes(nadi_server: RestartableServer, meters: Meters, spark: Any) -> None:
    def frame(**more: Any) -> Any:
        return spark.read.format("nadi").options(**options_of(nadi_server, meters), **more).load()

    def by_itself(**more: Any) -> Any:
        return nadi.spark.union(spark, meters.scope, "meters", controller=nadi_server.controller_uri, **more)

    lake = meters.lake()
    for first in range(0, 300, 100):
        meters.write(first, first + 100, wrong=9)
        if first:
            meters.catch_up(lake)
        else:
            meters.scale([0], [(0.0, 0.2), (0.2, 0.5)])
    meters.write(300, 340, wrong=9)
    cut = meters.tail
    expected = meters.in_stream(cut)[0]
    united = polars.DataFrame(meters.union(at=cut))
    by_meter = united.group_by("meter").agg(polars.col("wh").sum()).sort("meter").rows()
    meters.write(340, 400)
    for number, reading in enumerate((frame, by_itself, frame, by_itself)):
        found = reading(end=cut.as_text())
        rows = found.select("_segment_id", "_offset", "meter", "wh").collect()
        assert sorted(tuple(row)[:2] for row in rows) == expected
        sums = collections.Counter[str]()
        for row in rows:
            sums[row.meter] += row.wh
        assert sorted(sums.items()) == by_meter
        assert found.columns == united.columns
        if number == 1:
            meters.catch_up(lake)
            meters.manager.truncate_stream(meters.tail)
    assert by_itself().count() == len(places(meters.union()))
    assert frame().count() == len(places(meters.union()))
    assert frame(lake=lake.name).columns == meters.union().schema.names


def test_options_without_effect_are_refused(nadi_server: RestartableServer, meters: Meters, spark: Any) -> None:
    base = {"controller": nadi_server.controller_uri, "scope": meters.scope, "stream": "meters"}
    for more, option in (
        ({"source": "table"}, "source"),
        ({"lake": "meters-lake"}, "source"),
        ({"source": "union", "start": "head"}, "start"),
        ({"source": "union"}, "meters-lake"),
    ):
        with pytest.raises(Exception, match=option):
            spark.read.format("nadi").options(**base, **more).load().count()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_table_that_others_have_changed_has_the_same_rows_however_spark_reads_it(
    nadi_server: RestartableServer, meters: Meters, spark: Any
) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda table: table.append(pa.table({"a": pa.array([9], pa.int32()), "b": ["theirs"]})),
        lambda table: table.update_schema(allow_incompatible_changes=True).delete_column("b").commit(),
        lambda table: table.update_schema().rename_column("s.x", "xx").update_column("a", LongType()).commit(),
        lambda table: table.delete("a = 2"),  # its new file has another name for `my-col`
    ]
    for number, change in enumerate(changes):
        stream = f"changed{number}"
        meters.manager.create_stream(meters.scope, stream)
        with meters.manager.create_writer(meters.scope, stream) as writer:
            for event in (b'{"a": 1, "b": "old", "s": {"x": 1}, "my-col": 5}', b'{"a": 2, "my-col": 7}'):
                writer.write_event(event, "k")
        table, fields = f"{meters.scope}.{stream}", "a int, b string, s struct<x:int>"
        lake = nadi.lake.define(
            meters.manager, meters.scope, stream, table=table, catalog=catalog_in(meters.folder), value_format="json",
            value_schema=fields + (", `my-col` int" if number == 3 else ""),
        )  # fmt: skip
        meters.catch_up(lake)
        change(table_of(lake))
        united = nadi.lake.union(meters.manager, meters.scope, stream)
        assert (united.table_conditions is None) == (number > 0), number
        options = options_of(nadi_server, meters, stream=stream)
        for frame in (
            spark.read.format("nadi").options(**options).load(),
            nadi.spark.union(spark, meters.scope, stream, controller=nadi_server.controller_uri),
        ):
            found = sorted((row.asDict(recursive=True) for row in frame.collect()), key=repr)
            expected = pa.table(united).drop_columns(["_append_time", "_event_time"]).to_pylist()
            for row in found:
                del row["_append_time"], row["_event_time"]
            assert found == sorted(expected, key=repr), number


def test_columns_that_are_named_are_all_that_is_read(
    nadi_server: RestartableServer, meters: Meters, spark: Any
) -> None:
    meters.filled(0, 100, wrong=9)
    meters.write(100, 120, wrong=9)

    def reader(**more: str) -> Any:
        return spark.read.format("nadi").options(**options_of(nadi_server, meters), **more)

    selected = reader(columns="_offset, wh").load()
    assert selected.columns == ["_offset", "wh"]
    expected = pa.table(meters.union(columns=["_offset", "wh"])).to_pydict()
    rows = sorted(zip(expected["_offset"], expected["wh"], strict=True))
    assert len(rows) == sum(1 for number in range(120) if number % 9)
    assert sorted(map(tuple, selected.collect())) == rows
    assert selected.where("wh >= 100").count() == 18
    assert selected.count() == len(rows), "after another query"
    for columns, schema, name in (
        ("WH", None, "'WH'"),
        ("wh, wh", None, "'wh'"),
        ("wh", "meter string", "columns"),
    ):
        asked = reader(columns=columns)
        with pytest.raises(Exception, match=name):
            (asked if schema is None else asked.schema(schema)).load().count()


@pytest.mark.parametrize("meters", [3], indirect=True)
def test_a_large_file_is_read_by_several_tasks(
    nadi_server: RestartableServer, meters: Meters, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LAKE_ROW_GROUP_BYTES", 1)
    lake, names = meters.lake(partition=""), [secrets.token_hex(800) for _ in range(5_000)]
    events = [b'{"meter": "%s", "wh": %d}' % (name.encode(), at) for at, name in enumerate(names)]
    meters.write_events(*events)
    meters.catch_up(lake)
    union = meters.union()
    assert len(union.table_files) == 1
    assert union.table_bytes > 3 << 20
    options = options_of(nadi_server, meters)
    for more, tasks in (({}, 3), ({"max_partitions": 2}, 2), ({"min_partition_bytes": 1 << 30}, 1)):
        found = spark.read.format("nadi").options(**options, **more).load()
        assert found.rdd.getNumPartitions() == tasks
        assert sorted(row.wh for row in found.select("wh").collect()) == list(range(5_000))


def test_moments_and_bookmarks_are_read_from_the_table_once_the_stream_has_lost_them(
    tmp_path: Path, spark: Any
) -> None:
    limits = f"{os.environ.get('NADI_LIMITS', '')},time_index_ms=1,time_index_bytes=1"
    with (
        nadi.embedded(tmp_path / "server", environment={"NADI_LIMITS": limits}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        meters = Meters(manager, "home", tmp_path / "lake", 1)
        lake = meters.lake()
        meters.write(0, 50)
        time.sleep(0.05)  # times have milliseconds, and the server's clock is ours
        middle = datetime.now(UTC)
        noon = meters.tail
        manager.bookmarks("home").create("noon", noon)
        time.sleep(0.05)
        meters.write(50, 90)
        options = {"controller": server.controller_uri, "scope": "home", "stream": "meters"}

        def found(end: str) -> list[list[int]]:
            frames = (
                spark.read.format("nadi").options(**options, source="union", end=end).load(),
                nadi.spark.union(spark, "home", "meters", controller=server.controller_uri, end=end),
            )
            return [sorted(row.wh for row in frame.select("wh").collect()) for frame in frames]

        for step in ("in the stream", "in both", "in the table"):
            for end in (noon.as_text(), middle.isoformat(), "noon"):
                if step == "in the table" and end == "noon":
                    continue  # a bookmark is deleted with its events
                assert found(end) == [list(range(50))] * 2, (step, end)
            if step == "in the stream":
                meters.catch_up(lake)
            else:
                manager.truncate_stream(meters.tail)


@pytest.mark.parametrize("meters", [1], indirect=True)
@pytest.mark.parametrize("types", [{}, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}], ids=["usual", "ntz"])
def test_times_around_changes_of_clocks_are_the_same_in_table_and_stream(
    nadi_server: RestartableServer, meters: Meters, spark: Any, types: dict[str, str]
) -> None:
    """New York's clocks skip 02:30 on 8 March 2026, and repeat 01:30 on 1 November."""
    times = ["2026-03-08T06:30:00", "2026-03-08T07:30:00", "2026-11-01T05:30:00", "2026-11-01T06:30:00"]
    walls = ["2026-03-08T02:30:00", "2026-11-01T01:30:00"] * 2
    fields = "at timestamp, wall timestamp_ntz, `w.h` long"
    lake = meters.lake(value_schema=fields, partition="hour(at), hour(wall)")
    expected = []
    for number in range(2):  # in the table and in the stream
        for at, wall in zip(times, walls, strict=True):
            meters.write_events(b'{"at": "%sZ", "wall": "%s", "w.h": %d}' % (at.encode(), wall.encode(), number))
            micros = int(datetime.fromisoformat(f"{at}Z").timestamp()) * 10**6
            expected.append((micros, wall.replace("T", " "), number))
        if number == 0:
            meters.catch_up(lake)
    with with_settings(spark, {"spark.sql.session.timeZone": "America/New_York", **types}):
        for frame in (
            spark.read.format("nadi").options(**options_of(nadi_server, meters)).load(),
            nadi.spark.union(spark, meters.scope, "meters", controller=nadi_server.controller_uri),
        ):
            found = frame.selectExpr("unix_micros(at)", "cast(wall AS string)", "`w.h`")
            assert sorted(map(tuple, found.collect())) == sorted(expected)
            hours = frame.groupBy("at").count().selectExpr("unix_micros(at)", "count").collect()
            assert sorted(map(tuple, hours)) == sorted((micros, 2) for micros, _, number in expected if number)
