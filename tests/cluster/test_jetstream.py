"""A server with its log in NATS: another server with an empty disk reads all acknowledged events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.cluster.admin.cluster_view import open_shared_store, read_report
from nadi.errors import InvalidArgumentError, StoreError
from nadi.observe.cluster import ClusterReport
from tests.support.nats import nats_servers, url_of

EVENTS = 500


async def report_of(store: str) -> ClusterReport:
    async with open_shared_store(store, {}) as shared:
        return await read_report(shared)


def test_second_server_reads_all_acknowledged_events(tmp_path: Path) -> None:
    with nats_servers(tmp_path / "nats") as servers:
        cluster: dict[str, Any] = {"store": (tmp_path / "store").as_uri(), "log": url_of(servers)}
        first = nadi.embedded(tmp_path / "one", containers=2, **cluster)
        with nadi.StreamManager(first.controller_uri) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters", 2)
            with manager.create_writer("home", "meters") as writer:
                for number in range(EVENTS):
                    writer.write_event(b"%d" % number, routing_key=str(number % 7))
            first.kill()
        with (
            nadi.embedded(tmp_path / "two", **cluster) as second,
            nadi.StreamManager(second.controller_uri) as manager,
        ):
            end = manager.stream_info("home", "meters").tail
            numbers = [int(event.data) for event in manager.read_events("home", "meters", end=end)]
            assert sorted(numbers) == list(range(EVENTS))
            for key in range(7):
                assert [number for number in numbers if number % 7 == key] == list(range(key, EVENTS, 7))
            assert [container.log_bytes for container in asyncio.run(report_of(cluster["store"])).containers] == [
                None,
                None,
            ]
        assert not (tmp_path / "store" / "log").exists()
        with pytest.raises(InvalidArgumentError, match="nats://…/LOG"):
            nadi.embedded(tmp_path / "three", store=cluster["store"])
        with pytest.raises(InvalidArgumentError, match="nats:OTHER"):
            nadi.embedded(tmp_path / "three", store=cluster["store"], log=url_of(servers, "OTHER"))
    with nats_servers(tmp_path / "others") as servers, pytest.raises(StoreError, match="LOG"):
        nadi.embedded(tmp_path / "three", store=cluster["store"], log=url_of(servers))


def test_a_log_needs_a_store() -> None:
    with pytest.raises(InvalidArgumentError):
        nadi.embedded(log="nats://127.0.0.1/LOG")
