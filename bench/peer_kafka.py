"""Kafka with Confluent's Python client, whose core is librdkafka, doing the peers' work: a topic on one broker.

Each event is acknowledged by the broker, and written once even if it is sent again. Written as fast as it goes with a
linger and large batches, at a steady rate without a linger. Read in lists, from all partitions, without a consumer
group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peer_program import main
from bench.peer_work import CHUNK, KEYS, STREAM, WARM, Acked, Setting

SAFE = {"acks": "all", "enable.idempotence": True}
LARGE_BATCHES = {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 262_144}  # with less it waits
AT_ONCE = {"linger.ms": 0}
LIST = 10_000  # events taken at once
WAIT_S = 60.0
_LEAST_S = 0.001  # what a poll can wait for


class Kafka:
    def __init__(self, setting: Setting) -> None:
        self._address, self._partitions = {"bootstrap.servers": setting.address}, setting.segments

    def prepare(self) -> None:
        admin = AdminClient(self._address)
        admin.create_topics([NewTopic(STREAM, self._partitions, 1)], operation_timeout=WAIT_S)[STREAM].result(WAIT_S)

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        failures = _Failures()
        settings = {"delivery.report.only.error": True, "on_delivery": failures.note}
        producer = Producer(self._address | SAFE | LARGE_BATCHES | settings)
        events = [os.urandom(size) for _ in range(CHUNK)]
        keys = [KEYS[number % len(KEYS)] for number in range(CHUNK)]
        written = 0
        while go_on(written):
            for event, key in zip(events, keys, strict=True):
                _produce(producer, event, key)
            written += CHUNK
            producer.poll(0)
        failures.after_flush(producer)

    def round_trips(self, size: int, count: int) -> list[float]:
        failures, waits = _Failures(), list[float]()
        producer = Producer(self._address | SAFE | AT_ONCE)
        event = os.urandom(size)
        for number in range(count):
            began = time.perf_counter()
            producer.produce(STREAM, event, KEYS[number % len(KEYS)], on_delivery=failures.note)
            while len(producer):
                producer.poll(WAIT_S)
            waits.append(time.perf_counter() - began)
        failures.after_flush(producer)
        return waits

    def read(self, count: int) -> None:
        consumer = self._consumer([OFFSET_BEGINNING] * self._partitions)
        found = 0
        while found < count:
            messages = consumer.consume(min(LIST, count - found), WAIT_S)
            found += len(_values(messages))
        consumer.close()

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        failures = _Failures()
        producer = Producer(self._address | SAFE | AT_ONCE)
        for key in keys:
            _produce(producer, WARM, key, failures.note)
        failures.after_flush(producer)
        for number, wait in enumerate(waits):
            _serve(producer, wait)
            done = failures.note if acked is None else partial(failures.or_told, acked, time.perf_counter())
            _produce(producer, event(), keys[number % len(keys)], done)
        failures.after_flush(producer)

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        probe = self._consumer([])
        ends = [
            probe.get_watermark_offsets(TopicPartition(STREAM, number), WAIT_S)[1] for number in range(self._partitions)
        ]
        probe.close()
        consumer = self._consumer(ends)
        begin()
        while all(map(take, _values(consumer.consume(1, WAIT_S) + consumer.consume(LIST, 0)))):
            pass
        consumer.close()

    def _consumer(self, offsets: Sequence[int]) -> Any:
        consumer = Consumer(self._address | {"group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(STREAM, number, offset) for number, offset in enumerate(offsets)])
        return consumer


Delivered = Callable[[Any, Any], None]


def _produce(producer: Any, event: bytes, key: str, done: Delivered | None = None) -> None:
    """Wait for capacity if needed; done: called by a later poll, instead of the producer's own callback."""
    while True:
        try:
            producer.produce(STREAM, event, key, on_delivery=done)
        except BufferError:
            producer.poll(_LEAST_S)
        else:
            return


def _serve(producer: Any, seconds: float) -> None:
    """Sleep, processing deliveries meanwhile."""
    end = time.perf_counter() + seconds
    producer.poll(0)
    while (left := end - time.perf_counter()) > 0:
        producer.poll(max(left, _LEAST_S))


def _values(messages: Sequence[Any]) -> list[bytes]:
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(str(message.error()))
    return [message.value() for message in messages]


class _Failures:
    """Makes the end fail if an event wasn't delivered."""

    def __init__(self) -> None:
        self._first: Any = None

    def note(self, error: Any, _: Any) -> None:
        self._first = self._first or error

    def or_told(self, acked: Acked, sent: float, error: Any, _: Any) -> None:
        if error is None:
            acked(sent)
        else:
            self.note(error, None)

    def after_flush(self, producer: Any) -> None:
        left = producer.flush(WAIT_S)
        if left or self._first is not None:
            raise RuntimeError(f"{left} events were not acknowledged in time, or: {self._first}")


if __name__ == "__main__":
    main(Kafka)
