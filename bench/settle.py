"""Acknowledgements right after full load, while its background work shares the disk with new writes.

A new server at rest, 5,000 events/s; then the maximum of one writer; then, at once, 5,000 events/s again. The load
is short enough not to fill the log, after which writers wait for tier 2.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import nadi
from bench.measure import KEYS, SCOPE, STREAM, Figure, open_stream
from bench.steady import Waits, steadily

RATE, SMALL = 5_000, 100
LOADED, BATCH = 1_000, 2_000  # bytes of an event and events in a list, at full load
OF_REST = 3.0  # times the slowest at rest


def settle(folder: Path, steady_s: float = 10.0, load_s: float = 6.0) -> list[Figure]:
    events, keys = [os.urandom(LOADED) for _ in range(BATCH)], [KEYS[number % 1000] for number in range(BATCH)]
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        with manager.create_writer(SCOPE, STREAM) as writer:
            rest = _steadily(writer, steady_s)
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < load_s:
                writer.write_batch(events, keys)
                count += BATCH
            writer.flush()
            load = count * LOADED / (time.perf_counter() - began) / 1e6
            after = _steadily(writer, steady_s, warm_s=0.0)
    ratio = after.ms(99) / rest.ms(99)
    return [
        Figure("at rest, acknowledged at 5,000 events/s, p50", rest.ms(50), "ms"),
        Figure("at rest, acknowledged at 5,000 events/s, p99", rest.ms(99), "ms"),
        Figure("full load, 1 KB in lists", load, "MB/s"),
        Figure("right after it, at 5,000 events/s, p50", after.ms(50), "ms"),
        Figure("right after it, at 5,000 events/s, p99", after.ms(99), "ms"),
        Figure("right after it, at most", after.ms(100), "ms"),
        Figure("p99 right after full load, of that at rest", ratio, "times", OF_REST, at_most=True),
    ]


def _steadily(writer: nadi.EventWriter, seconds: float, warm_s: float = 1.0) -> Waits:
    event = os.urandom(SMALL)
    return steadily(
        lambda number: writer.write_event(event, KEYS[number % 1000]), RATE, seconds, writer.flush, warm_s=warm_s
    )
