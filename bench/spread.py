"""20 MB/s of 1 KB events on 1, 100 and 1,000 segments: the time of an acknowledgement, and the cost of an event.

On 1,000 segments nearly each event is a separate append, with any writer; this measures its cost compared with an event
on one segment. The writer here is nadi's client; `bench/java/spread.py` measures the official Java client.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

import nadi
from bench.events import percentile
from bench.measure import SCOPE, STREAM, Figure, open_stream
from bench.process import cpu_seconds

KEYS, KEY_STEP = 10_000, 7_919  # the step from one event's key to the next; a prime, so that all keys are used
OF_ONE = 3.0  # times the latency on one segment
_PAUSE_S = 0.001


@dataclass(frozen=True, slots=True)
class Load:
    """The load. segments: of each measured stream, starting with one. rate: events/s, of `size` bytes, for that many
    seconds; those due in the first `warm_s` are in no latency."""

    segments: tuple[int, ...] = (1, 100, 1_000)
    rate: int = 20_000
    size: int = 1_000
    seconds: float = 8
    warm_s: float = 2

    @property
    def count(self) -> int:
        """The events on each stream.

        >>> Load().count, Load().warm
        (160000, 40000)
        """
        return int(self.rate * self.seconds)

    @property
    def warm(self) -> int:
        return int(self.rate * self.warm_s)


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of one stream: from the call that writes an event to its acknowledgement; events/s until all were
    acknowledged; CPU microseconds per event in the writer's process."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    rate: float
    cpu_us: float


# Of the stream at a controller's URI: once it is entered all segments are written to; what it then gives does the work.
Writer = Callable[[str, Load], AbstractContextManager[Callable[[], Written]]]
SPREAD = Load()


def spread(folder: Path, load: Load = SPREAD) -> list[Figure]:
    return figures(folder, load, _warmed)


def figures(folder: Path, load: Load, writer: Writer, prefix: str = "") -> list[Figure]:
    """Measure each stream on a new server. prefix: of each figure's name."""
    found: list[Figure] = []
    p95_of_one = 0.0
    for segments in load.segments:
        written, server_us = _run(folder / f"{segments}", segments, load, writer)
        name = f"{prefix}{load.rate * load.size / 1e6:g} MB/s of {load.size / 1e3:g} KB on {segments:,} segment"
        name += "" if segments == 1 else "s"
        p95_of_one = p95_of_one or written.p95_ms
        found += [
            Figure(f"{name}, acknowledged, p50", written.p50_ms, "ms"),
            Figure(f"{name}, acknowledged, p95", written.p95_ms, "ms"),
            Figure(f"{name}, acknowledged, p99", written.p99_ms, "ms"),
            Figure(f"{name}, rate that was kept", written.rate, "events/s"),
            Figure(f"{name}, an event's CPU, client", written.cpu_us, "us"),
            Figure(f"{name}, an event's CPU, server", server_us, "us"),
        ]
    ratio = f"{prefix}p95 on {segments:,} segments, of that on one"
    return [*found, Figure(ratio, written.p95_ms / p95_of_one, "times", OF_ONE, at_most=True)]


def _run(folder: Path, segments: int, load: Load, writer: Writer) -> tuple[Written, float]:
    """Run the load; return the server's CPU microseconds per event too."""
    with nadi.embedded(folder) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            open_stream(manager, segments)
        with writer(server.controller_uri, load) as write:
            before = cpu_seconds(server.pid)
            written = write()
            return written, (cpu_seconds(server.pid) - before) / load.count * 1e6


@contextmanager
def _warmed(uri: str, load: Load) -> Iterator[Callable[[], Written]]:
    keys = [f"key-{number}" for number in range(KEYS)]
    with nadi.StreamManager(uri) as manager, manager.create_writer(SCOPE, STREAM) as writer:
        for key in keys:
            writer.write_event(b"warm", key)
        writer.flush()
        yield partial(_write, writer, keys, load)


def _write(writer: nadi.EventWriter, keys: list[str], load: Load) -> Written:
    event, count = os.urandom(load.size), load.count
    waits: list[tuple[float, float]] = []
    client_s, began = time.process_time(), time.perf_counter()
    number = 0
    while number < count:
        due = int((time.perf_counter() - began) * load.rate)
        while number < min(due, count):
            sent = time.perf_counter()
            ack = writer.write_event(event, keys[number * KEY_STEP % KEYS])
            ack.add_done_callback(partial(_note, waits, sent))
            number += 1
        time.sleep(_PAUSE_S)
    writer.flush()
    seconds, client_s = time.perf_counter() - began, time.process_time() - client_s
    assert len(waits) == count, "each is acknowledged once"
    late = sorted(done - sent for sent, done in sorted(waits)[load.warm :])
    p50, p95, p99 = (percentile(late, part) for part in (50, 95, 99))
    return Written(p50, p95, p99, count / seconds, client_s / count * 1e6)


def _note(waits: list[tuple[float, float]], sent: float, _: object) -> None:
    waits.append((sent, time.perf_counter()))
