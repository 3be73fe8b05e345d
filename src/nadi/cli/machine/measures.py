"""What `nadi bench` measures: how fast events are written and read, and how long one takes to be stored and seen.

Each measure takes its time, or a gigabyte. Writer and reader are in this process; a machine's cores are shared with the
server's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nadi.cli.machine.disk import sync_times
from nadi.limits import KIB, MIB

if TYPE_CHECKING:
    from nadi.client import StreamManager

Row: TypeAlias = dict[str, Any]
_MOST_BYTES = 1024 * MIB
_BLOCK_BYTES = 1 * MIB
_SEGMENTS = 4
_PATIENCE_S = 30.0
SIZES = (100, KIB)


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    run: Callable[[float], Row]


def measures_of(manager: StreamManager, scope: str, folder: Path | None) -> list[Measure]:
    """In their order. folder: on the server's disk, where that is of this machine."""
    of_server = [
        *(Measure(f"write {size:,} B", _writing(manager, scope, size)) for size in SIZES),
        Measure("ack of one event", lambda seconds: _acks(manager, scope, seconds)),
        Measure("event to reader", lambda seconds: _tail(manager, scope, seconds)),
        Measure(f"read {SIZES[-1]:,} B back", lambda seconds: _reading(manager, scope, SIZES[-1], seconds)),
    ]
    return of_server if folder is None else [Measure("fdatasync of 4 KiB", lambda s: _syncs(folder, s)), *of_server]


def _row(
    events: int | None = None, seconds: float = 1.0, size_bytes: int | None = None, took_s: list[float] | None = None
) -> Row:
    in_order = sorted(took_s or [])

    def share(part: float) -> float | None:
        return round(in_order[int(len(in_order) * part)] * 1000, 3) if in_order else None

    return {
        "events/s": None if events is None else round(events / seconds),
        "MB/s": None if size_bytes is None else round(size_bytes / seconds / 1e6, 1),
        "p50 ms": share(0.5),
        "p99 ms": share(0.99),
    }


def _syncs(folder: Path, seconds: float) -> Row:
    took = sync_times(folder, seconds)
    return _row() | {"p50 ms": round(took.p50_ms, 3), "p99 ms": round(took.p99_ms, 3)}


def _stream_of(size: int) -> str:
    return f"events-{size}"


def _writing(manager: StreamManager, scope: str, size: int) -> Callable[[float], Row]:
    def run(seconds: float) -> Row:
        manager.create_stream(scope, _stream_of(size), _SEGMENTS)
        block = [os.urandom(size) for _ in range(_BLOCK_BYTES // size)]
        events = 0
        with manager.create_writer(scope, _stream_of(size)) as writer:
            began = time.perf_counter()
            while time.perf_counter() - began < seconds and events * size < _MOST_BYTES:
                writer.write_batch(block)
                events += len(block)
            writer.flush()
            took = time.perf_counter() - began
        return _row(events, took, events * size)

    return run


def _acks(manager: StreamManager, scope: str, seconds: float) -> Row:
    manager.create_stream(scope, "acks", 1)
    event, took = os.urandom(SIZES[0]), list[float]()
    with manager.create_writer(scope, "acks") as writer:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            writer.write_event(event, "key").result(_PATIENCE_S)
            took.append(time.perf_counter() - began)
    return _row(len(took), sum(took), took_s=took)


def _tail(manager: StreamManager, scope: str, seconds: float) -> Row:
    """From the call that writes an event until a reader that waits for it has it."""
    manager.create_stream(scope, "tail", 1)
    event, took = os.urandom(SIZES[0]), list[float]()
    with manager.create_writer(scope, "tail") as writer, manager.create_reader(scope, "tail") as reader:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            writer.write_event(event, "key")
            reader.next_block(_PATIENCE_S)
            took.append(time.perf_counter() - began)
    return _row(len(took), sum(took), took_s=took)


def _reading(manager: StreamManager, scope: str, size: int, seconds: float) -> Row:
    """What was written before, from its start on."""
    end = manager.cuts(scope, _stream_of(size)).tail()
    events = 0
    began = time.perf_counter()
    with manager.create_reader(scope, _stream_of(size), end=end) as reader:
        for _, block in reader:
            events += len(block.events())
            if time.perf_counter() - began > seconds:
                break
    return _row(events, time.perf_counter() - began, events * size)
