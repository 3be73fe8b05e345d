"""The lag of Kafka groups: from Python, in the shell, and in a server's metrics."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from confluent_kafka import TopicPartition

import nadi
import nadi.kafka
from nadi.standalone.embedded import EmbeddedServer
from tests.cli.test_streams import Shell
from tests.kafka.support import SCOPE, Door, consumed, written
from tests.support.waiting import until


def lags(manager: nadi.StreamManager, group: str) -> dict[str, int | None]:
    return {lag.stream: lag.lag_events for lag in nadi.kafka.group_lags(manager) if lag.group == group}


def test_the_lag_of_a_group_counts_what_it_has_yet_to_commit(
    server: EmbeddedServer, manager: nadi.StreamManager, door: Door
) -> None:
    door.create("late_topic", 3)
    written(door.producer(), "late_topic", [b"%d" % i for i in range(100)], lambda i: b"k%d" % i)
    consumer = door.consumer("late")
    consumer.subscribe(["late_topic"])
    consumed(consumer, 100)
    assert lags(manager, "late") == {}
    consumer.commit(offsets=[TopicPartition("late_topic", partition, 5) for partition in range(3)], asynchronous=False)
    assert lags(manager, "late") == {"kafka/late-.-topic": 85}
    segments = manager.current_segments(SCOPE, "late-.-topic")
    manager.scale_stream(SCOPE, "late-.-topic", [segments[0].segment_id], [(0.0, 0.4), (0.4, 1.0)])
    written(door.producer(), "late_topic", [b"more"] * 10, lambda i: b"k%d" % i)
    shell = Shell(server.controller_uri)
    rows = {row["group"]: row for row in shell.json("group", "list", SCOPE)}
    unknown = {"bytes": None, "seconds": None}
    assert rows["late"] == {"group": "late", "streams": ["kafka/late-.-topic"], "readers": 1, "events": 95, **unknown}
    (row,) = shell.json("group", "show", SCOPE, "late")
    assert (row["stream"], row["events"], row["source"]) == ("kafka/late-.-topic", 95, "kafka")
    consumed(consumer, 10)
    consumer.commit(asynchronous=False)
    assert lags(manager, "late") == {"kafka/late-.-topic": 0}
    consumer.close()
    admin = door.admin()
    admin.delete_topics(["late_topic"])["late_topic"].result()
    until(lambda: lags(manager, "late") == {})
    assert "not found" in shell.run("group", "show", SCOPE, "late", code=None).output


def test_a_servers_metrics_have_the_groups_with_the_most_lag(tmp_path: Path) -> None:
    limits = {"NADI_LIMITS": "kafka_lags_s=0.2,metrics_groups=2,metrics_cached_s=0.05"}
    with nadi.embedded(tmp_path / "data", rest_port=0, kafka_port=0, environment=limits) as server:
        door = Door(server.kafka_address)
        door.create("measured", 1)
        written(door.producer(), "measured", [b"%d" % i for i in range(100)])
        for group in range(4):
            consumer = door.consumer(f"group {group}")
            consumer.commit(offsets=[TopicPartition("measured", 0, 10 * group)], asynchronous=False)
            consumer.close()

        def samples() -> dict[tuple[str, ...], float]:
            text = httpx.get(f"{server.rest_uri}/metrics", timeout=60).text
            found = re.findall(r"^nadi_kafka_group_lag_records\{(.*)\} (\S+)$", text, re.MULTILINE)
            return {tuple(re.findall(r'"(.*?)"', labels)): float(value) for labels, value in found}

        named = {("group 0", "kafka", "measured"): 100, ("group 1", "kafka", "measured"): 90}
        until(lambda: samples() == {**named, ("(others)", "", "(others)"): 80 + 70})
