"""A join of two streams and a deduplication, while the streams are scaled and after a restart, give the results of a
batch over the same events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from tests.support.spark import with_settings

from .conftest import World
from .scaled import ScaledStream
from .test_row_state import NEWEST, READ

pytestmark = pytest.mark.spark
NEWEST_JOIN = NEWEST | {  # joins have no state in Avro
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.join.stateFormatVersion": "4",
}
# a second of event time per event, from 1970-01-02: Spark drops rows of 1970-01-01T00:00 as late
TIMED = (*READ, "timestamp_seconds(86400 + CAST(split(CAST(event AS string), ':')[1] AS long)) AS at")
NEAR = "key = other_key AND other_at BETWEEN at - INTERVAL 20 SECONDS AND at + INTERVAL 20 SECONDS"

Read = Callable[[str], DataFrame]


def joined(read: Read) -> DataFrame:
    left = read("doors").selectExpr(*TIMED).withWatermark("at", "1 hour")
    right = read("lights").selectExpr(*TIMED).withWatermark("at", "1 hour")
    right = right.selectExpr("key AS other_key", "number AS other", "at AS other_at")
    return left.join(right, expr(NEAR), "leftOuter").select("key", "number", "other")


def deduplicated(read: Read) -> DataFrame:
    rows = read("doors").selectExpr(*TIMED).selectExpr("key", "number div 4 AS part", "at")
    if not rows.isStreaming:
        return rows.select("key", "part").distinct()
    rows = rows.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["key", "part"])
    return rows.select("key", "part")


def keep(found: list[tuple[object, ...]], rows: DataFrame, _: int) -> None:
    found.extend(map(tuple, rows.collect()))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [NEWEST_JOIN, {}], ids=["newest", "default"])
def test_joined_and_deduplicated_streams_equal_a_batch(
    world: World, tmp_path: Path, settings: dict[str, str], request: pytest.FixtureRequest
) -> None:
    prefix = request.node.callspec.id
    streams = [ScaledStream(world.manager, f"{prefix}-{name}", seed) for seed, name in enumerate(["doors", "lights"])]
    wanted = {"joined": joined, "deduplicated": deduplicated}
    found: dict[str, list[tuple[object, ...]]] = {name: [] for name in wanted}

    def read_stream(name: str) -> DataFrame:
        rows: DataFrame = world.read_stream(f"{prefix}-{name}", max_bytes_per_trigger="4000")
        return rows

    def run(act: Callable[[], None]) -> None:
        queries = [
            query(read_stream)
            .writeStream.option("checkpointLocation", str(tmp_path / name))
            .foreachBatch(partial(keep, found[name]))
            .start()
            for name, query in wanted.items()
        ]
        act()
        for running in queries:
            running.processAllAvailable()
            running.stop()

    def live() -> None:
        for stream in streams:
            stream.live(1, 30)

    def pass_watermark() -> None:
        for stream in streams:
            with world.manager.create_writer("home", stream.stream) as writer:
                writer.write_event(b"k0:100000", "k0")

    with with_settings(world.spark, settings):
        live()
        run(live)
        live()
        run(live)
        run(pass_watermark)
    for name, query in wanted.items():
        batch = query(lambda stream: world.read(f"{prefix}-{stream}")).collect()
        assert sorted(found[name], key=repr) == sorted(map(tuple, batch), key=repr), name
    assert any(other is None for *_, other in found["joined"]), "some are alone"
