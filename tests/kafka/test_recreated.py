"""A stream that is deleted and created again under its name is another topic."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import TopicPartition

import nadi
from nadi.client.blocking.face import inside
from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import entries_of
from nadi.client.tables.table import Table
from nadi.limits import KAFKA_TOPIC_CACHED_S
from nadi.naming import KAFKA_TABLE
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.support import SCOPE, Door, consumed, running_door


def records_about(manager: nadi.StreamManager, topic: str) -> list[str]:
    """Return the keys in the doors' table that begin with the topic's."""
    thread, core = inside(manager)
    stores = stores_of(core)

    async def read() -> list[str]:
        table = Table(stores, SCOPE, KAFKA_TABLE)
        entries = entries_of(stores, SCOPE, table, b"")
        keys = [entry.key.decode() async for entry in entries]
        ours = (f"offsets/{topic}/", f"plain/{topic}", f"commit/left\0{topic}\0")
        return [key for key in keys if key.startswith(ours)]

    return thread.run(read())


def written(manager: nadi.StreamManager, topic: str, values: list[bytes]) -> None:
    with manager.create_writer(SCOPE, topic) as writer:
        for value in values:
            writer.write_event(value, "key")


def values_of(door: Door, topic: str, count: int) -> list[bytes]:
    consumer = door.consumer("again", topic_metadata_refresh_interval_ms=500)
    consumer.assign([TopicPartition(topic, 0)])  # from where the group is
    values = [message.value() for message in consumed(consumer, count)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def recreated(manager: nadi.StreamManager, topic: str) -> None:
    manager.seal_stream(SCOPE, topic)
    manager.delete_stream(SCOPE, topic)
    manager.create_stream(SCOPE, topic, segments=1)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_consumers_get_all_records_of_a_stream_that_was_created_again(
    manager: nadi.StreamManager, server: EmbeddedServer
) -> None:
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, "again", segments=1)
    with running_door(server.controller_uri, "--partitions", "1") as door:
        written(manager, "again", [b"old %d" % number for number in range(20)])
        assert len(values_of(door, "again", 20)) == 20
        old = set(records_about(manager, "again"))
        recreated(manager, "again")
        time.sleep(KAFKA_TOPIC_CACHED_S)
        new = [b"new %d" % number for number in range(30)]
        written(manager, "again", new)
        assert values_of(door, "again", 30) == new
        rows = set(records_about(manager, "again"))
        assert rows & old == {"plain/again"}, "the first stream's rows are removed"
        producer = door.producer()
        producer.produce("again", b"from Kafka", partition=0)
        assert producer.flush(30) == 0
        assert values_of(door, "again", 1) == [b"from Kafka"]
    recreated(manager, "again")
    time.sleep(KAFKA_TOPIC_CACHED_S)  # the doors of other tests may know the second stream
    written(manager, "again", new)
    with running_door(server.controller_uri, "--partitions", "1") as later:
        assert values_of(later, "again", 30) == new


def test_a_door_removes_what_is_left_of_deleted_streams(manager: nadi.StreamManager, server: EmbeddedServer) -> None:
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, "left", segments=1)
    with running_door(server.controller_uri) as door:
        door.create("left.topic", 1)
        written(manager, "left", [b"one"])
        written(manager, "left.topic", [b"one"])
        for topic in ("left", "left.topic"):
            partitions = [
                TopicPartition(topic, number) for number in door.admin().list_topics(topic).topics[topic].partitions
            ]
            consumer = door.consumer("left")
            consumer.assign(partitions)
            consumed(consumer, 1)
            consumer.commit(asynchronous=False)
            consumer.close()
    for topic in ("left", "left.topic"):
        assert {key.partition("/")[0] for key in records_about(manager, topic)} >= {"offsets", "commit"}
    for topic in ("left", "left.topic"):
        manager.seal_stream(SCOPE, topic)
        manager.delete_stream(SCOPE, topic)
    with running_door(server.controller_uri):
        until(lambda: not records_about(manager, "left") and not records_about(manager, "left.topic"))
