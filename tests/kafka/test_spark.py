"""Spark's own Kafka source and sink on nadi's topics: batches, micro-batches, real-time mode."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nadi
from bench.jars import SPARK, Missing, jars_of
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.support import LIMIT_S, SCOPE, Door, consumed, running_door, written
from tests.spark.scaled import scale_somehow
from tests.support.spark import spark_session, with_settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
AT_MS = 1_796_040_000_123
REAL_TIME = {
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    "spark.sql.shuffle.partitions": "1",  # all tasks of a query run at once, and the session has two cores
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    try:
        jars_of(SPARK)
    except Missing as error:
        pytest.skip(str(error))
    with spark_session() as session, with_settings(session, {"spark.sql.session.timeZone": "UTC"}):
        yield session


def read(spark: Any, door: Door, topic: str, **options: str) -> Any:
    return spark.read.format("kafka").options(**kafka(door), subscribe=topic, includeHeaders="true", **options).load()


def read_stream(spark: Any, door: Door, topic: str) -> Any:
    options = {**kafka(door), "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options).load()


def kafka(door: Door) -> dict[str, str]:
    return {"kafka.bootstrap.servers": door.address}


def write(door: Door, topic: str, numbers: range, keys: int = 5) -> None:
    written(
        door.producer(linger_ms=5), topic, [b"%d" % number for number in numbers], lambda index: b"k%d" % (index % keys)
    )


def values(manager: nadi.StreamManager, topic: str) -> list[int]:
    """Return the numbers in a topic, as nadi's readers see them."""
    rows = pa.table(nadi.scan(manager, SCOPE, topic, value_format="kafka")).column("value").to_pylist()
    return [int(row["value"]) for row in rows]


