"""The measurements: each takes an empty folder and returns its figures."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nadi
from nadi.naming import segment_name

SCOPE, STREAM = "bench", "stream"
SEGMENTS = 4
KEYS = [f"key-{number}" for number in range(1000)]
MEMORY_MB = 1000


class LeftOutError(Exception):
    """A bench's requirements are missing, named in the message: it is skipped, and the others continue."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure; without a `target` it is for information."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    def reached(self, value: float) -> bool:
        assert self.target is not None
        return value <= self.target if self.at_most else value >= self.target


def disk(folder: Path) -> list[Figure]:
    """Measure the machine's fdatasync after a 4 KB write, and sequential writes of 1 MB each with one."""
    times = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(300):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
        block = bytes(1 << 20)
        began = time.perf_counter()
        for _ in range(128):
            file.write(block)
            os.fdatasync(file.fileno())
        rate = 128 / (time.perf_counter() - began)
    times.sort()
    return [
        Figure("fdatasync of 4 KB, p50", times[150] * 1e3, "ms"),
        Figure("fdatasync of 4 KB, p99", times[297] * 1e3, "ms"),
        Figure("1 MiB writes with fdatasync", rate * 1.048576, "MB/s"),
    ]


def open_stream(manager: nadi.StreamManager, segments: int = SEGMENTS) -> None:
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, STREAM, segments)


def fill(manager: nadi.StreamManager, size: int, count: int) -> float:
    """Write events one by one and wait for all acknowledgements; return the seconds."""
    events = [os.urandom(size) for _ in range(100)]
    with manager.create_writer(SCOPE, STREAM) as writer:
        write = writer.write_event
        began = time.perf_counter()
        for number in range(count):
            write(events[number % 100], KEYS[number % 1000])
        writer.flush()
        return time.perf_counter() - began


def write(folder: Path, size: int, count: int, target: float, unit: str) -> list[Figure]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        seconds = fill(manager, size, count)
        rate = count / seconds
        memory = server.peak_memory_bytes() / 1e6
    value = rate if unit == "events/s" else rate * size / 1e6
    return [
        Figure(f"write {size:,}-byte events, acknowledged", value, unit, target),
        Figure(f"server memory at its peak, {size:,}-byte events", memory, "MB", MEMORY_MB, at_most=True),
    ]


def _note(waits: list[float], sent: float, _: object) -> None:
    waits.append(time.perf_counter() - sent)


def latency(folder: Path) -> list[Figure]:
    """Measure acknowledgement latency at 5,000 events/s of 100 bytes, each waited for individually."""
    rate, seconds = 5_000, 5
    waits: list[float] = []
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        event = os.urandom(100)
        with manager.create_writer(SCOPE, STREAM) as writer:
            writer.write_event(event, "warm")
            writer.flush()
            began = time.perf_counter()
            for number in range(rate * seconds):
                due = began + number / rate
                now = time.perf_counter()
                if now < due:
                    time.sleep(due - now)
                sent = time.perf_counter()
                ack = writer.write_event(event, KEYS[number % 1000])
                ack.add_done_callback(partial(_note, waits, sent))
            writer.flush()
    waits.sort()
    return [
        Figure("acknowledgement at 5,000 events/s, p50", waits[len(waits) // 2] * 1e3, "ms"),
        Figure("acknowledgement at 5,000 events/s, p99", waits[len(waits) * 99 // 100] * 1e3, "ms", 10, at_most=True),
    ]


def read(folder: Path) -> list[Figure]:
    """Read history with one client, as blocks and as Arrow arrays, after a restart of the server."""
    size, count = 100, 5_000_000
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        fill(manager, size, count)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info(SCOPE, STREAM).tail
        began = time.perf_counter()
        total = 0
        for segment, end in tail.positions.items():
            for block in manager.read_segment_range(segment_name(SCOPE, STREAM, segment), 0, end):
                total += block.size_bytes
        raw = total / (time.perf_counter() - began) / 1e6
        began = time.perf_counter()
        rows = 0
        for segment, end in tail.positions.items():
            for block in manager.read_segment_range(segment_name(SCOPE, STREAM, segment), 0, end):
                rows += len(block.payloads())
        arrow = rows / (time.perf_counter() - began)
        memory = server.peak_memory_bytes() / 1e6
    assert rows == count
    return [
        Figure("read history", raw, "MB/s", 500),
        Figure("read history into Arrow, 100-byte events", arrow, "events/s", 2_000_000),
        Figure("server memory at its peak, reading", memory, "MB", MEMORY_MB, at_most=True),
    ]


def restart(folder: Path) -> list[Figure]:
    """Restart after kill -9 with 1 GB in the log that is not in tier 2 yet."""
    keep = {"NADI_LIMITS": "chunk_flush_bytes=8589934592,chunk_flush_age_s=3600"}
    with nadi.embedded(folder, environment=keep) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        fill(manager, 1_000, 1_000_000)
        server.kill()
    began = time.perf_counter()
    with nadi.embedded(folder, environment=keep) as server:
        seconds = time.perf_counter() - began
        with nadi.StreamManager(server.controller_uri) as manager:
            tail = manager.stream_info(SCOPE, STREAM).tail
            assert sum(tail.positions.values()) == 1_008_000_000
    return [Figure("restart after kill -9 with 1 GB in the log", seconds, "s", 10, at_most=True)]
