"""Programs like those published for Pravega's connector, with real Spark, run unchanged: they create their streams,
read from the current tail, and inspect streams by `metadata`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nadi.client import StreamManager
from tests.support.waiting import until

from .conftest import World

SENSORS = 3


def test_a_query_writes_generated_rows_to_a_stream_that_it_creates(world: World, tmp_path: Path) -> None:
    """Like the sample that streams generated data: Spark's rate source, one sensor for each of a few keys."""
    rows = world.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).load()
    sensors = rows.selectExpr(
        f"to_json(named_struct('sensor', value % {SENSORS}, 'n', value)) AS event",
        f"cast(value % {SENSORS} AS string) AS routing_key",
    )
    query = (
        sensors.writeStream.trigger(processingTime="100 milliseconds")
        .outputMode("append")
        .format("pravega")
        .option("allow_create_scope", "true")
        .option("controller", world.uri)
        .option("scope", "generated")
        .option("stream", "sensors")
        .option("default_num_segments", "2")
        .option("default_scale_factor", "2")
        .option("default_segment_target_rate_events_per_sec", "100000")
        .option("default_retention_size_bytes", "100000000")
        .option("transaction_timeout_ms", "600000")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        while query.lastProgress is None or query.lastProgress["batchId"] < 2:
            assert query.exception() is None
            query.awaitTermination(0.2)
    finally:
        query.stop()
    configuration = world.manager.stream_configuration("generated", "sensors")
    assert (configuration.scaling.target_rate, configuration.scaling.min_segments) == (100_000, 2)
    assert configuration.retention is not None
    check_sensors(world.manager, 120)


def events_of(manager: StreamManager, scope: str, stream: str) -> list[bytes]:
    """Return the current events."""
    tail = manager.stream_info(scope, stream).tail
    return [bytes(event.data) for event in manager.read_events(scope, stream, end=tail)]


def check_sensors(manager: StreamManager, least: int) -> None:
    """Check that each number occurs once. (A sensor's rows are in several Spark partitions, so in any order.)"""
    found: list[dict[str, int]] = []

    def are_whole() -> bool:
        found[:] = [json.loads(event) for event in events_of(manager, "generated", "sensors")]
        return sorted(row["n"] for row in found) == list(range(len(found)))

    until(are_whole)  # of a batch that was being committed when the query was stopped, one segment may have its part
    assert len(found) >= least
    assert {row["sensor"] for row in found} == set(range(SENSORS))


def written(world: World, stream: str, rows: list[tuple[str, str]], **more: Any) -> None:
    frame = world.spark.createDataFrame(rows, "event string, routing_key string")
    options = world.options(stream, **more)
    frame.write.format("pravega").options(**options).mode("append").save()


def test_batch_is_read_between_cuts_from_metadata(world: World) -> None:
    """Like the samples that read a stream as a batch, and those that inspect its ends first."""
    written(world, "batched", [(f"{n}", f"{n % 5}") for n in range(50)])

    def read(**more: Any) -> Any:
        return world.spark.read.format("pravega").options(**world.options("batched", **more)).load()

    (ends,) = read(metadata="StreamInfo").collect()
    written(world, "batched", [("later", "5")])
    everything = [row.event for row in read().selectExpr("cast(event AS string)").collect()]
    assert sorted(everything) == sorted([*(f"{n}" for n in range(50)), "later"])
    former = read(start_stream_cut=ends.head_stream_cut, end_stream_cut=ends.tail_stream_cut)
    assert former.columns == ["event", "scope", "stream", "segment_id", "offset"]
    assert former.count() == 50
    assert read(start_stream_cut="earliest", end_stream_cut="latest", allow_create_scope="false").count() == 51
    assert read(start_stream_cut=ends.tail_stream_cut, end_stream_cut="unbounded").count() == 1
    streams = read(metadata="Streams")
    assert streams.columns == ["scope_name", "stream_name"]
    assert ("home", "batched") in [tuple(row) for row in streams.collect()]
    world.manager.bookmarks("home").create("noon", world.manager.stream_info("home", "batched").tail)
    (cut,) = read(metadata="StreamCuts").collect()
    assert (cut.kind, cut.name, cut.end_stream_cut) == ("bookmark", "noon", None)
    assert read(end_stream_cut=cut.start_stream_cut).count() == 51


def test_query_starts_at_tail_or_earliest(world: World, tmp_path: Path) -> None:
    written(world, "followed", [("before", "a")])

    def follow(name: str, **more: Any) -> Any:
        rows = world.spark.readStream.format("pravega").options(**world.options("followed", **more)).load()
        sink = rows.selectExpr("cast(event AS string)").writeStream.format("memory").queryName(name)
        return sink.option("checkpointLocation", str(tmp_path / name)).start()

    latest, earliest = follow("latest"), follow("earliest", start_stream_cut="earliest", approx_bytes_per_trigger=1000)
    try:
        latest.processAllAvailable()
        written(world, "followed", [("after", "a")])
        for query in (latest, earliest):
            query.processAllAvailable()
        found = {name: [row.event for row in world.spark.table(name).collect()] for name in ("latest", "earliest")}
    finally:
        for query in (latest, earliest):
            query.stop()
    assert found == {"latest": ["after"], "earliest": ["before", "after"]}


def test_rows_without_transactions_are_readable_after_the_write(world: World, tmp_path: Path) -> None:
    written(world, "direct", [(f"{n}", f"{n % 3}") for n in range(30)], exactly_once="false")
    assert len(events_of(world.manager, "home", "direct")) == 30
    rows = world.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        rows.selectExpr("cast(value AS string) AS event")
        .writeStream.format("nadi")
        .options(**world.options("direct", exactly_once="false", allow_create_stream="true"))
        .option("checkpointLocation", str(tmp_path / "direct"))
        .start()
    )
    try:
        while query.lastProgress is None or query.lastProgress["batchId"] < 1:
            assert query.exception() is None
            query.awaitTermination(0.1)
    finally:
        query.stop()
    assert len(events_of(world.manager, "home", "direct")) >= 50
