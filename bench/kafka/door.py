"""nadi's Kafka door beside Kafka, with one client: records written with all acknowledgements and idempotence, and the
time from producing a record to consuming it. Kafka flushes after each message, as nadi syncs each one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import nadi
from bench.kafka.broker import running
from bench.measure import Figure

_PARTITIONS, _RECORDS, _BYTES = 6, 200_000, 1_000
_RATE, _LATENCY_S = 10_000, 10
_FLUSHED = "log.flush.interval.messages=1\n"


def door(folder: Path) -> list[Figure]:
    """Measure both, one after the other."""
    with _nadi(folder / "nadi") as address:
        nadi_ = _written_per_s(address), *_latencies_ms(address)
    with _kafka(folder / "Kafka") as address:
        kafka = _written_per_s(address), *_latencies_ms(address)
    figures = []
    for name, unit, ours, theirs, mark in zip(
        ("1 KB records written", "produce to consume, p50", "produce to consume, p99"),
        ("records/s", "ms", "ms"),
        nadi_,
        kafka,
        (2.0, 0.5, 0.5),
        strict=True,
    ):
        figures.append(Figure(f"{name}, Kafka with a flush per message", theirs, unit))
        figures.append(Figure(f"{name}, nadi", ours, unit))
        figures.append(Figure(f"{name}, nadi of Kafka", ours / theirs, "", mark, at_most=unit == "ms"))
    return figures


@contextmanager
def _nadi(folder: Path) -> Iterator[str]:
    with nadi.embedded(folder) as server, running_door(server.controller_uri) as address:
        yield address


@contextmanager
def running_door(controller: str) -> Iterator[str]:
    """Run a door on any port; yield its address for clients."""
    command = [sys.executable, "-m", "nadi", "kafka", "--controller", controller, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.split()[-1] for line in process.stdout if "bootstrap.servers" in line)
        finally:
            process.terminate()


@contextmanager
def _kafka(folder: Path) -> Iterator[str]:
    with running(folder, _PARTITIONS, _FLUSHED, heap="1g") as broker:
        yield broker.address


def _topic(address: str) -> str:
    name, admin = uuid4().hex, AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(name, _PARTITIONS, 1)]).values():
        created.result()
    return name


def _producer(address: str, linger_ms: int) -> Producer:
    return Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": linger_ms})


def _written_per_s(address: str) -> float:
    topic, producer, value = _topic(address), _producer(address, 5), os.urandom(_BYTES)
    _produce(producer, topic, _RECORDS // 10, lambda _: value)
    began = time.perf_counter()
    _produce(producer, topic, _RECORDS, lambda _: value)
    return _RECORDS / (time.perf_counter() - began)


def _produce(producer: Producer, topic: str, count: int, value: Callable[[int], bytes]) -> None:
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value(number), b"%d" % (number % 1000))
                break
            except BufferError:  # the producer's queue is full
                producer.poll(0.01)
        if number % 100 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("not all records were acknowledged within 300 s")


def _latencies_ms(address: str) -> tuple[float, float]:
    """Return p50 and p99 at a steady rate, after a tenth of the time."""
    topic, producer = _topic(address), _producer(address, 0)
    group = {"group.id": topic, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100}
    consumer = Consumer({"bootstrap.servers": address, **group})
    consumer.subscribe([topic])
    producer.produce(topic, b"0")
    producer.flush(30)
    while consumer.poll(1.0) is None:
        pass  # until the group is formed
    count = _RATE * _LATENCY_S
    writer = subprocess.Popen([sys.executable, "-m", __name__, address, topic, str(count)])
    waits: list[float] = []
    pad = _BYTES - 19
    while len(waits) < count:
        if (message := consumer.poll(1.0)) is not None:  # `consume` would wait for as many messages as it may return
            waits.append((time.time_ns() - int(message.value()[:-pad])) / 1e6)
    writer.wait()
    consumer.close()
    p50, p99 = np.percentile(waits[count // 10 :], [50, 99])
    return float(p50), float(p99)


def main(address: str, topic: str, count: int) -> None:
    producer, pad = _producer(address, 0), b"x" * (_BYTES - 19)
    began = time.perf_counter()
    for number in range(count):
        while time.perf_counter() < began + number / _RATE:
            producer.poll(0.0005)
        producer.produce(topic, b"%d" % time.time_ns() + pad, b"%d" % (number % 1000))
    producer.flush(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
