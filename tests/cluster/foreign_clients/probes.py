"""One writer per container, which measures how long clients had to wait.

    python -m tests.cluster.foreign_clients.probes URI CONTAINERS FOLDER

Each writes an event, awaits its acknowledgement, and writes the next. The file `gaps` in FOLDER has a line for each
unusually long time without an acknowledgement: container, start and end by the monotonic clock, which all processes
share.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import IO

from nadi.client.aio import StreamManager
from nadi.naming import segment_name
from nadi.segmentstore.container_registry import container_of
from tests.cluster.processes.client import Client, put
from tests.cluster.processes.cluster import Cluster

_SCOPE = "probes"
_USUAL_S = 0.05
_PAUSE_S = 0.02
_ACK_TIMEOUT_S = 240.0
Gaps = dict[int, list[tuple[float, float]]]


class Probes(Client):
    def __init__(self, cluster: Cluster) -> None:
        folder = cluster.folder / "probes"
        command = ["-m", "tests.cluster.foreign_clients.probes", cluster.uri, str(cluster.containers), str(folder)]
        super().__init__("the probes", [sys.executable, *command], folder)

    def gaps(self) -> Gaps:
        """Return the gaps by container, in order."""
        gaps: Gaps = defaultdict(list)
        for line in (self.folder / "gaps").read_text().splitlines():
            container, start, end = line.split()
            gaps[int(container)].append((float(start), float(end)))
        return gaps


async def _probe(manager: StreamManager, stream: str, container: int, gaps: IO[str], last: dict[int, float]) -> None:
    writer = await manager.create_writer(_SCOPE, stream, ack_timeout=_ACK_TIMEOUT_S)
    while True:
        await writer.write_event(b"event", "key")
        now = time.monotonic()
        if now - last[container] > _USUAL_S:
            gaps.write(f"{container} {last[container]:.3f} {now:.3f}\n")
        last[container] = now
        await asyncio.sleep(_PAUSE_S)


async def _run(uri: str, containers: int, folder: Path) -> None:
    """Probe one single-segment stream per container, creating streams until each container has one."""
    async with StreamManager(uri) as manager, asyncio.TaskGroup() as group:
        await manager.create_scope(_SCOPE)
        gaps = (folder / "gaps").open("w", buffering=1)
        last: dict[int, float] = {}
        number = 0
        while len(last) < containers:
            stream, number = f"probe-{number}", number + 1
            container = container_of(segment_name(_SCOPE, stream, 0), containers)
            if container not in last:
                await manager.create_stream(_SCOPE, stream)
                last[container] = time.monotonic()
                group.create_task(_probe(manager, stream, container, gaps, last))
        while True:
            put(folder / "progress", {"longest_s": time.monotonic() - min(last.values())})
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
