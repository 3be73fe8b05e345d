"""A server process with chunks in a real HDFS: killed repeatedly while it moves data, and bypassed by reading tasks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import nadi
from nadi.client.scan.connection import ConnectionSettings
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.spark.connections import TaskClient
from nadi.standalone.embedded import EmbeddedServer, embedded
from nadi.testing import fill_stream, read_stream
from tests.segmentstore.tier2.test_processes import EVENTS, LIMITS
from tests.spark.test_direct import LIMITS as DIRECT_LIMITS
from tests.spark.test_direct import World
from tests.spark.test_direct import asked as asked
from tests.support.ports import free_port
from tests.support.waiting import until_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KILLS = 6


async def test_server_killed_during_puts_loses_nothing(tmp_path: Path, url: str) -> None:
    port, chance = free_port(), random.Random(33)

    def serve() -> EmbeddedServer:
        return embedded(tmp_path, port=port, tier2=url, environment={"NADI_LIMITS": LIMITS})

    server = await asyncio.to_thread(serve)
    try:
        with nadi.StreamManager(server.controller_uri) as manager:
            await asyncio.to_thread(manager.create_scope, "s")
            for kill in range(KILLS):
                name = f"t{kill}"
                writing = asyncio.create_task(asyncio.to_thread(fill_stream, manager, "s", name, EVENTS))
                await asyncio.sleep(chance.uniform(0.3, 1.5))
                server.kill()
                server = await asyncio.to_thread(serve)
                await writing
                assert await asyncio.to_thread(read_stream, manager, "s", name) == EVENTS
            chunks = ChunkStore.from_url(url)
            await until_async(lambda: sum(chunks.sizes("container-0").values()) > KILLS * 300_000)
            server.kill()
            server = await asyncio.to_thread(serve)
            for kill in range(KILLS):
                assert await asyncio.to_thread(read_stream, manager, "s", f"t{kill}") == EVENTS
    finally:
        server.kill()


def test_history_is_read_without_the_server(tmp_path: Path, url: str, asked: list[tuple[int, int]]) -> None:
    with nadi.embedded(tmp_path / "data", tier2=url, environment={"NADI_LIMITS": DIRECT_LIMITS}) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "events")
        world = World(server, TaskClient(ConnectionSettings(server.controller_uri)), [])
        world.write(3_000)
        in_tier2 = world.settled()
        assert world.read() == world.events
        assert sum(end - start for start, end in asked) == world.end - in_tier2