def until(reached: Any, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def running(writer: Any, checkpoint: Path) -> Iterator[Any]:
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
        assert query.exception() is None
    finally:
        query.stop()


def test_both_sources_read_the_same_rows(spark: Any, server: EmbeddedServer, door: Door) -> None:
    door.create("both", 3)
    headers = [("unit", b"W"), ("unit", b""), ("none", None)]
    numbers = [b"%d" % number for number in range(300)]
    key = lambda index: b"k%d" % (index % 20) if index % 7 else None  # noqa: E731
    for compression in ("none", "zstd"):
        producer = door.producer(compression_type=compression, linger_ms=20)
        written(producer, "both", numbers, key, timestamp=AT_MS, headers=headers)
    theirs = read(spark, door, "both").select("key", "value", "timestamp", "headers")
    options = {"controller": server.controller_uri, "scope": SCOPE, "stream": "both", "value_format": "kafka"}
    ours = spark.read.format("nadi").options(**options).load().select("value.*")
    both = [Counter(map(str, rows)) for rows in (plain(theirs, "key"), plain(ours, "name"))]
    assert both[0] == both[1]
    assert both[0].total() == 600
    (row,) = {str(row) for row in plain(ours.where("key IS NULL AND CAST(value AS string) = '7'"), "name")}
    at = datetime.fromtimestamp(AT_MS // 1000, UTC).replace(microsecond=AT_MS % 1000 * 1000, tzinfo=None)
    assert row == str((None, b"7", at, [("unit", b"W"), ("unit", b""), ("none", None)]))


def plain(frame: Any, name: str) -> list[tuple[Any, ...]]:
    def of(value: Any) -> Any:
        return bytes(value) if isinstance(value, bytearray) else value

    return [
        (of(row.key), of(row.value), row.timestamp, [(header[name], of(header.value)) for header in row.headers])
        for row in frame.collect()
    ]


def test_batch_write_and_bounded_reads(spark: Any, manager: nadi.StreamManager, door: Door) -> None:
    door.create("batch", 2)
    frame = spark.range(1000).selectExpr("CAST(id % 10 AS string) AS key", "CAST(id AS string) AS value")
    frame.write.format("kafka").options(**kafka(door), topic="batch").save()
    assert sorted(values(manager, "batch")) == list(range(1000))
    between = read(
        spark, door, "batch", startingOffsets='{"batch":{"0":5,"1":7}}', endingOffsets='{"batch":{"0":15,"1":7}}'
    )
    assert [(row.partition, row.offset) for row in between.collect()] == [(0, offset) for offset in range(5, 15)]
    assert read(spark, door, "batch", startingTimestamp="1").count() == 1000


def test_micro_batches_go_on_from_their_checkpoint(
    spark: Any, manager: nadi.StreamManager, door: Door, tmp_path: Path
) -> None:
    for topic in ("micro-in", "micro-out"):
        door.create(topic, 2)
    copied = read_stream(spark, door, "micro-in").select("key", "value")
    writer = copied.writeStream.format("kafka").options(**kafka(door), topic="micro-out")
    for part in range(3):
        with running(writer, tmp_path / "checkpoint") as query:
            write(door, "micro-in", range(200 * part, 200 * (part + 1)))
            query.processAllAvailable()
        scale_somehow(manager, "micro-in", random.Random(part), SCOPE)
    assert sorted(values(manager, "micro-out")) == list(range(600))


def test_real_time_mode_copies_each_record_at_once(
    spark: Any, manager: nadi.StreamManager, door: Door, tmp_path: Path
) -> None:
    for topic in ("real-in", "real-out"):
        door.create(topic, 2)
    copied = read_stream(spark, door, "real-in").select("key", "value")
    writer = copied.writeStream.format("kafka").options(**kafka(door), topic="real-out")
    writer = writer.outputMode("update").trigger(realTime="60 seconds")
    for part in range(2):
        with running(writer, tmp_path / "checkpoint"):  # of one batch, which takes a minute
            write(door, "real-in", range(200 * part, 200 * (part + 1)))
            until(lambda: set(values(manager, "real-out")) == set(range(200 * (part + 1))), 30)  # noqa: B023


def test_real_time_mode_counts_each_record_once_in_its_state(
    spark: Any, manager: nadi.StreamManager, door: Door, tmp_path: Path
) -> None:
    door.create("state-in", 1)
    door.create("state-out", 1)
    counts = read_stream(spark, door, "state-in").groupBy("key").count()
    writer = counts.selectExpr("key", "CAST(count AS string) AS value").writeStream.format("kafka")
    writer = writer.options(**kafka(door), topic="state-out").outputMode("update").trigger(realTime="1 second")
    consumer = door.consumer("counts")
    consumer.subscribe(["state-out"])
    latest: dict[bytes, int] = {}
    with with_settings(spark, REAL_TIME):
        for part in range(1, 4):
            with running(writer, tmp_path / "checkpoint"):
                write(door, "state-in", range(100))
                while latest != {b"k%d" % key: 20 * part for key in range(5)}:
                    (message,) = consumed(consumer, 1)
                    latest[message.key()] = int(message.value())
    consumer.close()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_doors_leave_each_record_once_in_the_state(
    spark: Any, server: EmbeddedServer, manager: nadi.StreamManager, door: Door, tmp_path: Path
) -> None:
    """Spark's door is killed 20 times at any moment of its batches; the producer has another one."""
    kills, records, seed = 20, 200, random.Random(47)
    door.create("killed-in", 1)
    door.create("killed-out", 1)
    port, restarts = 0, 0
    query: Any = None
    with with_settings(spark, REAL_TIME):
        for kill in range(kills + 1):
            with running_door(server.controller_uri, port=port) as killed:
                port = int(killed.address.rpartition(":")[2])
                counts = read_stream(spark, killed, "killed-in").groupBy("key").count()
                writer = counts.selectExpr("key", "CAST(count AS string) AS value").writeStream.format("kafka")
                writer = writer.options(**kafka(killed), topic="killed-out").trigger(realTime="1 second")
                writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path))
                for number in range(10):
                    write(door, "killed-in", range(number * records // 10, (number + 1) * records // 10))
                    if query is None or not query.isActive:
                        restarts += query is not None
                        query = writer.start()
                    if kill < kills and number == 7:
                        time.sleep(seed.random())
                        killed.kill()

        def is_counted() -> bool:
            assert query.isActive, query.exception()
            return values(manager, "killed-out").count((kills + 1) * records // 5) >= 5

        until(is_counted)
        query.stop()
    found = values(manager, "killed-out")
    assert max(found) == (kills + 1) * records // 5
    print(f"{kills} kills, {restarts} restarts of the query, {len(found)} results")


def test_the_guide(spark: Any, manager: nadi.StreamManager, door: Door, tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "kafka.md").read_text(), re.DOTALL
    )
    (example,) = [block for block in blocks if "realTime" in block]
    for topic in ("payments", "counts"):
        door.create(topic, 1)
    write(door, "payments", range(100))
    places = {"127.0.0.1:9092": door.address, '"checkpoint"': repr(str(tmp_path))}
    for printed, here in places.items():
        assert example.count(printed) == 1
        example = example.replace(printed, here)
    names: dict[str, Any] = {}
    with with_settings(spark, REAL_TIME):
        exec(compile(example, "docs/kafka.md", "exec"), names)
        try:
            until(lambda: values(manager, "counts").count(20) == 5)
        finally:
            names["query"].stop()
