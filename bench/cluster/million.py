"""Very many streams in a cluster: the cost of creating, listing and taking them over.

Two servers over a folder, sixteen containers. Streams are created over gRPC, by clients in this process, many at a
time; each has a `_MARK` stream too, so N streams are 2 N segments, an eighth of N in each container. Then every page of
the list is read. For each container a writer writes one event after the other, and one server is killed: measured is
how long each of its containers goes without an acknowledgement, and how long until a stream can be created. Finally all
servers are killed and restarted.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.cluster.moves import Probes
from bench.cluster.servers import Servers, servers
from bench.events import percentile
from bench.measure import SCOPE, Figure
from bench.streams import create, listed
from nadi.client.aio import StreamManager

STREAMS, AT_ONCE = 1_000_000, 256
_NOTICED_S = 1.0  # a longer time without an acknowledgement is a takeover's
_PATIENCE_S = 300.0


def million(folder: Path, count: int = STREAMS) -> list[Figure]:
    with servers(folder, 2) as cluster:
        waits, rate = asyncio.run(create(cluster.running[0].controller_uri, count, AT_ONCE))
        figures = [
            Figure("create a stream, one after another, p50", waits[len(waits) // 2] * 1e3, "ms"),
            Figure(f"create {count:,} streams, {AT_ONCE} at a time", rate, "streams/s"),
            Figure("memory at its peak, the larger server", _peak_mb(cluster), "MB"),
            Figure("bytes in the store for a stream", _stored_bytes(folder) / count, "bytes"),
        ]
        seconds, _ = asyncio.run(listed(cluster.running[0], count))
        figures.append(Figure(f"list {count:,} streams by pages", seconds, "s"))
        taken_over, controller_s = asyncio.run(_one_is_killed(cluster))
        figures += [
            Figure("takeover: from a kill to an acknowledgement, p50", percentile(taken_over, 50) / 1e3, "s"),
            Figure("takeover: from a kill to an acknowledgement, longest", taken_over[-1], "s"),
            Figure("from a kill until a stream was created", controller_s, "s"),
            Figure("peak memory of the server with all containers", _peak_mb(cluster), "MB"),
        ]
        cluster.kill(0)
        began = time.monotonic()
        with ThreadPoolExecutor(2) as starting:
            list(starting.map(cluster.start, (2, 3)))
        asyncio.run(_all_acknowledge(cluster.running[2].controller_uri))
        figures.append(
            Figure("all killed and started: until each container acknowledges", time.monotonic() - began, "s")
        )
        return figures


async def _one_is_killed(cluster: Servers) -> tuple[list[float], float]:
    """Return how long each of its containers was without an acknowledgement, sorted; and how long no stream could be
    created."""
    async with StreamManager(cluster.running[0].controller_uri, timeout=_PATIENCE_S) as manager:
        probes = Probes(manager)
        await probes.start()
        try:
            await probes.quiet()
            probes.mark()
            began = time.monotonic()
            await asyncio.to_thread(cluster.kill, 1)
            await manager.create_stream(SCOPE, "after-a-kill")
            controller_s = time.monotonic() - began
            while min(probes.last.values()) < began + _NOTICED_S:
                probes.check()
                await asyncio.sleep(0.02)
            found = sorted(wait for wait in probes.longest.values() if wait > _NOTICED_S)
            assert found, "the server that was killed had containers"
            return found, controller_s
        finally:
            await probes.close()


async def _all_acknowledge(uri: str) -> None:
    async with StreamManager(uri, timeout=_PATIENCE_S) as manager:
        probes = Probes(manager)
        await probes.start()
        began = time.monotonic()
        try:
            while min(probes.last.values()) <= began:
                probes.check()
                await asyncio.sleep(0.02)
        finally:
            await probes.close()


def _peak_mb(cluster: Servers) -> float:
    return max(server.peak_memory_bytes() for server in cluster.running.values()) / 1e6


def _stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file())
