"""20 MB/s of 1 KB events on 1, 100 and 1,000 segments: how long an acknowledgement takes, and what an event costs.

On 1,000 segments nearly each event is an append of its own, whatever the writer does; what that takes beside an event
on one segment is what this measures.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import nadi
from bench.events import percentile
from bench.measure import SCOPE, STREAM, Figure, open_stream
from bench.process import cpu_seconds

SEGMENTS = (1, 100, 1_000)
RATE, SIZE, SECONDS, WARM_S = 20_000, 1_000, 8, 2
_KEYS = [f"key-{number}" for number in range(10_000)]
_PAUSE_S = 0.001
OF_ONE = 3.0  # times the latency on one segment


def spread(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    p95_of_one = 0.0
    for segments in SEGMENTS:
        waits, client_us, server_us = _run(folder / f"{segments}", segments)
        name = f"20 MB/s of 1 KB on {segments:,} segment{'' if segments == 1 else 's'}"
        p95 = percentile(waits, 95)
        p95_of_one = p95_of_one or p95
        figures += [
            Figure(f"{name}, acknowledged, p50", percentile(waits, 50), "ms"),
            Figure(f"{name}, acknowledged, p95", p95, "ms"),
            Figure(f"{name}, an event's CPU, client", client_us, "us"),
            Figure(f"{name}, an event's CPU, server", server_us, "us"),
        ]
    figures.append(Figure("p95 on 1,000 segments, of that on one", p95 / p95_of_one, "times", OF_ONE, at_most=True))
    return figures


def _run(folder: Path, segments: int) -> tuple[list[float], float, float]:
    """Waits in seconds, in order; microseconds of a core that client and server spent on an event."""
    event, count, warm = os.urandom(SIZE), RATE * SECONDS, RATE * WARM_S
    waits: list[tuple[float, float]] = []
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager, segments)
        with manager.create_writer(SCOPE, STREAM) as writer:
            for key in _KEYS:
                writer.write_event(b"warm", key)
            writer.flush()
            client_s, server_s, began = time.process_time(), cpu_seconds(server.pid), time.perf_counter()
            number = 0
            while number < count:
                due = int((time.perf_counter() - began) * RATE)
                while number < min(due, count):
                    ack = writer.write_event(event, _KEYS[number * 7919 % len(_KEYS)])
                    ack.add_done_callback(partial(_note, waits, time.perf_counter()))
                    number += 1
                time.sleep(_PAUSE_S)
            writer.flush()
            client_s, server_s = time.process_time() - client_s, cpu_seconds(server.pid) - server_s
    late = sorted(done - sent for sent, done in sorted(waits)[warm:])
    return late, client_s / count * 1e6, server_s / count * 1e6


def _note(waits: list[tuple[float, float]], sent: float, _: object) -> None:
    waits.append((sent, time.perf_counter()))
