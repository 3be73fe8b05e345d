"""1,000 busy streams among 100,000: the cost of the idle ones.

The same work on a server with only the 1,000, and on one with all streams. Each busy stream has its own writer, in one
client; together they write 5,000 events/s, each to a random stream.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import nadi
from bench.measure import MEMORY_MB, Figure
from bench.steady import Waits, steadily
from bench.streams import PARALLEL, SCOPE, create, name_of

BUSY = 1_000
RATE, SECONDS, WARM_S, SIZE = 5_000, 20.0, 5.0, 100
OF_ALONE = 1.5  # times the slowest of them alone


def busy_streams(
    folder: Path, count: int, busy: int = BUSY, seconds: float = SECONDS, warm_s: float = WARM_S
) -> list[Figure]:
    """Measure with `count` streams in total, `busy` of them busy."""
    alone, alone_mb = _run(folder / "alone", busy, busy, seconds, warm_s)
    among, among_mb = _run(folder / "among", count, busy, seconds, warm_s)
    figures: list[Figure] = []
    for name, waits, memory_mb in (
        (f"{busy:,} busy streams alone", alone, alone_mb),
        (f"{busy:,} busy streams among {count:,}", among, among_mb),
    ):
        figures += [
            Figure(f"{name}, at {RATE:,} events/s", waits.rate, "events/s"),
            Figure(f"{name}, acknowledged, p50", waits.ms(50), "ms"),
            Figure(f"{name}, acknowledged, p95", waits.ms(95), "ms"),
            Figure(f"{name}, acknowledged, p99", waits.ms(99), "ms"),
            Figure(f"{name}, server's memory at its peak", memory_mb, "MB", MEMORY_MB, at_most=True),
        ]
    of_alone = among.ms(95) / alone.ms(95)
    return [*figures, Figure("p95 among all, of that alone", of_alone, "times", OF_ALONE, at_most=True)]


def _run(folder: Path, count: int, busy: int, seconds: float, warm_s: float) -> tuple[Waits, float]:
    """Return the waits, and the server's memory in MB."""
    event, chance = os.urandom(SIZE), random.Random(1)
    with nadi.embedded(folder) as server:
        asyncio.run(create(server.controller_uri, count, PARALLEL))
        with nadi.StreamManager(server.controller_uri) as manager:
            chosen = chance.sample(range(count), busy)
            writers = [manager.create_writer(SCOPE, name_of(number)) for number in chosen]

            def flush() -> None:
                for writer in writers:
                    writer.flush()

            waits = steadily(
                lambda _: chance.choice(writers).write_event(event, "key"), RATE, seconds, flush, warm_s=warm_s
            )
            return waits, server.peak_memory_bytes() / 1e6
