"""Consumers read all records of a topic through splits, merges and restarts of the door."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

import nadi
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.support import LIMIT_S, SCOPE, Door, consumed, running_door, written


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_keep_all_their_parts(door: Door, codec: str) -> None:
    topic = f"parts_{codec}"
    door.create(topic, 3)
    producer = door.producer(compression_type=codec, linger_ms=50)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    messages = written(producer, topic, [b"x%d" % i for i in range(200)], lambda i: b"k%d" % (i % 7), headers=headers)
    producer.produce(topic, None, b"deleted", timestamp=1_700_000_000_123)
    producer.produce(topic, b"", b"")
    assert producer.flush(30) == 0
    consumer = door.consumer(topic)
    consumer.subscribe([topic])
    got = consumed(consumer, 202)
    consumer.close()
    assert {(m.partition(), m.offset()): (m.key(), m.value()) for m in messages}.items() <= {
        (m.partition(), m.offset()): (m.key(), m.value()) for m in got
    }.items()
    assert [m.headers() for m in got if m.value() and m.key()] == [headers] * 200
    deleted = next(m for m in got if m.key() == b"deleted")
    assert (deleted.value(), deleted.timestamp()[1]) == (None, 1_700_000_000_123)
    empty = next(m for m in got if m.key() == b"")
    assert empty.value() == b""


def test_offsets_count_records_through_splits_and_merges(
    manager: nadi.StreamManager, server: EmbeddedServer, door: Door
) -> None:
    door.create("elastic", 8)
    stop = threading.Event()
    expected: dict[int, list[tuple[int, bytes]]] = defaultdict(list)

    def produce() -> None:
        producer, number = door.producer(linger_ms=1), 0
        while not stop.is_set():
            batch = [b"%d" % (number + i) for i in range(50)]
            for message in written(producer, "elastic", batch, lambda i: b"k%d" % (i % 16)):
                expected[message.partition()].append((message.offset(), message.value()))
            number += 50

    thread = threading.Thread(target=produce, name="produces")
    thread.start()
    try:
        for ranges in (4, 16, 2, 1, 3):
            segments = manager.current_segments(SCOPE, "elastic")
            new = [(i / ranges, (i + 1) / ranges) for i in range(ranges)]
            manager.scale_stream(SCOPE, "elastic", [segment.segment_id for segment in segments], new)
            stop.wait(0.5)
    finally:
        stop.set()
        thread.join()
    total = sum(map(len, expected.values()))
    with running_door(server.controller_uri) as later:  # it counts from what is stored
        for each in (door, later):
            consumer = each.consumer("elastic")
            consumer.assign([TopicPartition("elastic", partition, OFFSET_BEGINNING) for partition in range(8)])
            got: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
            for message in consumed(consumer, total):
                got[message.partition()].append((message.offset(), message.value()))
            consumer.close()
            assert got == expected
    for messages in expected.values():
        assert [offset for offset, _ in messages] == list(range(len(messages)))


def test_a_restarted_door_keeps_its_id(server: EmbeddedServer) -> None:
    ids = []
    port = 0
    for _ in range(2):
        with running_door(server.controller_uri, "--scope", "restarted", port=port) as door:
            port = int(door.address.rpartition(":")[2])
            brokers = door.admin().list_topics(timeout=10).brokers
            ids.append([id for id, broker in brokers.items() if broker.port == port])
            door.kill()
    assert len(ids[0]) == 1
    assert ids[0] == ids[1]


def test_a_new_door_is_listed_by_the_others_once_it_is_ready(server: EmbeddedServer, door: Door) -> None:
    with running_door(server.controller_uri) as later:
        for each in (door, later):
            brokers = each.admin().list_topics(timeout=10).brokers.values()
            assert {f"{broker.host}:{broker.port}" for broker in brokers} >= {door.address, later.address}


def test_a_taken_port_is_named(server: EmbeddedServer, door: Door) -> None:
    port = door.address.rpartition(":")[2]
    command = [sys.executable, "-m", "nadi", "kafka", "--controller", server.controller_uri, "--port", port]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode
    assert f"can't listen on 127.0.0.1:{port}" in run.stderr
    assert "--kafka-port" not in run.stderr
