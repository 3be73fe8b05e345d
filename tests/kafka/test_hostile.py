"""A bad request ends its own connection, or gets an error code of Kafka; other connections continue."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import crc32c
import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

import nadi
from nadi.access.permissions import Permissions
from nadi.access.users import User, hash_password, write_users
from nadi.client.serializers.kafka import HEADER, HEADER_BYTES, Record, batch_of
from nadi.config import ServerSecurity
from nadi.kafka.messages import VERSIONS
from nadi.limits import KAFKA_GROUP_BYTES, KAFKA_PAUSE_S, KAFKA_REQUEST_ITEMS
from tests.kafka.raw import Connection, requests
from tests.kafka.support import SCOPE, Door, consumed, written

USERS = {
    "owner": f"prn::/scope:{SCOPE}/*,READ_UPDATE;prn::/scope:{SCOPE},READ_UPDATE",
    "reader": f"prn::/scope:{SCOPE}/stream:open,READ;prn::/scope:{SCOPE}/reader-group:*,READ",
}


def is_alive(door: Door) -> bool:
    with Connection(door.address) as connection:
        return bool(
            connection.ask(
                requests(18, 3).ApiVersionsRequest(client_software_name="a", client_software_version="1")
            ).api_keys
        )


@given(st.binary(min_size=8, max_size=200))
def test_random_requests_end_only_their_connection(door: Door, frame: bytes) -> None:
    with Connection(door.address) as connection:
        connection.send(frame)
        connection.socket.shutdown(socket.SHUT_WR)
        connection.receive()
    assert is_alive(door)


@given(st.sampled_from(sorted(VERSIONS)), st.binary(max_size=60))
def test_random_bodies_of_known_requests_end_only_their_connection(door: Door, key: int, body: bytes) -> None:
    with Connection(door.address) as connection:
        version = VERSIONS[key][1]
        connection.send(key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff\0" + body)
        connection.socket.shutdown(socket.SHUT_WR)
        connection.receive()
    assert is_alive(door)


@pytest.mark.parametrize("size", [-1, 0, 7, 33 << 20, (1 << 31) - 1])
def test_impossible_lengths_end_the_connection(door: Door, size: int) -> None:
    with Connection(door.address) as connection:
        connection.socket.sendall(size.to_bytes(4, "big", signed=True) + b"x" * 100)
        assert connection.receive() == b""
    assert is_alive(door)


def test_a_silent_peer_loses_the_space_of_a_large_request(door: Door) -> None:
    with Connection(door.address) as silent, Connection(door.address) as slow, Connection(door.address) as small:
        silent.socket.sendall((20 << 20).to_bytes(4, "big"))
        slow.socket.sendall((20 << 20).to_bytes(4, "big"))
        small.socket.sendall((1000).to_bytes(4, "big"))
        closed_after = 0
        silent.socket.settimeout(1)
        for second in range(1, 12):
            slow.socket.sendall(b"x" * 1000)
            try:
                if silent.socket.recv(1) == b"":
                    closed_after = second
                    break
            except TimeoutError:
                continue
        assert KAFKA_PAUSE_S - 1 <= closed_after <= KAFKA_PAUSE_S + 3
        for other in (slow, small):
            other.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                other.socket.recv(1)


def test_unknown_versions(door: Door) -> None:
    with Connection(door.address) as connection:
        connection.send(b"\0\x12\0\x63\0\0\0\x07\xff\xff\0")  # ApiVersions 99: answered, as clients ask so first
        answer = connection.receive()
        assert answer[:6] == b"\0\0\0\x07\0" + bytes([ErrorCode.unsupported_version])
        connection.send(b"\0\x01\0\x63\0\0\0\x08\xff\xff\0")
        assert connection.receive() == b""


def test_a_topic_that_is_named_often_is_described_once(door: Door) -> None:
    kinds = requests(3, 12)
    asked = kinds.MetadataRequestTopic(topic_id=None, name="often")
    options = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    with Connection(door.address) as connection:
        assert len(connection.ask(kinds.MetadataRequest(topics=(asked,) * 1000, **options)).topics) == 1
        connection.begin(kinds.MetadataRequest(topics=(asked,) * (KAFKA_REQUEST_ITEMS + 1), **options))
        assert connection.receive() == b""


def compressed_batch(count: int) -> bytes:
    """Return a batch of equal records, a few bytes for each thousand."""
    plain = batch_of([Record(0, 1000, b"k", b"v")])
    records: bytes = pa.compress(plain[HEADER_BYTES:] * count, codec="zstd", asbytes=True)
    fields = list(HEADER.unpack_from(plain))
    fields[1], fields[5], fields[6], fields[12] = HEADER_BYTES - 12 + len(records), 4, count - 1, count
    fields[8] = 5000  # the latest timestamp, which no record has
    whole = HEADER.pack(*fields) + records
    return whole[:17] + crc32c.crc32c(whole[21:]).to_bytes(4, "big") + whole[21:]


def test_others_do_not_wait_while_a_batch_of_many_records_is_searched(door: Door) -> None:
    kinds = requests(2, 7)
    part = kinds.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=4000)
    topics = (kinds.ListOffsetsTopic(name="many-records", partitions=(part,)),)
    with Connection(door.address) as connection:
        connection.metadata("many-records")
        assert connection.produce("many-records", 0, compressed_batch(1_000_001))[0] == ErrorCode.invalid_record
        assert connection.produce("many-records", 0, compressed_batch(1_000_000)) == (ErrorCode.none, 0)
        connection.begin(kinds.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics))
        time.sleep(0.1)
        assert is_alive(door)
        assert not select.select([connection.socket], [], [], 0)[0]
        assert connection.receive()


def test_a_group_takes_only_members_that_can_be_stored(door: Door) -> None:
    kinds = requests(11, 5)
    named = {"member_id": "", "protocol_type": "consumer", "group_id": "large"}
    options = {"session_timeout": timedelta(seconds=10), "rebalance_timeout": timedelta(seconds=1)}

    def code(size: int) -> ErrorCode:
        protocols = (kinds.JoinGroupRequestProtocol(name="range", metadata=b"x" * size),)
        request = kinds.JoinGroupRequest(group_instance_id=str(size), protocols=protocols, **named, **options)
        return ErrorCode(connection.ask(request).error_code)

    with Connection(door.address) as connection:
        assert code(KAFKA_GROUP_BYTES) == ErrorCode.group_max_size_reached
        assert code(KAFKA_GROUP_BYTES - 1000) == ErrorCode.none
        assert code(2000) == ErrorCode.group_max_size_reached


def write_grants(path: Path, grants: dict[str, str]) -> None:
    write_users(path, {name: User(name, hash_password(name), Permissions.parse(each)) for name, each in grants.items()})


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    write_grants(path, {**USERS, "leaver": USERS["reader"]})
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, users: Path) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("guarded")
    security = ServerSecurity(users_file=users)
    with nadi.embedded(folder / "data", security=security, kafka_port=0) as server:
        yield Door(server.kafka_address)


def login(user: str, password: str = "") -> dict[str, str]:
    plain = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    return {**plain, "sasl_username": user, "sasl_password": password or user}


def test_users_have_their_permissions(guarded: Door, tmp_path: Path) -> None:
    written(guarded.producer(**login("owner")), "open", [b"a", b"b"])
    written(guarded.producer(**login("owner")), "closed", [b"a"])
    consumer = guarded.consumer("readers", **login("reader"))
    consumer.assign([TopicPartition("open", partition, 0) for partition in range(12)])
    assert sorted(message.value() for message in consumed(consumer, 2)) == [b"a", b"b"]
    assert set(consumer.list_topics(timeout=10).topics) == {"open"}
    closed = consumer.list_topics("closed", timeout=10).topics["closed"]
    assert closed.error.name() == "TOPIC_AUTHORIZATION_FAILED"
    consumer.close()
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        written(guarded.producer(**login("reader")), "open", [b"c"])


def test_a_transactional_id_belongs_to_its_user(guarded: Door) -> None:
    owner = guarded.producer(transactional_id="mine", **login("owner"))
    owner.init_transactions(30)
    other = guarded.producer(transactional_id="mine", **login("reader"))
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        other.init_transactions(30)
    owner.begin_transaction()
    owner.produce("open", b"in a transaction")
    owner.commit_transaction(30)


def test_wrong_passwords_and_no_login(guarded: Door) -> None:
    consumer = guarded.consumer("readers", **login("reader", "wrong"))
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=3)
    consumer.close()
    with Connection(guarded.address) as connection:
        connection.send(b"\0\x03\0\x0c\0\0\0\x01\xff\xff\0\0\0\0")  # Metadata 12
        assert connection.receive() == b""


def test_authorized_operations_are_those_of_the_user(guarded: Door) -> None:
    written(guarded.producer(**login("owner")), "open", [b"a"])
    named = {name.replace("_", "."): value for name, value in login("reader").items()}
    admin = AdminClient({"bootstrap.servers": guarded.address, **named})
    (topic,) = admin.describe_topics(TopicCollection(["open"]), include_authorized_operations=True).values()
    assert set(topic.result().authorized_operations) == {
        AclOperation.READ,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
    }
    assert not admin.describe_cluster(include_authorized_operations=True).result().authorized_operations


def test_committed_offsets_of_other_topics_are_hidden(guarded: Door) -> None:
    for topic in ("open", "closed"):
        written(guarded.producer(**login("owner")), topic, [b"a"])
    owner = guarded.consumer("readers", **login("owner"))
    owner.commit(offsets=[TopicPartition(topic, 0, 1) for topic in ("open", "closed")], asynchronous=False)
    owner.close()
    named = {name.replace("_", "."): value for name, value in login("reader").items()}
    admin = AdminClient({"bootstrap.servers": guarded.address, **named})
    (listed,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")]).values()
    assert {each.topic for each in listed.result().topic_partitions} == {"open"}
    asked = ConsumerGroupTopicPartitions("readers", [TopicPartition("closed", 0)])
    (listed,) = admin.list_consumer_group_offsets([asked]).values()
    (hidden,) = listed.result().topic_partitions
    assert hidden.error.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert hidden.offset < 0


def test_a_removed_user_loses_its_connection(guarded: Door, users: Path) -> None:
    with Connection(guarded.address) as connection:
        kinds = requests(17, 1)
        connection.ask(kinds.SaslHandshakeRequest(mechanism="PLAIN"))
        kinds = requests(36, 2)
        connection.ask(kinds.SaslAuthenticateRequest(auth_bytes=b"\0leaver\0leaver"))
        assert not connection.metadata("open").topics[0].error_code
        write_grants(users, {**USERS, "leaver": f"prn::/scope:{SCOPE}/stream:other,READ"})
        assert connection.metadata("open").topics[0].error_code == ErrorCode.topic_authorization_failed
        write_grants(users, USERS)
        kinds = requests(3, 12)
        connection.begin(
            kinds.MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
        )
        assert connection.receive() == b""
