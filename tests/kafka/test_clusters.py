"""Kafka ports of workers and of servers of a cluster: brokers of one Kafka cluster, which end with their servers."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

import nadi
from nadi.access.permissions import Permissions
from nadi.access.users import User, hash_password, write_users
from nadi.config import ServerConfig, ServerSecurity
from nadi.standalone.workers import Workers
from tests.cluster.test_workers import watched
from tests.kafka.support import Door, consumed, written
from tests.kafka.test_hostile import USERS, login
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.crash


def brokers(door: Door) -> set[int]:
    return {broker.port for broker in door.admin().list_topics(timeout=10).brokers.values()}


def test_workers_are_brokers_of_one_cluster_and_come_back_after_a_kill(tmp_path: Path) -> None:
    first = free_port(count=2)
    config = ServerConfig(
        data=tmp_path, workers=2, port=0, rest_port=None, store_port=0, containers=4, kafka_port=first
    )
    died = threading.Semaphore(0)
    with Workers(config) as workers, watched(workers, died):
        assert workers.kafka_addresses == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
        door = Door(",".join(workers.kafka_addresses))
        until(lambda: brokers(door) == {first, first + 1})
        door.create("shared", 4)
        producer = door.producer(message_timeout_ms=60_000)
        written(producer, "shared", [b"%d" % i for i in range(200)], lambda i: b"k%d" % i)
        os.kill(workers.pids[0], signal.SIGKILL)
        written(producer, "shared", [b"%d" % i for i in range(200, 400)], lambda i: b"k%d" % i)
        assert died.acquire(timeout=30)
        until(lambda: brokers(Door(f"127.0.0.1:{first + 1}")) == {first, first + 1}, 60)
        until(lambda: brokers(Door(f"127.0.0.1:{first}")) == {first, first + 1}, 60)
        consumer = door.consumer("shares")
        consumer.subscribe(["shared"])
        assert sorted(int(message.value()) for message in consumed(consumer, 400)) == list(range(400))
        consumer.close()


@pytest.mark.parametrize("authenticates", [False, True])
def test_servers_of_a_cluster_are_brokers_of_one_cluster(tmp_path: Path, *, authenticates: bool) -> None:
    store, options, security = (tmp_path / "store").as_uri(), {}, ServerSecurity()
    if authenticates:
        users = {"owner": User("owner", hash_password("owner"), Permissions.parse(USERS["owner"]))}
        write_users(tmp_path / "users", users)
        options, security = login("owner"), ServerSecurity(users_file=tmp_path / "users")
    with (
        nadi.embedded(store=store, kafka_port=0, security=security) as one,
        nadi.embedded(store=store, kafka_port=0, security=security) as other,
    ):
        door = Door(one.kafka_address)
        producer = Door(other.kafka_address).producer(**options)
        until(lambda: len(producer.list_topics(timeout=10).brokers) == 2)
        written(producer, "shared", [b"%d" % i for i in range(100)], lambda i: b"k%d" % i)
        host, _, port = other.kafka_address.rpartition(":")
        other.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        consumer = door.consumer("shares", **options)
        consumer.subscribe(["shared"])
        assert sorted(int(message.value()) for message in consumed(consumer, 100)) == list(range(100))
        consumer.close()
