"""Idempotent producers: each batch once, over restarts of the door, through other doors, behind splits."""

from __future__ import annotations

import struct
import time

import pytest
from confluent_kafka import KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

import nadi
from nadi.client.serializers.kafka import Record, batch_of
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.raw import Connection
from tests.kafka.support import SCOPE, Door, consumed, running_door, written


def numbered(producer: int, epoch: int, sequence: int, values: list[bytes]) -> bytes:
    """Return a batch with a producer's numbers."""
    import crc32c

    batch = bytearray(batch_of([Record(0, 1_700_000_000_000, None, value) for value in values]))
    struct.pack_into(">qhi", batch, 43, producer, epoch, sequence)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def test_a_repeated_batch_is_stored_once_over_restarts_and_splits(
    manager: nadi.StreamManager, server: EmbeddedServer, door: Door
) -> None:
    door.create("once", 1)
    with Connection(door.address) as connection:
        producer = connection.new_producer()
        first = [connection.produce("once", 0, numbered(producer, 0, i * 2, [b"a", b"b"])) for i in range(3)]
        again = connection.produce("once", 0, numbered(producer, 0, 4, [b"a", b"b"]))
    assert first == [(ErrorCode.none, 0), (ErrorCode.none, 2), (ErrorCode.none, 4)]
    assert again == (ErrorCode.none, 4)
    segments = manager.current_segments(SCOPE, "once")
    manager.scale_stream(SCOPE, "once", [segments[0].segment_id], [(0.0, 0.4), (0.4, 1.0)])
    with running_door(server.controller_uri) as other, Connection(other.address) as connection:
        unknown = connection.produce("once", 0, numbered(producer, 0, 4, [b"a", b"b"]))
        assert unknown == (ErrorCode.duplicate_sequence_number, -1)  # clients take it for stored
        assert connection.produce("once", 0, numbered(producer, 0, 6, [b"c"])) == (ErrorCode.none, 6)
        gap = connection.produce("once", 0, numbered(producer, 0, 9, [b"d"]))[0]
        newer = connection.produce("once", 0, numbered(producer, 1, 0, [b"e"]))
        older = connection.produce("once", 0, numbered(producer, 0, 7, [b"f"]))[0]
    assert (gap, newer, older) == (
        ErrorCode.out_of_order_sequence_number,
        (ErrorCode.none, 7),
        ErrorCode.invalid_producer_epoch,
    )
    consumer = door.consumer("once")
    consumer.assign([TopicPartition("once", 0, 0)])
    assert [message.value() for message in consumed(consumer, 8)] == [b"a", b"b"] * 3 + [b"c", b"e"]
    assert consumer.poll(0.5) is None
    consumer.close()


def test_a_producer_goes_on_while_its_door_is_killed_and_started_again(server: EmbeddedServer) -> None:
    with running_door(server.controller_uri) as door:
        door.create("restarts", 4)
        port = int(door.address.rpartition(":")[2])
        producer = door.producer(linger_ms=5, message_timeout_ms=60_000)
        acknowledged: list[bytes] = []
        for number in range(3000):
            producer.produce("restarts", b"%d" % number, on_delivery=lambda e, m: acknowledged.append(e or m.value()))
            producer.poll(0)
            if number == 1000:
                door.kill()
            time.sleep(0.0005)
            if number == 1500:
                with running_door(server.controller_uri, port=port) as again:
                    assert producer.flush(60) == 0
                    again.kill()
    with running_door(server.controller_uri, port=port) as last:
        assert producer.flush(60) == 0
        assert len(acknowledged) == 3000
        consumer = last.consumer("restarts")
        consumer.assign([TopicPartition("restarts", partition, 0) for partition in range(4)])
        got = [message.value() for message in consumed(consumer, 3000)]
        assert consumer.poll(0.5) is None
        consumer.close()
    assert sorted(map(int, got)) == list(range(3000))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]), ErrorCode.corrupt_message),
        (lambda batch: batch[:16] + b"\1" + batch[17:], ErrorCode.corrupt_message),
        (lambda batch: batch[:40], ErrorCode.corrupt_message),
        (lambda batch: b"", ErrorCode.invalid_record),
    ],
    ids=["checksum", "old version", "cut", "empty"],
)
def test_a_damaged_batch_is_refused_alone(door: Door, damage: object, code: ErrorCode) -> None:
    door.admin()
    with Connection(door.address) as connection:
        connection.metadata("damaged")  # creates it
        good = batch_of([Record(0, 0, b"k", b"v")])
        assert connection.produce("damaged", 0, damage(good))[0] == code  # type: ignore[operator]
        assert connection.produce("damaged", 0, good)[0] == ErrorCode.none
        assert connection.produce("damaged", 99, good)[0] == ErrorCode.unknown_topic_or_partition
        assert connection.produce("not.there", 0, good)[0] == ErrorCode.unknown_topic_or_partition


def test_a_record_over_the_limit_is_refused(door: Door) -> None:
    door.create("limited", 1, max_message_bytes="1000")
    producer = door.producer(message_max_bytes=2_000_000)
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        written(producer, "limited", [b"x" * 2000])
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        door.create("odd", 1, no_such="1")


def test_a_record_without_key_is_refused_by_a_compacted_topic(door: Door) -> None:
    door.create("compacted", 1, cleanup_policy="compact")
    records = [Record(i, 0, key, b"v") for i, key in enumerate([b"", None, b"k"])]
    with Connection(door.address) as connection:
        assert connection.produce("compacted", 0, batch_of(records))[0] == ErrorCode.invalid_record
        assert connection.produce("compacted", 0, batch_of([records[0], records[2]])) == (ErrorCode.none, 0)
