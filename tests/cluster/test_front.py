"""Any server of a cluster is the controller to its clients, whichever has the active one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from nadi.client.aio import StreamManager
from tests.client.test_moving_containers import check_events

from .servers import Cluster, cluster

pytestmark = pytest.mark.uvloop


async def uses_everything(manager: StreamManager, scope: str) -> None:
    await manager.create_scope(scope)
    await manager.create_stream(scope, "events", 3)
    writer = await manager.create_writer(scope, "events")
    for number in range(100):
        writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
    await writer.flush()
    await writer.close()


async def test_a_client_of_either_server_does_everything(tmp_path: Path) -> None:
    async with asyncio.timeout(60), cluster(tmp_path) as made:
        for server in made.servers:
            async with made.manager(server) as manager:
                await uses_everything(manager, server.name)
