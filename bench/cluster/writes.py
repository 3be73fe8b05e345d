"""The cost of writes to a cluster of one, two and three servers over a folder, and to two workers of one folder,
compared with one server of a data folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import nadi
from bench.cluster.servers import servers
from bench.events import percentile
from bench.measure import KEYS, SCOPE, STREAM, Figure, fill, open_stream
from bench.process import cpu_seconds
from nadi.config import ServerConfig
from nadi.standalone.workers import Workers

COUNTS = {100: 1_000_000, 1_000: 300_000}
LONE = 300
WORKERS = 2


def writes(folder: Path) -> list[Figure]:
    figures = []
    for count in range(4):
        with ExitStack() as stack:
            if count:
                running = list(stack.enter_context(servers(folder / str(count), count, 4)).running.values())
            else:
                running = [stack.enter_context(nadi.embedded(folder / str(count)))]
            name, uri = f"{count} of a cluster" if count else "embedded", running[0].controller_uri
            figures += _measured(name, uri, [server.pid for server in running])
    config = ServerConfig(
        data=folder / "workers", cache=folder / "cache", workers=WORKERS, port=0, store_port=0, containers=4
    )
    with Workers(config) as workers:
        return figures + _measured(f"--workers {WORKERS}", workers.controller_uri, workers.pids)


def _measured(name: str, uri: str, pids: Sequence[int]) -> list[Figure]:
    """Measure the writes. pids: of the servers' processes."""
    figures = []
    with nadi.StreamManager(uri) as manager:
        open_stream(manager)
        for size, events in COUNTS.items():
            fill(manager, size, events // 10)
            before = sum(map(cpu_seconds, pids))
            rate = events / fill(manager, size, events)
            cpu_s = sum(map(cpu_seconds, pids)) - before
            value, unit = (rate, "events/s") if size == 100 else (rate * size / 1e6, "MB/s")
            figures.append(Figure(f"{name}: {size:,}-byte events", value, unit))
            figures.append(Figure(f"{name}: the servers' CPU for one of them", cpu_s / events * 1e6, "us"))
        waits = _lone(manager)
    for part in (50, 99):
        figures.append(Figure(f"{name}: a lone event, p{part}", percentile(waits, part), "ms"))
    return figures


def _lone(manager: nadi.StreamManager) -> list[float]:
    waits, event = [], os.urandom(100)
    with manager.create_writer(SCOPE, STREAM) as writer:
        for number in range(LONE):
            began = time.perf_counter()
            writer.write_event(event, KEYS[number]).result(60)
            waits.append(time.perf_counter() - began)
    return sorted(waits)
