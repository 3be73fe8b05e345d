"""Logins by SCRAM, with the users of nadi's users file."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kio.schema.errors import ErrorCode
from scramp import ScramClient

import nadi
from nadi.access.permissions import Permissions
from nadi.access.users import User, hash_password, write_users
from nadi.config import ServerSecurity
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.raw import Connection, requests
from tests.kafka.support import Door, python_client, running_door, written

GRANTS = "*,READ_UPDATE"  # also for another door
BOTH = pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, KafkaProducer
address, mechanism, user, password = sys.argv[1:]
login = dict(bootstrap_servers=address, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
             sasl_plain_username=user, sasl_plain_password=password)
with KafkaProducer(**login) as producer:
    producer.send("python", b"value").get(30)
consumer = KafkaConsumer("python", auto_offset_reset="earliest", consumer_timeout_ms=30000, **login)
print(next(consumer).value.decode())
"""
AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
address, mechanism, user, password = sys.argv[1:]
login = dict(bootstrap_servers=address, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
             sasl_plain_username=user, sasl_plain_password=password)

async def main():
    async with AIOKafkaProducer(**login) as producer:
        await producer.send_and_wait("aio", b"value")
    async with AIOKafkaConsumer("aio", auto_offset_reset="earliest", **login) as consumer:
        print((await asyncio.wait_for(consumer.getone(), 30)).value.decode())

asyncio.run(main())
"""


def write_passwords(path: Path, passwords: dict[str, str]) -> None:
    grants = Permissions.parse(GRANTS)
    write_users(path, {name: User(name, hash_password(text), grants) for name, text in passwords.items()})


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    write_passwords(path, {"ann": "pässword, = and %", "bob": "secret"})
    return path


@pytest.fixture(scope="module")
def guarded(users: Path) -> Iterator[EmbeddedServer]:
    security = ServerSecurity(users_file=users)
    with nadi.embedded(users.parent / "data", security=security, kafka_port=0) as server:
        yield server


@pytest.fixture
def guarded_door(guarded: EmbeddedServer) -> Door:
    return Door(guarded.kafka_address, None)


def login(mechanism: str, user: str, password: str) -> dict[str, Any]:
    secured = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    return {**secured, "sasl_username": user, "sasl_password": password}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_confluent_kafka_logs_in(guarded_door: Door, mechanism: str) -> None:
    written(guarded_door.producer(**login(mechanism, "ann", "pässword, = and %")), "confluent", [b"value"])


@BOTH
@pytest.mark.parametrize("code", [KAFKA_PYTHON, AIOKAFKA], ids=["kafka-python", "aiokafka"])
def test_python_clients_log_in(guarded_door: Door, mechanism: str, code: str) -> None:
    assert python_client(code, guarded_door.address, mechanism, "ann", "pässword, = and %") == "value"


class Login:
    """A login by SCRAM, one message at a time."""

    def __init__(self, connection: Connection, mechanism: str, user: str, password: str) -> None:
        self.connection, self.client = connection, ScramClient([mechanism], user, password)
        answer = connection.ask(requests(17, 1).SaslHandshakeRequest(mechanism=mechanism))
        assert answer.error_code == ErrorCode.none
        assert {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} == set(answer.mechanisms)

    def send(self, message: bytes) -> Any:
        return self.connection.ask(requests(36, 2).SaslAuthenticateRequest(auth_bytes=message))

    def begin(self) -> str:
        """Return the server's first message."""
        answer = self.send(self.client.get_client_first().encode())
        assert answer.error_code == ErrorCode.none
        self.client.set_server_first(bytes(answer.auth_bytes).decode())
        return bytes(answer.auth_bytes).decode()

    def end(self) -> Any:
        return self.send(self.client.get_client_final().encode())


def first_message(address: str, mechanism: str, user: str) -> dict[str, str]:
    with Connection(address) as connection:
        return dict(part.split("=", 1) for part in Login(connection, mechanism, user, "x").begin().split(","))


@BOTH
def test_unknown_users_look_like_users(guarded_door: Door, guarded: EmbeddedServer, mechanism: str) -> None:
    messages = [
        first_message(guarded_door.address, mechanism, user) for user in ("ann", "ann", "stranger", "stranger", "x")
    ]
    salts = [message["s"] for message in messages]
    assert salts[0] == salts[1]
    assert salts[2] == salts[3], "an unknown user's salt stays the same, as a user's does"
    assert len(set(salts)) == 3
    assert {(message["i"], len(base64.b64decode(message["s"]))) for message in messages} == {(messages[0]["i"], 16)}
    answers = []
    for user in ("ann", "stranger"):
        with Connection(guarded_door.address) as connection:
            exchange = Login(connection, mechanism, user, "wrong")
            exchange.begin()
            answers.append(exchange.end())
            connection.send(b"\0\x03\0\x0c\0\0\0\x01\xff\xff\0\0\0\0")  # Metadata
            assert connection.receive() == b""
    assert answers[0].error_code == ErrorCode.sasl_authentication_failed
    assert answers[0] == answers[1]


def test_another_door_gives_unknown_users_the_same_salt(
    users: Path, guarded: EmbeddedServer, guarded_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = first_message(guarded_door.address, "SCRAM-SHA-256", "stranger")["s"]
    for name, value in {"method": "Basic", "username": "bob", "password": "secret"}.items():
        monkeypatch.setenv(f"pravega_client_auth_{name}", value)
    with running_door(guarded.controller_uri, "--users-file", str(users)) as other:
        assert first_message(other.address, "SCRAM-SHA-256", "stranger")["s"] == first


@pytest.mark.parametrize("message", [b"", b"\xff", b"n,,", b"n,,n=ann", b"y,,n=a=b,r=c", b"p=tls-unique,,n=ann,r=c"])
def test_malformed_messages_fail_the_login(guarded_door: Door, message: bytes) -> None:
    with Connection(guarded_door.address) as connection:
        exchange = Login(connection, "SCRAM-SHA-256", "ann", "x")
        assert exchange.send(message).error_code == ErrorCode.sasl_authentication_failed
        exchange.begin()
        assert exchange.send(b"c=biws,r=other,p=AAAA").error_code == ErrorCode.sasl_authentication_failed


@BOTH
def test_a_changed_password_counts_at_once(guarded_door: Door, users: Path, mechanism: str) -> None:
    changed = {"ann": "pässword, = and %", "bob": f"new {mechanism}"}
    with Connection(guarded_door.address) as connection:
        exchange = Login(connection, mechanism, "bob", "secret")
        exchange.begin()
        write_passwords(users, changed)
        assert exchange.end().error_code == ErrorCode.sasl_authentication_failed
    written(guarded_door.producer(**login(mechanism, "bob", changed["bob"])), "changed", [b"value"])
    old = guarded_door.consumer("readers", **login(mechanism, "bob", "secret"))
    with pytest.raises(KafkaException):
        old.list_topics(timeout=3)
    old.close()
    write_passwords(users, {**changed, "bob": "secret"})
