"""Consumers never see aborted records; committed ones appear together with the group's offsets."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

import nadi
from nadi.client.blocking.face import inside
from nadi.kafka.transactions import StoredTransaction
from nadi.limits import KAFKA_TRANSACTIONAL_ID_S, KAFKA_TRANSACTIONS_CHECKED_S
from nadi.naming import KAFKA_TABLE
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.raw import Connection, requests
from tests.kafka.support import SCOPE, Door, consumed, running_door, written

UNKNOWN_PARTITION = ErrorCode.unknown_topic_or_partition


def values_of(door: Door, topic: str, partitions: int, count: int, **options: str) -> list[bytes]:
    consumer = door.consumer("values", **options)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    values = [message.value() for message in consumed(consumer, count)]
    assert consumer.poll(0.5) is None
    consumer.close()
    return values


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_only_committed_records_are_read(door: Door, isolation: str) -> None:
    topics = [f"first.{isolation}", f"second.{isolation}"]
    for topic in topics:
        door.create(topic, 3)
    producer = door.producer(transactional_id=f"only {isolation}")
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for topic in topics:
            for record in range(20):
                producer.produce(topic, b"%d" % number, b"%d" % record)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topics[0], b"undecided")
    producer.flush(30)
    for topic in topics:
        assert sorted(values_of(door, topic, 3, 40, isolation_level=isolation)) == [b"0"] * 20 + [b"2"] * 20
    producer.commit_transaction(30)
    assert len(values_of(door, topics[0], 3, 41, isolation_level=isolation)) == 41


def test_an_unused_transactional_id_is_forgotten(manager: nadi.StreamManager, door: Door) -> None:
    door.create("forgotten", 1)
    names = ("unused", "used")
    producers = [door.producer(transactional_id=name) for name in names]
    for producer in producers:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("forgotten", b"value")
        producer.commit_transaction(30)
    thread, core = inside(manager)
    table = core.table(SCOPE, KAFKA_TABLE)
    days_ms = round(KAFKA_TRANSACTIONAL_ID_S * 1000)

    async def age(name: str, by_ms: int) -> None:
        entry = await table.get(b"transaction/" + name.encode())
        assert entry is not None
        stored = msgspec.msgpack.decode(entry.value, type=StoredTransaction)
        aged = msgspec.structs.replace(stored, used_ms=stored.used_ms - by_ms)
        await table.put(b"transaction/" + name.encode(), msgspec.msgpack.encode(aged), entry.version)

    thread.run(age("unused", days_ms + 1000))
    thread.run(age("used", days_ms - 60_000))
    time.sleep(2 * KAFKA_TRANSACTIONS_CHECKED_S)
    assert thread.run(table.get(b"transaction/unused")) is None
    for producer in producers:
        producer.begin_transaction()
        producer.produce("forgotten", b"later")
    producers[1].commit_transaction(30)
    with pytest.raises(KafkaException, match="INVALID_PRODUCER_ID_MAPPING"):
        producers[0].commit_transaction(30)
    again = door.producer(transactional_id="unused")
    again.init_transactions(30)
    again.begin_transaction()
    again.produce("forgotten", b"again")
    again.commit_transaction(30)
    assert sorted(values_of(door, "forgotten", 1, 4)) == [b"again", b"later", b"value", b"value"]


def test_a_new_instance_fences_the_old_one(door: Door) -> None:
    door.create("fenced", 1)
    old = door.producer(transactional_id="fenced")
    old.init_transactions(30)
    old.begin_transaction()
    old.produce("fenced", b"old")
    old.flush(30)
    new = door.producer(transactional_id="fenced")
    new.init_transactions(30)
    with pytest.raises(KafkaException, match=r"_FENCED|INVALID_PRODUCER_EPOCH|PRODUCER_FENCED"):
        old.commit_transaction(30)
    new.begin_transaction()
    new.produce("fenced", b"new")
    new.commit_transaction(30)
    assert values_of(door, "fenced", 1, 1) == [b"new"]


def test_a_repeated_request_for_an_epoch_gets_the_same_one(door: Door) -> None:
    kinds = requests(22, 4)

    def asked(producer_id: int = -1, epoch: int = -1) -> tuple[ErrorCode, int, int]:
        request = kinds.InitProducerIdRequest(
            transactional_id="repeated",
            transaction_timeout=timedelta(seconds=60),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = connection.ask(request)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    with Connection(door.address) as connection:
        _, producer_id, epoch = asked()
        assert epoch == 0
        assert asked(producer_id, 0) == asked(producer_id, 0) == (ErrorCode.none, producer_id, 1)
        assert asked(producer_id, 1) == (ErrorCode.none, producer_id, 2)
        assert asked(producer_id, 0)[0] == ErrorCode.producer_fenced
        assert asked() == (ErrorCode.none, producer_id, 3)  # a new instance
        assert asked(producer_id, 2)[0] == ErrorCode.producer_fenced


def _copied(consumer: Consumer, door: Door, name: str, most: int) -> int:
    """Copy records from `numbers` to `copies` in transactions with the consumer's offsets; return how many."""
    producer = door.producer(transactional_id=name)
    producer.init_transactions(30)
    copied = 0
    while copied < most:
        messages = consumer.consume(50, 20.0)
        if not messages:
            break
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None
            producer.produce("copies", message.value(), message.key())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        producer.commit_transaction(30)
        copied += len(messages)
    return copied


