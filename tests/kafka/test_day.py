"""A topic grows from 1 to 30 segments and shrinks to 4 under a producer and a group: each record comes once, in order
per partition."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from confluent_kafka import Consumer

import nadi
from bench.elastic import plan
from nadi.client import ScalingPolicy
from tests.kafka.support import LIMIT_S, SCOPE, Door

PARTITIONS, KEYS, CONSUMERS = 60, 600, 2
VALUE_BYTES = 200


class Day:
    """A producer that follows rates per second, and a group that reads what it writes."""

    def __init__(self, door: Door, topic: str) -> None:
        self._door, self._topic = door, topic
        self._sent = threading.Event()
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)  # by key
        self.received: list[tuple[int, int, bytes, bytes]] = []  # partition, offset, key and value, as they came
        self.failed: list[str] = []

    def run(self, rates: Iterator[int], meanwhile: Callable[[], object]) -> None:
        """Write until the rates end, and read until all has come."""
        consumers = [self._door.consumer(f"readers of {self._topic}") for _ in range(CONSUMERS)]
        work = [threading.Thread(target=self._read, args=(consumer,)) for consumer in consumers]
        work.append(threading.Thread(target=self._write, args=(rates,)))
        for thread in work:
            thread.start()
        while work[-1].is_alive():
            meanwhile()
            time.sleep(0.2)
        for thread in work:
            thread.join(LIMIT_S)

    def _write(self, rates: Iterator[int]) -> None:
        def stored(error: object, _: object) -> None:
            self.failed += [str(error)] if error is not None else []

        producer, count = self._door.producer(linger_ms=5), 0
        for rate in rates:
            until = time.monotonic() + 1
            for number in range(rate):
                key = b"key %d" % (count % KEYS)
                value = b"%0*d" % (VALUE_BYTES, count)
                producer.produce(self._topic, value, key, on_delivery=stored)
                self.sent[key].append(value)
                count += 1
                if number % 20 == 0:
                    producer.poll(0)
                    time.sleep(max(0.0, until - 1 + number / rate - time.monotonic()))
            time.sleep(max(0.0, until - time.monotonic()))
        if left := producer.flush(LIMIT_S):
            self.failed.append(f"{left} records are not acknowledged")
        self._sent.set()

    def _read(self, consumer: Consumer) -> None:
        consumer.subscribe([self._topic])
        deadline: float | None = None
        while deadline is None or time.monotonic() < deadline:
            messages = consumer.consume(500, 0.2)
            for message in messages:
                if message.error() is not None:
                    self.failed.append(str(message.error()))
                else:
                    self.received.append((message.partition(), message.offset(), message.key(), message.value()))
            if messages:
                consumer.commit(asynchronous=False)
            if self._sent.is_set():
                deadline = deadline or time.monotonic() + LIMIT_S
                if len(self.received) >= sum(map(len, self.sent.values())) and not messages:
                    break
        consumer.close()

    def check(self) -> None:
        assert not self.failed
        values: dict[bytes, list[bytes]] = defaultdict(list)
        offsets: dict[int, list[int]] = defaultdict(list)
        for partition, offset, key, value in self.received:
            values[key].append(value)
            offsets[partition].append(offset)
        assert values == self.sent
        assert len(offsets) == PARTITIONS
        for of_partition in offsets.values():
            assert of_partition == list(range(len(of_partition)))


def scale(manager: nadi.StreamManager, topic: str, count: int) -> None:
    """Replace all segments by `count` equal ones."""
    segments = [segment.segment_id for segment in manager.current_segments(SCOPE, topic)]
    borders = [number / count for number in range(count + 1)]
    manager.scale_stream(SCOPE, topic, segments, [*pairwise(borders)])


def test_a_topic_that_is_scaled_by_hand_gives_each_record_once_in_order(
    manager: nadi.StreamManager, door: Door
) -> None:
    door.create("by.hand", PARTITIONS)
    day, counts = Day(door, "by.hand"), [8, 30, 12, 4]

    def rates() -> Iterator[int]:
        yield 500
        for count in counts:
            scale(manager, "by.hand", count)
            yield from (500, 500)

    day.run(rates(), lambda: None)
    assert len(manager.segment_history(SCOPE, "by.hand")) == sum([1, *counts])
    day.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_topic_that_follows_its_load_gives_each_record_once_in_order(manager: nadi.StreamManager, door: Door) -> None:
    door.create("by.load", PARTITIONS)
    manager.update_stream(SCOPE, "by.load", scaling=ScalingPolicy.by_data_rate(10))
    day, low, most, is_long = Day(door, "by.load"), 60, 1, time.monotonic() + 400

    def segments() -> int:
        return len(manager.current_segments(SCOPE, "by.load"))

    def rates() -> Iterator[int]:
        yield from plan.follow(plan.made_day(), 150, low, 1500)
        while segments() > 4 and time.monotonic() < is_long:  # merges come after a quiet minute
            yield low

    def watch() -> None:
        nonlocal most
        most = max(most, segments())

    day.run(rates(), watch)
    print(f"{len(day.received):,} records, at most {most} segments, {segments()} at the end")
    day.check()
    assert most >= 25
    assert segments() <= 4
