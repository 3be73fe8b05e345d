"""Consumer groups: shares, commits, and what survives the door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from nadi.client import aio
from nadi.client.manager.streams import stores_of
from nadi.client.tables.table import ABSENT
from nadi.kafka.group_records import CommittedOffset, GroupRecords, StoredGroup
from nadi.kafka.groups import Groups, Join
from nadi.kafka.messages import ErrorCode, KafkaError
from nadi.limits import KAFKA_UNUSED_GROUP_S
from nadi.naming import KAFKA_TABLE
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.raw import Connection, requests
from tests.kafka.support import Door, consumed, running_door, written


def until(holds: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"


def test_members_share_partitions_and_take_over(door: Door) -> None:
    door.create("shared", 6)
    written(door.producer(), "shared", [b"%d" % i for i in range(600)], lambda i: b"k%d" % i)
    consumers = [door.consumer("shares", session_timeout_ms=6000) for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe(["shared"])
    got: list[bytes] = []

    def poll() -> list[int]:
        for consumer in consumers:
            for message in consumer.consume(100, 0.05):
                assert message.error() is None
                got.append(message.value())
        return [len(consumer.assignment()) for consumer in consumers]

    until(lambda: poll() == [2, 2, 2])
    until(lambda: poll() and len(set(got)) == 600)
    for consumer in consumers:
        consumer.commit(asynchronous=False)
    consumers.pop().close()
    until(lambda: poll() == [3, 3])
    written(door.producer(), "shared", [b"more %d" % i for i in range(60)], lambda i: b"k%d" % i)
    until(lambda: poll() and len(set(got)) == 660)
    for consumer in consumers:
        consumer.close()


def test_a_group_goes_on_at_another_door_without_a_rebalance(server: EmbeddedServer, door: Door) -> None:
    door.create("handed", 2)
    written(door.producer(), "handed", [b"%d" % i for i in range(100)], lambda i: b"k%d" % i)
    with running_door(server.controller_uri, "--scope", "kafka") as other:
        consumer = other.consumer("handed", session_timeout_ms=30_000)
        consumer.subscribe(["handed"])
        assert len(consumed(consumer, 100)) == 100
        consumer.commit(asynchronous=False)
        before = consumer.assignment()
        other.kill()
        written(door.producer(), "handed", [b"later"], lambda i: b"k")
        assert consumed(consumer, 1)[0].value() == b"later"
        assert consumer.assignment() == before
        consumer.commit(asynchronous=False)
        consumer.close()
    third = door.consumer("handed")
    third.subscribe(["handed"])
    until(lambda: third.poll(0.1) is None and third.assignment())
    committed = third.committed([TopicPartition("handed", 0), TopicPartition("handed", 1)], timeout=10)
    assert sum(each.offset for each in committed) == 101
    third.close()


async def test_groups_without_members_are_forgotten_a_week_after_their_last_commit(server: EmbeddedServer) -> None:
    manager = aio.StreamManager(server.controller_uri)
    await manager.create_scope("unused")
    table = manager.table("unused", KAFKA_TABLE)
    await table.create()
    records = GroupRecords(stores_of(manager), "unused", table)
    groups, now_ms = Groups(records), round(time.time() * 1000)
    join = Join("", None, "client", "host", 60_000, 60_000, "consumer", (("range", b""),), takes_id=False)
    for name, age_s in {"old": 60, "recent": -60, "in use": 60}.items():
        offset = CommittedOffset(1, -1, "", round(now_ms - (KAFKA_UNUSED_GROUP_S + age_s) * 1000), uuid4())
        await records.write(name, ABSENT, StoredGroup(), {("topic", 0): offset, ("topic", 1): offset})
    await records.write("without commits", ABSENT, StoredGroup(), {})
    await groups.join("in use", join)
    assert sorted(await records.unused()) == ["in use", "old", "without commits"]
    await groups.delete("old")
    with pytest.raises(KafkaError):
        await groups.delete("in use")
    assert await records.committed("old") == {}
    assert len(await records.committed("recent")) == 2
    await groups.close()
    await manager.close()


async def test_a_former_coordinator_drops_its_group(server: EmbeddedServer) -> None:
    manager = aio.StreamManager(server.controller_uri)
    await manager.create_scope("former")
    table = manager.table("former", KAFKA_TABLE)
    await table.create()
    records = GroupRecords(stores_of(manager), "former", table)
    former, present = Groups(records), Groups(records)
    join = Join("", None, "client", "host", 1000, 1000, "consumer", (("range", b""),), takes_id=False)
    joined = await former.join("group", join)
    member = joined["member_id"], None, joined["generation_id"]
    await former.sync("group", *member, (None, None), {member[0]: b"all"})
    former.keep_only(lambda name: False)
    for _ in range(4):  # longer than a session
        await asyncio.sleep(0.5)
        await present.heartbeat("group", *member)
    offsets = {("topic", 0): CommittedOffset(1, -1, "", 0, uuid4())}
    await present.commit("group", *member, offsets)
    commits = [asyncio.create_task(present.commit("group", *member, offsets)) for _ in range(2)]
    await asyncio.sleep(0)
    present.keep_only(lambda name: False)  # while a commit is stored, and another one waits
    first, second = await asyncio.gather(*commits, return_exceptions=True)
    assert first is None
    assert isinstance(second, KafkaError)
    assert second.code == ErrorCode.not_coordinator
    assert await former.sync("group", *member, (None, None), {}) == {
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignment": b"all",
    }
    for groups in (former, present):
        await groups.close()
    await manager.close()


def test_commits_keep_their_metadata_and_can_be_reset_and_deleted(door: Door) -> None:
    door.create("meta", 1)
    written(door.producer(), "meta", [b"a", b"b", b"c"])
    consumer = door.consumer("meta")
    at = TopicPartition("meta", 0, 2, "here")
    consumer.commit(offsets=[at], asynchronous=False)
    (committed,) = consumer.committed([TopicPartition("meta", 0)], timeout=10)
    assert (committed.offset, committed.metadata.rstrip("\0")) == (2, "here")
    consumer.close()
    admin: AdminClient = door.admin()
    listed = admin.list_consumer_groups().result().valid
    assert "meta" in {group.group_id for group in listed}
    (altered,) = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions("meta", [TopicPartition("meta", 0, 1)])]
    ).values()
    altered.result()
    (offsets,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("meta")]).values()
    assert [each.offset for each in offsets.result().topic_partitions] == [1]
    (deleted,) = admin.delete_consumer_groups(["meta"]).values()
    deleted.result()
    (offsets,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("meta")]).values()
    assert [each.offset for each in offsets.result().topic_partitions] == []


def test_offsets_by_time(door: Door) -> None:
    door.create("timed", 1)
    producer = door.producer()
    for second in range(10):
        producer.produce("timed", b"%d" % second, timestamp=1_700_000_000_000 + second * 1000)
    producer.flush(30)
    consumer = door.consumer("timed")

    def offset(time_ms: int) -> int:
        (found,) = consumer.offsets_for_times([TopicPartition("timed", 0, time_ms)], timeout=10)
        return int(found.offset)

    assert offset(1_700_000_003_000) == 3
    assert offset(1_700_000_003_001) == 4
    assert offset(1_600_000_000_000) == 0
    assert offset(1_800_000_000_000) == -1
    assert consumer.get_watermark_offsets(TopicPartition("timed", 0)) == (0, 10)
    consumer.close()


def test_offsets_of_a_subscribed_topic_are_not_deleted(door: Door) -> None:
    for topic in ("read", "unread"):
        door.create(topic, 1)
    kinds = requests(47, 0)
    parts = (kinds.OffsetDeleteRequestPartition(partition_index=0),)
    topics = tuple(kinds.OffsetDeleteRequestTopic(name=name, partitions=parts) for name in ("read", "unread"))
    request = kinds.OffsetDeleteRequest(group_id="subscribed", topics=topics)
    consumer = door.consumer("subscribed")
    consumer.subscribe(["read"])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment())
    both = [TopicPartition("read", 0, 1), TopicPartition("unread", 0, 1)]
    consumer.commit(offsets=both, asynchronous=False)
    with Connection(door.address) as connection:
        codes = [topic.partitions[0].error_code for topic in connection.ask(request).topics]
        assert codes == [ErrorCode.group_subscribed_to_topic, ErrorCode.none]
        assert [each.offset for each in consumer.committed(both, timeout=10)] == [1, OFFSET_INVALID]
        consumer.close()
        codes = [topic.partitions[0].error_code for topic in connection.ask(request).topics]
    assert codes == [ErrorCode.none, ErrorCode.none]


def test_a_member_lost_while_joining_leaves_after_its_session(door: Door) -> None:
    door.create("lost", 2)
    kinds = requests(11, 3)
    subscription = b"\0\0\0\0\0\1\0\4lost\xff\xff\xff\xff"
    join = kinds.JoinGroupRequest(
        group_id="lost",
        session_timeout=timedelta(seconds=6),
        rebalance_timeout=timedelta(seconds=300),
        member_id="",
        protocol_type="consumer",
        protocols=(kinds.JoinGroupRequestProtocol(name="range", metadata=subscription),),
    )
    consumer = door.consumer("lost", session_timeout_ms=6000, heartbeat_interval_ms=300)
    consumer.subscribe(["lost"])
    until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    with Connection(door.address) as connection:
        connection.begin(join)
        time.sleep(0.1)
    until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 1)
    until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    consumer.close()
