"""A model of a cluster on S3 that is larger than a benchmark machine. Nothing is measured here: each assumption is a
constant, and `docs/benchmarks.md` has its source.

A container's log is modelled put by put: appends arrive at random, a frame takes all waiting ones, at most `depth` puts
are in flight, started at least `interval_s` apart, and acknowledged in order. nadi has one in flight; the other rows
explain why (decision 0024).
"""

from __future__ import annotations

import math
import random
from collections import deque
from pathlib import Path
from typing import NamedTuple

from bench.measure import Figure
from nadi.config import WAL_PROFILES_S
from nadi.limits import FRAME_MAX_BYTES

PUT_S, PUT_P99_S = 0.030, 0.150  # of a small object
PUT_BYTES_PER_S = 80e6  # of a large one, on one connection
REQUEST_DOLLARS = 5e-6  # a put or a listing
APPENDS_PER_S, SECONDS = 500, 600
SERVERS, CONTAINERS, BUSY_SHARE = 10, 80, 0.7
CPU_S = {100: 0.46e-6, 1_000: 4.8e-6}  # of a core for an event of that size: `cluster-write`, three servers, a folder
PUT_CPU_S = 1.4e-9  # for a byte that is put: 0.9 measured without TLS, the rest for that
PUTS_OF_A_BYTE = 2  # in the log, and in tier 2
BEATS_PER_S, LISTINGS_PER_S = 1.0, 1.0  # each server's
MONTH_S = 30 * 24 * 3600
_Z99 = 2.326  # of a normal distribution


class Log(NamedTuple):
    """A container's log under load: acknowledgements in seconds, and puts per second."""

    p50_s: float
    p99_s: float
    puts_per_s: float


def log_of(depth: int, interval_s: float, appends_per_s: float = APPENDS_PER_S, seed: int = 1) -> Log:
    chance = random.Random(seed)
    waits: list[float] = []
    under_way: deque[float] = deque([0.0] * depth, depth)  # when the last ones are acknowledged
    arrival, began, puts = 0.0, -interval_s, 0
    while began < SECONDS:
        began = max(arrival, began + interval_s, under_way[0])
        puts += 1
        took = math.exp(math.log(PUT_S) + math.log(PUT_P99_S / PUT_S) / _Z99 * chance.gauss(0, 1))
        end = max(began + took, under_way[-1])
        under_way.append(end)
        while arrival <= began:
            waits.append(end - arrival)
            arrival += chance.expovariate(appends_per_s)
    waits.sort()
    return Log(waits[len(waits) // 2], waits[len(waits) * 99 // 100], puts / SECONDS)


def model(folder: Path) -> list[Figure]:
    """Compute the model. folder: unused, as nothing runs."""
    figures = []
    for name, depth, interval_s in [
        *((profile, 1, interval_s) for profile, interval_s in WAL_PROFILES_S.items()),
        *((f"{depth} puts under way", depth, WAL_PROFILES_S["latency"]) for depth in (2, 4, 8)),
        *((f"{depth} puts under way, 50 ms apart", depth, WAL_PROFILES_S["balanced"]) for depth in (2, 4, 8)),
    ]:
        log = log_of(depth, interval_s)
        figures += [
            Figure(f"{name}: acknowledgement p50", log.p50_s * 1e3, "ms"),
            Figure(f"{name}: p99", log.p99_s * 1e3, "ms"),
            Figure(f"{name}: puts a second", log.puts_per_s, "1/s"),
            Figure(f"{name}: puts a month", log.puts_per_s * MONTH_S * REQUEST_DOLLARS, "$"),
        ]
    return figures + _cluster()


def _cluster() -> list[Figure]:
    name = f"{SERVERS} servers, {CONTAINERS} containers"
    figures = []
    for size, cpu_s in CPU_S.items():
        by_core = SERVERS * BUSY_SHARE / (cpu_s + size * PUTS_OF_A_BYTE * PUT_CPU_S)
        by_log = CONTAINERS * FRAME_MAX_BYTES / (PUT_S + FRAME_MAX_BYTES / PUT_BYTES_PER_S) / size
        rate = min(by_core, by_log)
        frames_per_s = max(CONTAINERS * log_of(1, WAL_PROFILES_S["balanced"]).puts_per_s, rate * size / FRAME_MAX_BYTES)
        figures += [
            Figure(f"{name}: {size:,}-byte events, by the servers' cores", by_core, "events/s"),
            Figure(f"{name}: {size:,}-byte events, by the logs' puts", by_log, "events/s"),
            Figure(f"{name}: puts of the logs at the less of both", frames_per_s, "1/s"),
            Figure(f"{name}: which cost a month", frames_per_s * MONTH_S * REQUEST_DOLLARS, "$"),
        ]
    beats = SERVERS * (BEATS_PER_S + LISTINGS_PER_S) * MONTH_S * REQUEST_DOLLARS
    return [*figures, Figure(f"{name}: heartbeats a month, with nothing written", beats, "$")]
