"""Spark reads a lake's table and stream as one, and says the same as every other engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pytest

import nadi
import nadi.lake
import nadi.spark
from nadi.testing import RestartableServer

from .world import a_lake, catch_up, in_stream, places, streams, write

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    session = tuned(SparkSession.builder.master("local[2]").appName("nadi lakes")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def test_a_question_has_one_answer_while_the_stream_is_written_split_and_truncated(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path, spark: Any
) -> None:
    def frame(**more: Any) -> Any:
        options = {"controller": nadi_server.controller_uri, "scope": scope, "stream": "meters", "source": "union"}
        return spark.read.format("nadi").options(**options, **more).load()

    def by_itself(**more: Any) -> Any:
        return nadi.spark.union(spark, scope, "meters", controller=nadi_server.controller_uri, **more)

    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    for first in range(0, 300, 100):
        write(manager, scope, first, first + 100, wrong=9)
        if first:
            catch_up(manager, lake)
        else:
            manager.scale_stream(scope, "meters", [0], [(0.0, 0.2), (0.2, 0.5)])
    write(manager, scope, 300, 340, wrong=9)
    cut = manager.stream_info(scope, "meters").tail
    expected = in_stream(manager, scope, cut)[0]
    united = polars.DataFrame(nadi.lake.union(manager, scope, "meters", at=cut))
    by_meter = united.group_by("meter").agg(polars.col("wh").sum()).sort("meter").rows()
    write(manager, scope, 340, 400)
    for number, reading in enumerate((frame, by_itself, frame, by_itself)):
        found = reading(end=cut.as_text())
        rows = sorted((row["_segment_id"], row["_offset"]) for row in found.select("_segment_id", "_offset").collect())
        assert rows == expected
        summed = found.groupBy("meter").sum("wh").orderBy("meter").collect()
        assert [tuple(row) for row in summed] == by_meter
        assert found.columns == united.columns
        if number == 1:
            catch_up(manager, lake)
            manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    assert by_itself().count() == len(places(nadi.lake.union(manager, scope, "meters")))
    assert frame().count() == len(places(nadi.lake.union(manager, scope, "meters")))
    assert frame(lake=lake.name).columns == nadi.lake.union(manager, scope, "meters").schema.names


def test_options_without_effect_are_refused(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, spark: Any
) -> None:
    streams(manager, scope)
    base = {"controller": nadi_server.controller_uri, "scope": scope, "stream": "meters"}
    for more, said in (
        ({"source": "table"}, "must be stream or union"),
        ({"lake": "meters-lake"}, "without 'source'"),
        ({"source": "union", "start": "head"}, "no effect with 'source' = union"),
        ({"source": "union"}, "there is no lake"),
    ):
        with pytest.raises(Exception, match=re.escape(said)):
            spark.read.format("nadi").options(**base, **more).load().count()
