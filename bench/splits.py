"""Splits of a stream that was split and merged, half of it from one key: how even they are, and the gain of a second
process.

Two processes on two cores share them with the server, and with other users of the machine. So the same is measured for
independent work: counting. The gain of a second process can't exceed the gain there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import nadi
from bench.measure import KEYS, SCOPE, STREAM, Figure, open_stream
from bench.process import cpu_seconds
from nadi.client.scan.scan import Scan

COUNTS = (2, 4, 8, 16)
UNEVEN = 1.1  # the largest split's size may be that many times the mean
_BATCH = 10_000
_PIECES = 16  # of work: eight for each of two
_ROUNDS = 3
_TURNS = 3_000_000  # of a loop that only counts
_SCHEMA = "meter string, wh long, volt double"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Load:
    """Events of about 200 bytes."""

    events: int = 1_500_000
    turns: int = _TURNS


@dataclass(frozen=True, slots=True)
class Timed:
    """Times. seconds: until all splits were done. cpu_s: of the processes."""

    seconds: float
    cpu_s: float


LOAD = Load()


def splits(folder: Path, load: Load = LOAD) -> list[Figure]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        fill(manager, load.events)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        raw = nadi.scan(manager, SCOPE, STREAM, columns=["event"])
        typed = nadi.scan(
            manager, SCOPE, STREAM, columns=["value"], value_format="json", value_schema=_SCHEMA, unnest=True
        )
        figures = [_balance(raw, count) for count in COUNTS]
        figures += _counting(load.turns)
        for name, scan in (("raw events", raw), ("typed JSON", typed)):
            parts = scan.splits(_PIECES, max_bytes=-(-scan.size_bytes // _PIECES))
            before = cpu_seconds(server.pid)
            found, reads = _read_splits(f"splits of {name}", parts, scan.size_bytes)
            used = (cpu_seconds(server.pid) - before) / reads / scan.size_bytes * 1e9
            figures += [*found, Figure(f"splits of {name}, the server's CPU", used, "s/GB")]
    return figures


def fill(manager: nadi.StreamManager, count: int) -> None:
    """Write JSON of different lengths; every other event has one key. A segment is split and two are merged
    meanwhile."""
    open_stream(manager)
    with manager.create_writer(SCOPE, STREAM) as writer:
        for first in range(0, count, _BATCH):
            numbers = range(first, min(first + _BATCH, count))
            events = [
                b'{"meter": "m%d", "wh": %d, "volt": 229.%d, "note": "%s"}' % (n % 500, n, n % 10, b"." * (n % 300))
                for n in numbers
            ]
            writer.write_batch(events, [KEYS[0] if n % 2 else KEYS[n % 1000] for n in numbers])
            if first == count // 3 // _BATCH * _BATCH:
                writer.flush()
                manager.scale_stream(SCOPE, STREAM, [0], [(0.0, 0.1), (0.1, 0.25)])
            if first == count * 2 // 3 // _BATCH * _BATCH:
                writer.flush()
                manager.scale_stream(SCOPE, STREAM, [1, 2], [(0.25, 0.75)])


def _balance(scan: Scan, count: int) -> Figure:
    sizes = [split.size_bytes for split in scan.splits(count)]
    largest = max(sizes) / (sum(sizes) / len(sizes))
    return Figure(f"largest of {len(sizes)} splits, of the mean", largest, "times", UNEVEN, at_most=True)


def _counting(turns: int) -> list[Figure]:
    first, second = _alone_and_both([turns] * _PIECES, _counted)
    return [Figure("counting, two processes over one", first.seconds / second.seconds, "times")]


def _read_splits(name: str, parts: Sequence[nadi.Split], size_bytes: int) -> tuple[list[Figure], int]:
    """Read the splits; return how often each was read too."""
    first, second = _alone_and_both(parts, _read)
    return [
        Figure(f"{name}, two processes over one", first.seconds / second.seconds, "times"),
        Figure(f"{name}, one process", size_bytes / 1e6 / first.seconds, "MB/s"),
        Figure(f"{name}, two processes", size_bytes / 1e6 / second.seconds, "MB/s"),
        Figure(f"{name}, the readers' CPU", first.cpu_s / size_bytes * 1e9, "s/GB"),
    ], 2 * (_ROUNDS + 1)


def _alone_and_both(pieces: Sequence[T], work: Callable[[T], float]) -> tuple[Timed, Timed]:
    """Measure one process and two, in turns; the best round of each counts, as a shared machine is slower at times."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context) as one, ProcessPoolExecutor(2, context) as two:
        alone, both = [], []
        for _ in range(_ROUNDS + 1):  # the first of them is slower, by what the processes load and by connecting
            alone.append(_timed(one, pieces, work))
            both.append(_timed(two, pieces, work))
    return min(alone, key=_seconds), min(both, key=_seconds)


def _seconds(timed: Timed) -> float:
    return timed.seconds


def _timed(pool: Executor, pieces: Sequence[T], work: Callable[[T], float]) -> Timed:
    began = time.perf_counter()
    cpu_s = sum(pool.map(work, pieces))
    return Timed(time.perf_counter() - began, cpu_s)


def _read(split: nadi.Split) -> float:
    """Return the seconds of CPU."""
    began = time.process_time()
    assert sum(batch.num_rows for batch in split.batches()) > 0
    return time.process_time() - began


def _counted(turns: int) -> float:
    began = time.process_time()
    for _ in range(turns):
        pass
    return time.process_time() - began
