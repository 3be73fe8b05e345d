"""Quotas through the Kafka door: throttle times, delayed connections, and creations refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import nadi
from nadi.client import QuotaLimits
from nadi.defaults import DEFAULT_KAFKA_SCOPE
from nadi.standalone import EmbeddedServer, ServerSecurity
from tests.access.support import PASSWORD, user, users_file

SCOPE = DEFAULT_KAFKA_SCOPE
GRANTS = {"root": "prn::*,READ_UPDATE", "ann": f"prn::/scope:{SCOPE},READ_UPDATE;prn::/scope:{SCOPE}/*,READ_UPDATE"}


@pytest.fixture(scope="module", params=["users", "plain"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("kafka-quotas")
    security = ServerSecurity(users_file=users_file(folder / "settings", GRANTS))
    more = security if request.param == "users" else ServerSecurity()
    with nadi.embedded(
        folder / "data", kafka_port=0, security=more, environment={"NADI_LIMITS": "quota_share_s=0.2"}
    ) as server:
        server.has_users = request.param == "users"  # type: ignore[attr-defined]
        yield server


def settings(server: EmbeddedServer) -> dict[str, object]:
    login: dict[str, object] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.password": PASSWORD,
    }
    logs_in = server.has_users  # type: ignore[attr-defined]
    return {"bootstrap.servers": server.kafka_address, **(login | {"sasl.username": "ann"} if logs_in else {})}


def root(server: EmbeddedServer) -> nadi.StreamManager:
    logs_in = server.has_users  # type: ignore[attr-defined]
    return nadi.StreamManager(server.controller_uri, credentials=user("root") if logs_in else None)


def limited(server: EmbeddedServer, owner: str, limits: QuotaLimits | None) -> None:
    with root(server) as manager:
        if limits is None:
            manager.delete_quota(owner)
        else:
            assert manager.create_quota(owner, limits)
    time.sleep(0.5)


def produced_s(server: EmbeddedServer, count: int) -> tuple[float, list[float]]:
    """Produce records of 10 KiB; return the seconds it took, and the throttle times in ms."""
    throttled: list[float] = []
    producer = Producer(
        settings(server)
        | {"throttle_cb": lambda event: throttled.append(event.throttle_time), "batch.size": 100_000, "linger.ms": 1}
    )
    began_s = time.monotonic()
    for _ in range(count):
        producer.produce("payments", b"x" * 10_240)
        producer.poll(0)
    assert producer.flush(60) == 0
    producer.poll(0)
    return time.monotonic() - began_s, throttled


def test_producers_and_consumers_are_throttled(server: EmbeddedServer) -> None:
    admin = AdminClient(settings(server))
    admin.create_topics([NewTopic("payments", 1)])["payments"].result(30)
    took_s, throttled = produced_s(server, 200)
    assert took_s < 3
    assert not throttled
    owner = "user/ann" if server.has_users else f"scope/{SCOPE}"  # type: ignore[attr-defined]
    limited(server, owner, QuotaLimits(bytes_in=500_000, bytes_out=500_000))
    took_s, throttled = produced_s(server, 200)
    assert 1.5 < took_s < 10
    assert throttled
    assert max(throttled) <= 10
    consumer = Consumer(settings(server) | {"group.id": f"g{time.time()}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["payments"])
    began_s, count = time.monotonic(), 0
    while count < 400:
        count += sum(1 for message in consumer.consume(100, 1.0) if message.error() is None)
        assert time.monotonic() - began_s < 60
    consumer.close()
    assert time.monotonic() - began_s > 3
    limited(server, owner, None)
    took_s, throttled = produced_s(server, 200)
    assert took_s < 3
    assert not throttled


def test_topics_over_the_quota_are_refused(server: EmbeddedServer) -> None:
    limited(server, f"scope/{SCOPE}", QuotaLimits(streams=0))
    admin = AdminClient(settings(server))
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        admin.create_topics([NewTopic("more", 1)])["more"].result(30)
    limited(server, f"scope/{SCOPE}", None)
    admin.create_topics([NewTopic("more", 1)])["more"].result(30)
