"""`message.timestamp.type=LogAppendTime`: records get the time of their storing."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TopicPartition
from kio.schema.errors import ErrorCode

import nadi
from tests.kafka.raw import Connection
from tests.kafka.support import SCOPE, Door, consumed, python_client, written
from tests.kafka.test_producers import numbered

KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, KafkaProducer
with KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
    sent = producer.send("appended.python", b"value", timestamp_ms=5).get(30)
consumer = KafkaConsumer("appended.python", bootstrap_servers=sys.argv[1], auto_offset_reset="earliest")
record = next(consumer)
assert record.timestamp_type == 1, record
assert sent.timestamp == record.timestamp, (sent, record)
print(record.timestamp)
"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_have_the_time_of_their_storing(manager: nadi.StreamManager, door: Door, codec: str) -> None:
    topic = f"appended.{codec}"
    door.create(topic, 1, message_timestamp_type="LogAppendTime")
    first_ms = now_ms()
    producer = door.producer(compression_type=codec, linger_ms=20)
    messages = written(producer, topic, [b"%d" % number for number in range(10)], timestamp=5)
    middle_ms = now_ms() + 1
    time.sleep(0.01)
    messages += written(producer, topic, [b"%d" % number for number in range(10, 20)], timestamp=5)
    consumer = door.consumer(topic)
    consumer.assign([TopicPartition(topic, 0, 0)])
    times = [message.timestamp() for message in consumed(consumer, 20)]
    assert {kind for kind, _ in times} == {TIMESTAMP_LOG_APPEND_TIME}
    assert [stamp for _, stamp in times] == [message.timestamp()[1] for message in messages], "as acknowledged"
    assert first_ms <= times[0][1] <= middle_ms <= times[19][1] <= now_ms()
    offsets = consumer.offsets_for_times([TopicPartition(topic, 0, stamp) for stamp in (6,)], 10)
    assert offsets[0].offset == 0
    assert consumer.offsets_for_times([TopicPartition(topic, 0, middle_ms)], 10)[0].offset == 10
    consumer.close()
    rows = pa.table(nadi.scan(manager, SCOPE, topic, value_format="kafka")).column("value").to_pylist()
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [stamp for _, stamp in times]


def test_kafka_python_sees_the_time_of_storing(door: Door) -> None:
    door.create("appended.python", 1, message_timestamp_type="LogAppendTime")
    before_ms = now_ms()
    assert before_ms <= int(python_client(KAFKA_PYTHON, door.address)) <= now_ms()


def test_a_repeated_batch_is_recognized_in_spite_of_its_time(door: Door) -> None:
    door.create("appended.twice", 1, message_timestamp_type="LogAppendTime")
    with Connection(door.address) as connection:
        batch = numbered(connection.new_producer(), 0, 0, [b"a", b"b"])
        for _ in range(2):
            assert connection.produce("appended.twice", 0, batch) == (ErrorCode.none, 0)
            time.sleep(0.005)
