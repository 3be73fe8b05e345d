"""A stream's numbers as KEDA gets them, from a whole server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from nadi.client.aio import StreamManager
from nadi.testing import RestartableServer

from .support import METERS, Keda, keda, until


@pytest.fixture
async def manager(nadi_server: RestartableServer) -> AsyncIterator[StreamManager]:
    async with StreamManager(nadi_server.controller_uri) as manager:
        await manager.create_scope("home")
        await manager.create_stream("home", "meters", 1)
        yield manager


@pytest.fixture
async def asking(nadi_server: RestartableServer) -> AsyncIterator[Keda]:
    async with keda(nadi_server.controller_uri) as client:
        yield client


async def write(manager: StreamManager, count: int, size_bytes: int = 100) -> None:
    writer = await manager.create_writer("home", "meters")
    await asyncio.gather(*(writer.write_event(b"x" * size_bytes, f"{n}") for n in range(count)))


async def test_the_segments_of_a_stream(manager: StreamManager, asking: Keda) -> None:
    spec = await asking.spec(**METERS)
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("nadi-segments-home-meters", 1, 1.0)
    assert await asking.value(**METERS) == 1.0
    await manager.scale_stream("home", "meters", [0], [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
    metric = await asking.metric(**METERS, target="2")
    assert (metric.metricValue, metric.metricValueFloat) == (3, 3.0)
    assert (await asking.spec(**METERS, target="0.5")).targetSizeFloat == 0.5
    assert (await asking.spec(**METERS, target="0.5")).targetSize == 1


async def test_an_idle_stream_becomes_active_within_a_second(manager: StreamManager, asking: Keda) -> None:
    assert not await asking.is_active(**METERS)
    watch = asking.watch(**METERS)
    changes = aiter(watch)
    assert (await anext(changes)).result is False
    began = time.monotonic()
    await write(manager, 1)
    async with asyncio.timeout(20):
        assert (await anext(changes)).result is True
        assert time.monotonic() - began < 10  # on an idle machine a third of a second
        await until(lambda: asking.is_active(**METERS))
    watch.cancel()
