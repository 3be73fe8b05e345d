"""The client's work: batches, Arrow arrays, single round trips, the tail, and history as bytes objects.

The reader of the tail is a separate process, as in practice; times are those of the machine's monotonic clock, which is
common to all processes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

import nadi
from bench.measure import KEYS, SCOPE, STREAM, Figure, fill, open_stream
from bench.process import cpu_seconds
from nadi.model.event import EventBlock

SMALL, LARGE = 100, 1_000  # bytes of an event
BATCH = 10_000  # events given to one write_batch


def percentile(waits: Sequence[float], part: int) -> float:
    """Return a percentile of sorted seconds, in milliseconds."""
    return waits[min(len(waits) * part // 100, len(waits) - 1)] * 1e3


def write_batch(folder: Path) -> list[Figure]:
    """Write 100-byte events in lists, each with its own routing key."""
    events = [os.urandom(SMALL) for _ in range(BATCH)]
    keys = [KEYS[number % len(KEYS)] for number in range(BATCH)]
    rate, client_ns, server_ns = _in_batches(folder, [(events, keys)] * 600)
    return [
        Figure("write_batch, lists of 100-byte events", rate, "events/s", 2_000_000),
        Figure("its work for each event, client", client_ns, "ns of a core"),
        Figure("its work for each event, server", server_ns, "ns of a core"),
    ]


def write_arrow(folder: Path) -> list[Figure]:
    """Write the same as Arrow arrays."""
    events = pa.array([os.urandom(SMALL) for _ in range(BATCH)], pa.binary())
    keys = pa.array([KEYS[number % len(KEYS)] for number in range(BATCH)])
    rate, client_ns, _ = _in_batches(folder, [(events, keys)] * 600)
    return [
        Figure("write_batch, Arrow arrays of 100-byte events", rate, "events/s", 2_000_000),
        Figure("its work for each event, client", client_ns, "ns of a core"),
    ]


def write_large_batch(folder: Path) -> list[Figure]:
    """Write 1 KB events in lists."""
    events = [os.urandom(LARGE) for _ in range(BATCH)]
    keys = [KEYS[number % len(KEYS)] for number in range(BATCH)]
    rate, _, _ = _in_batches(folder, [(events, keys)] * 100)
    return [Figure("write_batch, lists of 1,000-byte events", rate * LARGE / 1e6, "MB/s", 250)]


def _in_batches(
    folder: Path, batches: Sequence[tuple[Sequence[bytes] | pa.Array, Sequence[str] | pa.Array]]
) -> tuple[float, float, float]:
    """Return acknowledged events per second, and nanoseconds of CPU per event that client and server spent, which mean
    more on a shared machine."""
    count = sum(len(events) for events, _ in batches)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        with manager.create_writer(SCOPE, STREAM) as writer:
            writer.write_event(b"warm", "key").result()
            began, client_s, server_s = time.perf_counter(), time.process_time(), cpu_seconds(server.pid)
            for events, keys in batches:
                writer.write_batch(events, keys)
            writer.flush()
            rate = count / (time.perf_counter() - began)
            client_s, server_s = time.process_time() - client_s, cpu_seconds(server.pid) - server_s
    return rate, client_s / count * 1e9, server_s / count * 1e9


def round_trip(folder: Path) -> list[Figure]:
    """Write an event, wait until it is stored, write the next."""
    event = os.urandom(SMALL)
    waits = []
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        with manager.create_writer(SCOPE, STREAM) as writer:
            for number in range(5_500):
                began = time.perf_counter()
                writer.write_event(event, KEYS[number % 1000]).result()
                waits.append(time.perf_counter() - began)
    waits = sorted(waits[500:])
    return [
        Figure("single event, written and acknowledged, p50", percentile(waits, 50), "ms", 1, at_most=True),
        Figure("single event, written and acknowledged, p99", percentile(waits, 99), "ms", 5, at_most=True),
    ]


def tail(folder: Path) -> list[Figure]:
    """Measure from write to read by another process, at 10,000 events/s."""
    p50, p99 = _tail(folder, "slice")
    return [
        Figure("written to read by another process, 10,000 events/s, p50", p50, "ms", 2, at_most=True),
        Figure("written to read by another process, 10,000 events/s, p99", p99, "ms", 10, at_most=True),
    ]


def tail_group(folder: Path) -> list[Figure]:
    """Measure the same with the only reader of a group."""
    p50, p99 = _tail(folder, "group")
    return [
        Figure("written to read by a group's reader, 10,000 events/s, p50", p50, "ms"),
        Figure("written to read by a group's reader, 10,000 events/s, p99", p99, "ms"),
    ]


def _tail(folder: Path, kind: str) -> tuple[float, float]:
    """Return p50 and p99."""
    rate, count = 10_000, 60_000
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        command = [sys.executable, "-m", "bench.events", server.controller_uri, str(count), kind]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        with manager.create_writer(SCOPE, STREAM) as writer:
            at_rate(rate, count, lambda number, event: writer.write_event(event, KEYS[number % 1000]))
        p50, p99 = map(float, reader.communicate(timeout=60)[0].split())
    return p50, p99


def at_rate(rate: int, count: int, write: Callable[[int, bytes], object]) -> None:
    """Write `count` events of 100 bytes, each with its time of writing; a thread sleeps at least a millisecond, so some
    are written together."""
    padding = bytes(SMALL - 8)
    began = time.monotonic()
    for number in range(count):
        wait = began + number / rate - time.monotonic()
        if wait > 0:
            time.sleep(max(wait, 0.001))
        write(number, time.monotonic_ns().to_bytes(8) + padding)


def read_tail(uri: str, count: int, kind: str) -> None:
    """In the reader's process: print p50 and p99 of the waits of `count` events, in milliseconds."""
    waits: list[float] = []
    with nadi.StreamManager(uri) as manager, _blocks(manager, kind) as blocks:
        print("reading", flush=True)
        for block in blocks:
            now = time.monotonic_ns()
            waits += [(now - int.from_bytes(event[:8])) / 1e9 for event in block]
            if len(waits) >= count:
                break
    waits = sorted(waits[count // 10 :])
    print(percentile(waits, 50), percentile(waits, 99))


@contextlib.contextmanager
def _blocks(manager: nadi.StreamManager, kind: str) -> Iterator[Iterator[EventBlock]]:
    """Yield events from now on."""
    end = manager.stream_info(SCOPE, STREAM).tail
    if kind == "slice":
        with manager.create_reader(SCOPE, STREAM, start=end) as reader:
            yield (block for _, block in reader)
        return
    groups = manager.reader_group_manager(SCOPE)
    groups.create_reader_group("bench", STREAM, starts=[end])
    with groups.get_reader_group("bench").create_reader("reader") as group_reader:
        yield (read.block for read in group_reader.blocks() if read.block is not None)


def read_bytes(folder: Path) -> list[Figure]:
    """Read history as bytes objects, in lists and one by one, and as Arrow arrays; all with one client."""
    count = 4_000_000
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        fill(manager, SMALL, count)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info(SCOPE, STREAM).tail
        began = time.perf_counter()
        listed = sum(map(len, manager.read_batches(SCOPE, STREAM, end=end)))
        lists = listed / (time.perf_counter() - began)
        began = time.perf_counter()
        singly = sum(1 for _ in manager.read_events(SCOPE, STREAM, end=end))
        events = singly / (time.perf_counter() - began)
        began = time.perf_counter()
        with manager.create_reader(SCOPE, STREAM, end=end) as reader:
            rows = sum(len(block.payloads()) for _, block in reader)
        arrow = rows / (time.perf_counter() - began)
    assert listed == singly == rows == count
    return [
        Figure("read history as lists of bytes, 100-byte events", lists, "events/s", 1_500_000),
        Figure("read history event by event", events, "events/s"),
        Figure("read history as Arrow arrays", arrow, "events/s", 5_000_000),
    ]


if __name__ == "__main__":
    read_tail(sys.argv[1], int(sys.argv[2]), sys.argv[3])
