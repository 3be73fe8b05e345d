"""What writes to a cluster of one, two and three servers over a folder cost, beside one server of a data folder."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import nadi
from bench.cluster.servers import servers
from bench.events import percentile
from bench.measure import KEYS, SCOPE, STREAM, Figure, fill, open_stream
from bench.process import cpu_seconds

COUNTS = {100: 1_000_000, 1_000: 300_000}
LONE = 300


def writes(folder: Path) -> list[Figure]:
    figures = []
    for count in range(4):
        figures += _measured(folder / str(count), count)
    return figures


def _measured(folder: Path, count: int) -> list[Figure]:
    """count: of the cluster's servers; 0 is a server without a cluster."""
    name = f"{count} of a cluster" if count else "embedded"
    figures = []
    with ExitStack() as stack:
        if count:
            running = list(stack.enter_context(servers(folder, count, 4)).running.values())
        else:
            running = [stack.enter_context(nadi.embedded(folder))]
        manager = stack.enter_context(nadi.StreamManager(running[0].controller_uri))
        open_stream(manager)
        for size, events in COUNTS.items():
            fill(manager, size, events // 10)
            before = sum(cpu_seconds(server.pid) for server in running)
            rate = events / fill(manager, size, events)
            cpu_s = sum(cpu_seconds(server.pid) for server in running) - before
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