def test_consume_and_produce_is_exactly_once_over_a_killed_door(server: EmbeddedServer, door: Door) -> None:
    for topic in ("numbers", "copies"):
        door.create(topic, 4)
    written(door.producer(), "numbers", [b"%d" % number for number in range(1000)], lambda i: b"k%d" % i)
    with running_door(server.controller_uri) as other:
        consumer = other.consumer("copier", session_timeout_ms=6000)
        consumer.subscribe(["numbers"])
        first = _copied(consumer, other, "copier", 300)
        assert first >= 300
        abandoned = other.producer(transactional_id="copier")
        abandoned.init_transactions(30)
        abandoned.begin_transaction()
        for message in consumer.consume(50, 5.0):
            abandoned.produce("copies", message.value(), message.key())
        abandoned.flush(30)
        other.kill()
        consumer.close()
    again = door.consumer("copier", session_timeout_ms=6000)
    again.subscribe(["numbers"])
    assert first + _copied(again, door, "copier", 1000 - first) == 1000
    again.close()
    assert sorted(map(int, values_of(door, "copies", 4, 1000))) == list(range(1000))


def test_transactions_and_producers_are_listed_and_described(door: Door) -> None:
    door.create("told.of", 2)
    producer = door.producer(transactional_id="listed", transaction_timeout_ms=50_000)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("told.of", b"a", partition=1)
    producer.flush(30)
    kinds, describing, producers = requests(66, 1), requests(65, 0), requests(61, 0)

    def listed(
        states: tuple[str, ...] = (), duration: int = -1, ids: tuple[int, ...] = ()
    ) -> dict[str, tuple[str, int]]:
        request = kinds.ListTransactionsRequest(state_filters=states, producer_id_filters=ids, duration_filter=duration)
        found = connection.ask(request).transaction_states
        return {each.transactional_id: (each.transaction_state, each.producer_id) for each in found}

    def described(name: str) -> Any:
        (state,) = connection.ask(describing.DescribeTransactionsRequest(transactional_ids=(name,))).transaction_states
        return state

    with Connection(door.address) as connection:
        state, producer_id = listed()["listed"]
        assert state == "Ongoing"
        assert listed(("Ongoing",), ids=(producer_id,)) == {"listed": ("Ongoing", producer_id)}
        assert "listed" not in listed(("Empty",))
        assert "listed" not in listed(duration=60_000)
        found = described("listed")
        assert (found.transaction_state, found.producer_id) == ("Ongoing", producer_id)
        assert found.transaction_timeout == timedelta(seconds=50)
        assert abs(found.transaction_start_time.timestamp() - time.time()) < 60
        assert [(each.topic, each.partitions) for each in found.topics] == [("told.of", (1,))]
        asked = (producers.TopicRequest(name="told.of", partition_indexes=(0, 1, 2)),)
        parts = connection.ask(producers.DescribeProducersRequest(topics=asked)).topics[0].partitions
        assert [each.error_code for each in parts] == [ErrorCode.none, ErrorCode.none, UNKNOWN_PARTITION]
        assert not parts[0].active_producers
        (active,) = parts[1].active_producers
        assert (active.producer_id, active.producer_epoch, active.last_sequence) == (producer_id, 0, 0)
        producer.commit_transaction(30)
        assert listed(("Empty",))["listed"] == ("Empty", producer_id)
        assert described("no such id").error_code == ErrorCode.transactional_id_not_found


def test_a_group_that_commits_only_in_transactions_is_listed_and_deleted(door: Door) -> None:
    door.create("committed", 1)
    written(door.producer(), "committed", [b"a", b"b"])
    producer = door.producer(transactional_id="committed")
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = door.consumer("only in transactions")
    position = TopicPartition("committed", 0, 1)
    producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    admin = door.admin()
    assert "only in transactions" in {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert consumer.committed([position], timeout=10)[0].offset == 1
    admin.delete_consumer_groups(["only in transactions"])["only in transactions"].result()
    assert consumer.committed([position], timeout=10)[0].offset < 0
    consumer.close()
