"""Spark's real-time mode on nadi's door and on Kafka: a query copies 5,000 records per second from topic to topic.

Measured from the time a record is produced, until Spark's sink sends it, and until a consumer has the copy. nadi syncs
a record twice until then; Kafka with its default settings doesn't, but with a flush per message it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.kafka.broker import running
from bench.kafka.door import running_door
from bench.spark.setting import Bench
from bench.spark.tally import Row, Tally

PARTITIONS = 2
_P50_MS, _P99_MS = 5.0, 20.0
_BYTES = 100
_FLUSHED = "log.flush.interval.messages=1\n"
_WARM_S = 5.0
_LIMIT_S = 60.0


def real_time(bench: Bench) -> list[Row]:
    consumed, sent = Tally("ms"), Tally("ms")
    with ExitStack() as stack:
        addresses = {
            "nadi": stack.enter_context(running_door(bench.uri)),
            "Kafka, no sync": stack.enter_context(running(bench.folder / "kafka", PARTITIONS)).address,
            "Kafka, flush per message": stack.enter_context(
                running(bench.folder / "flushed", PARTITIONS, _FLUSHED)
            ).address,
        }
        for _ in range(bench.sizes.runs):
            for name, address in addresses.items():
                waits = _copied(bench, address)
                for tally, column in ((sent, 0), (consumed, 1)):
                    p50, p99 = np.percentile(waits[:, column], [50, 99])
                    tally.note(f"{name}, p50", float(p50))
                    tally.note(f"{name}, p99", float(p99))
    marks = {"nadi, p50": _P50_MS, "nadi, p99": _P99_MS}
    return [
        Row(
            f"{what}, {row.name}",
            row.value,
            row.unit,
            mark=marks.get(row.name) if tally is consumed else None,
            at_most=True,
        )
        for what, tally in (("produced to sent by Spark", sent), ("produced to consumed", consumed))
        for row in tally.rows("", {})
    ]


def _copied(bench: Bench, address: str) -> np.ndarray:
    """Return the times to sending and to consuming each record's copy, in ms, after some that aren't measured."""
    given, copies = f"in-{uuid4().hex}", f"out-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (given, copies)]).values():
        created.result()
    kafka = {"kafka.bootstrap.servers": address}
    read = bench.spark.readStream.format("kafka").options(**kafka, subscribe=given, startingOffsets="earliest").load()
    writing = read.select("value").writeStream.format("kafka").options(**kafka, topic=copies).outputMode("update")
    writing = writing.option("checkpointLocation", str(bench.folder / "checkpoints" / uuid4().hex))
    consumer = Consumer({"bootstrap.servers": address, "group.id": copies, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(copies, partition, 0) for partition in range(PARTITIONS)])
    warm = round(_WARM_S * bench.sizes.a_second)
    count = warm + bench.sizes.a_second * bench.sizes.seconds
    query = writing.trigger(realTime="5 minutes").start()
    program = [sys.executable, "-m", __name__, address, given, str(count), str(bench.sizes.a_second)]
    try:
        produce(address, given, 1, 1)
        _wait(consumer)  # until Spark has started
        with subprocess.Popen(program) as producer:
            waits = [_wait(consumer) for _ in range(count)]
        if producer.returncode:
            raise RuntimeError("the producer failed")
        if query.exception() is not None:
            raise query.exception()
    finally:
        query.stop()
        consumer.close()
    return np.array(waits[warm:])


def _wait(consumer: Consumer) -> tuple[float, float]:
    end = time.monotonic() + _LIMIT_S
    while (message := consumer.poll(1.0)) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"no record within {_LIMIT_S:.0f} s")
    now = time.time_ns()
    if message.error() is not None:
        raise RuntimeError(str(message.error()))
    produced = int(message.value()[:_DIGITS])
    return message.timestamp()[1] + 0.5 - produced / 1e6, (now - produced) / 1e6


_DIGITS = len(str(time.time_ns()))


def produce(address: str, topic: str, count: int, a_second: int) -> None:
    """Write records that begin with their time, evenly."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
    pad = os.urandom(_BYTES - _DIGITS)
    began = time.perf_counter()
    for number in range(count):
        while time.perf_counter() < began + number / a_second:
            producer.poll(0.0005)
        producer.produce(topic, b"%d" % time.time_ns() + pad, partition=number % PARTITIONS)
    if producer.flush(_LIMIT_S):
        raise RuntimeError(f"not all records were acknowledged within {_LIMIT_S:.0f} s")


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
