"""Spark's own source and sink for Kafka, compared with nadi's, in one session: reads, micro-batches, stream to stream.

The broker has default settings: it doesn't sync before it acknowledges. Its sink in Spark writes at least once. A
source and a sink in Python that do nothing show what Spark itself needs for any of those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.kafka.broker import Broker, running
from bench.spark.batches import p50, written
from bench.spark.nothing import registered
from bench.spark.setting import EVENT_BYTES, SCOPE, Bench, fill, settled
from bench.spark.tally import Row, Tally

PARTITIONS = 4
_READ, _BATCH, _STREAM = "batch read", "micro-batch", "stream to stream"
_OF = "Kafka, at least once, no sync"
_NOTHING = "a source and a sink in Python that do nothing"
_A_SECOND = 200  # records that a query reads


def beside_kafka(bench: Bench) -> list[Row]:
    with running(bench.folder / "kafka", PARTITIONS) as broker:
        return _reads(bench, broker) + _queries(bench, broker)


def _reads(bench: Bench, broker: Broker) -> list[Row]:
    rows = bench.sizes.rows
    fill(bench, "kafka-read", PARTITIONS)
    if broker.produce("read", rows, EVENT_BYTES).wait():
        raise RuntimeError("Kafka's producer failed")
    settled(bench.folder)
    source = bench.spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    frames: dict[str, tuple[str, Callable[[], Any]]] = {
        f"{_READ}, Kafka": ("value", partial(source.option("subscribe", "read").load)),
        f"{_READ}, nadi": ("event", partial(bench.read, "kafka-read")),
    }
    tally = Tally("rows/s")
    for done in range(2 + bench.sizes.runs):
        for name, (column, frame) in frames.items():
            began = time.perf_counter()
            (found,) = frame().selectExpr("count(1)", f"sum(length({column}))").collect()
            seconds = time.perf_counter() - began
            if tuple(found) != (rows, rows * EVENT_BYTES):
                raise AssertionError(f"{found} was read of {rows} rows by {name}")
            if done >= 2:  # what Java has to compile is compiled in the first ones
                tally.note(name, rows / seconds)
    return tally.rows(f"{_READ}, Kafka", {f"{_READ}, nadi": None})


def _queries(bench: Bench, broker: Broker) -> list[Row]:
    for stream in ("kafka-from", "kafka-to"):
        bench.manager.create_stream(SCOPE, stream, PARTITIONS)
    batches, streams, nothing = Tally("ms"), Tally("ms"), registered(bench.spark)
    kafka = {"kafka.bootstrap.servers": broker.address}
    with written(bench, "kafka-from"), _produced(broker, "from"):
        time.sleep(3)  # the topic is made by its first record
        for _ in range(bench.sizes.runs):
            read = bench.spark.readStream.format("kafka").options(**kafka, subscribe="from").load()
            batches.note(f"{_BATCH}, Kafka", p50(bench, read.writeStream.format("noop")))
            mine = bench.read_stream("kafka-from")
            batches.note(f"{_BATCH}, nadi", p50(bench, mine.writeStream.format("noop")))
            write = read.select("value").writeStream.format("kafka").options(**kafka, topic="to")
            streams.note(f"{_STREAM}, {_OF}", p50(bench, write))
            empty = bench.spark.readStream.format(nothing).load().writeStream.format(nothing)
            streams.note(f"{_STREAM}, {_NOTHING}", p50(bench, empty))
            write = mine.select("event").writeStream.format("nadi").options(**bench.options("kafka-to"))
            streams.note(f"{_STREAM}, nadi, exactly once", p50(bench, write))
            write = mine.select("event").writeStream.format("nadi").options(**bench.options("kafka-to"))
            streams.note(f"{_STREAM}, nadi, at least once", p50(bench, write.option("exactly_once", "false")))
    return [
        *batches.rows(f"{_BATCH}, Kafka", {f"{_BATCH}, nadi": None}),
        *streams.rows(
            f"{_STREAM}, {_OF}",
            {f"{_STREAM}, {each}": None for each in (_NOTHING, "nadi, exactly once", "nadi, at least once")},
        ),
    ]


@contextmanager
def _produced(broker: Broker, topic: str) -> Iterator[None]:
    """Write a record at times, from another process."""
    process = broker.produce(topic, 1_000_000_000, 20, _A_SECOND)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
