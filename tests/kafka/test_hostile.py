"""A bad request ends its own connection, or gets an error code of Kafka; other connections continue."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

import nadi
from nadi.access.permissions import Permissions
from nadi.access.users import User, hash_password, write_users
from nadi.config import ServerSecurity
from nadi.kafka.messages import VERSIONS
from nadi.limits import KAFKA_PAUSE_S
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


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("guarded")
    users = {name: User(name, hash_password(name), Permissions.parse(grants)) for name, grants in USERS.items()}
    write_users(folder / "users", users)
    security = ServerSecurity(users_file=folder / "users")
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
