"""DeleteRecords: each partition has its own beginning; the stream is truncated where all have begun."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

import nadi
from nadi.limits import KAFKA_HEAD_CACHED_S
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.support import SCOPE, Door, consumed, python_client, running_door

KAFKA_PYTHON = """
import sys
from kafka import KafkaAdminClient, TopicPartition
admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])
admin.delete_records({TopicPartition("cleared", 0): 51, TopicPartition("cleared", 1): -1})
admin.close()
"""


def written(door: Door, topic: str, partition: int, count: int) -> None:
    producer = door.producer(linger_ms=50, batch_num_messages=10)
    for number in range(count):
        producer.produce(topic, b"%d/%d" % (partition, number), partition=partition)
    assert producer.flush(30) == 0


def deleted(door: Door, topic: str, ends: dict[int, int]) -> dict[int, int]:
    """Delete records before the ends; return where the partitions begin."""
    asked = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    admin = door.admin()
    return {part.partition: done.result().low_watermark for part, done in admin.delete_records(asked).items()}


def starts(door: Door, topic: str, partitions: int) -> list[int]:
    consumer = door.consumer("starts")
    found = [consumer.get_watermark_offsets(TopicPartition(topic, each), 10)[0] for each in range(partitions)]
    consumer.close()
    return found


def values_of(door: Door, topic: str, count: int) -> list[bytes]:
    consumer = door.consumer("values")
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(2)])
    values = [message.value() for message in consumed(consumer, count)]
    assert consumer.poll(0.3) is None
    consumer.close()
    return sorted(values)


def error_below(consumer: Consumer, partition: TopicPartition) -> KafkaError:
    consumer.assign([partition])
    message = consumer.poll(10)
    assert message is not None
    error = message.error()
    assert error is not None, message.value()
    return error


def test_records_of_several_partitions_are_deleted(
    manager: nadi.StreamManager, server: EmbeddedServer, door: Door
) -> None:
    door.create("cleared", 2)
    written(door, "cleared", 1, 50)
    written(door, "cleared", 0, 50)
    cuts = manager.cuts(SCOPE, "cleared")
    head = cuts.head()
    with running_door(server.controller_uri) as other:
        assert starts(other, "cleared", 2) == [0, 0]
        assert deleted(door, "cleared", {0: 33}) == {0: 33}
        assert cuts.head() == head, "partition 1 still needs the first event"
        time.sleep(KAFKA_HEAD_CACHED_S)
        for each in (door, other):
            assert starts(each, "cleared", 2) == [33, 0]
        left = [b"0/%d" % number for number in range(33, 50)] + [b"1/%d" % number for number in range(50)]
        assert values_of(other, "cleared", 67) == sorted(left)
        consumer = other.consumer("below", auto_offset_reset="error", enable_partition_eof=True)
        assert error_below(consumer, TopicPartition("cleared", 0, 32)).name() == "_AUTO_OFFSET_RESET"
        consumer.close()
        assert deleted(other, "cleared", {0: 20, 1: 10}) == {0: 33, 1: 10}, "a beginning never moves back"
        assert cuts.head() != head
        other.kill()
    segments = manager.current_segments(SCOPE, "cleared")
    manager.scale_stream(SCOPE, "cleared", [each.segment_id for each in segments], [(0.0, 0.3), (0.3, 1.0)])
    written(door, "cleared", 0, 1)
    with running_door(server.controller_uri) as later:
        assert starts(later, "cleared", 2) == [33, 10]
        python_client(KAFKA_PYTHON, later.address)
        assert starts(later, "cleared", 2) == [51, 50]
        written(later, "cleared", 1, 1)
        assert values_of(later, "cleared", 1) == [b"1/0"]
        tail = cuts.tail()
    assert len(list(manager.read_events(SCOPE, "cleared", start=cuts.head(), end=tail))) == 1, "the stream is truncated"


def test_only_offsets_of_the_partition_can_be_deleted_to(door: Door) -> None:
    door.create("bounded", 2)
    written(door, "bounded", 0, 3)
    for end in (4, 1 << 40):
        with pytest.raises(KafkaException) as failed:
            deleted(door, "bounded", {0: end})
        assert failed.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    assert deleted(door, "bounded", {0: OFFSET_END, 1: OFFSET_END}) == {0: 3, 1: 0}
