"""How long a container's clients wait when its server is killed, or stops and hands it over.

Sixteen containers on three servers. For each container a writer continuously writes an event to a segment there and
awaits its acknowledgement. Measured is the time from a kill until the first acknowledgement in each of the killed
server's containers, detection included; or the longest time without one while a stopping server hands over its
containers. One container has 100,000 idle segments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.cluster.servers import CONTAINERS, Servers, servers
from bench.events import percentile
from bench.measure import SCOPE, STREAM, Figure
from nadi.client.aio import StreamManager
from nadi.client.segments.connection import Endpoint, SegmentStoreConnection
from nadi.naming import segment_name
from nadi.segmentstore.container_registry import container_of
from nadi.wire import commands as wire

ROUNDS = 10
SEGMENTS, AT_ONCE = 100_000, 1_000
_NOTICED_S = 1.0  # a longer time without an acknowledgement is a takeover's
_SETTLED_S, _PATIENCE_S = 2.0, 60.0


class Probes:
    """A writer for each container. last: the time of its last acknowledgement; longest: the longest time without one
    since `mark`."""

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._tasks: list[asyncio.Task[None]] = []
        self.last: dict[int, float] = {}
        self.longest: dict[int, float] = {}

    async def start(self) -> None:
        """Start the writers on streams of one segment each, as many as needed to have one in each container."""
        number = 0
        while len(self.last) < CONTAINERS:
            container = container_of(segment_name(SCOPE, f"{STREAM}-{number}", 0), CONTAINERS)
            if container not in self.last:
                await self._manager.create_stream(SCOPE, f"{STREAM}-{number}")
                self.last[container], self.longest[container] = time.monotonic(), 0.0
                self._tasks.append(asyncio.create_task(self._write(container, f"{STREAM}-{number}")))
            number += 1
        self.mark()

    async def _write(self, container: int, stream: str) -> None:
        writer = await self._manager.create_writer(SCOPE, stream, ack_timeout=_PATIENCE_S)
        try:
            while True:
                await writer.write_event(b"event", "key")
                now = time.monotonic()
                self.longest[container] = max(self.longest[container], now - self.last[container])
                self.last[container] = now
                await asyncio.sleep(0.01)
        finally:
            await writer.close(1.0)

    def mark(self) -> None:
        self.longest = dict.fromkeys(self.last, 0.0)

    def check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def quiet(self) -> None:
        """Wait until each has had steady acknowledgements for a while."""
        limit = time.monotonic() + _PATIENCE_S
        began = time.monotonic()
        while time.monotonic() < began + _SETTLED_S:
            await asyncio.sleep(0.1)
            self.check()
            assert time.monotonic() < limit, "no acknowledgement within a minute"
            if min(self.last.values()) < time.monotonic() - 0.5:
                began = time.monotonic()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def fill(manager: StreamManager, container: int, count: int) -> None:
    """Create that many segments in a container, at its server: through the controller it would take minutes."""
    names = (f"{SCOPE}/idle-{number}/0.#epoch.0" for number in range(count * CONTAINERS * 2))
    there = (name for name in names if container_of(name, CONTAINERS) == container)
    first = next(there)
    host, port = await manager._controller.segment_endpoint(first)
    connection = await SegmentStoreConnection.open(Endpoint(host, port), 10.0)
    try:
        created = 0
        while created < count:
            batch = [next(there) for _ in range(min(AT_ONCE, count - created))]
            commands = (wire.CreateSegment(0, name, 0, 0, "") for name in batch)
            ask = partial(connection.ask, timeout_s=_PATIENCE_S)
            await asyncio.gather(*(ask(command, wire.SegmentCreated) for command in commands))
            created += len(batch)
    finally:
        connection.close()


async def _moves(cluster: Servers, end: Callable[[int], None], filled: int) -> list[list[float]]:
    """Return for each round how long each container was without an acknowledgement."""
    async with StreamManager(cluster.running[0].controller_uri) as manager:
        await manager.create_scope(SCOPE)
        if filled:
            await fill(manager, 1, filled)
        probes = Probes(manager)
        await probes.start()
        found = []
        try:
            for number in range(ROUNDS):
                await probes.quiet()
                place = 1 + number % 2
                probes.mark()
                began = time.monotonic()
                await asyncio.to_thread(end, place)
                ended = max(began, time.monotonic() - 0.2)
                while min(probes.last.values()) < ended:
                    probes.check()
                    await asyncio.sleep(0.02)
                await asyncio.sleep(_SETTLED_S)
                found.append(list(probes.longest.values()))
                await asyncio.to_thread(cluster.start, place)
        finally:
            await probes.close()
        return found


def takeover(folder: Path, filled: int = SEGMENTS) -> list[Figure]:
    with servers(folder, 3) as cluster:
        rounds = asyncio.run(_moves(cluster, cluster.kill, filled))
    waits = sorted(wait for waits in rounds for wait in waits if wait > _NOTICED_S)
    return [
        Figure("takeover: from a kill to an acknowledgement, p50", percentile(waits, 50) / 1e3, "s"),
        Figure("takeover: from a kill to an acknowledgement, p99", percentile(waits, 99) / 1e3, "s", 5, at_most=True),
    ]


def hand_over(folder: Path, filled: int = SEGMENTS) -> list[Figure]:
    took: list[float] = []

    def stop(cluster: Servers, place: int) -> None:
        began = time.monotonic()
        cluster.stop(place)
        took.append(time.monotonic() - began)

    with servers(folder, 3) as cluster:
        rounds = asyncio.run(_moves(cluster, partial(stop, cluster), filled))
    waits = sorted(wait for waits in rounds for wait in waits)
    moved = [wait for wait in waits if wait > 0.05]
    return [
        Figure("hand-over: without an acknowledgement, p50", percentile(moved, 50) / 1e3, "s"),
        Figure("hand-over: without an acknowledgement, p99", percentile(moved, 99) / 1e3, "s", 0.5, at_most=True),
        Figure("a server's clean stop, median", sorted(took)[len(took) // 2], "s"),
    ]
