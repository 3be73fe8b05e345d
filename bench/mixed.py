"""Mixed work on one stream: events of very different lengths, one key each, ten writers, fifty readers, a slow one.

First all ten writers at full speed without readers; once that is in tier 2, at a steady rate, with 49 readers of the
tail (`bench/mixed_readers.py`), and again with a fiftieth that reads all history and is suspended most of the time: its
responses wait in the server. It must not slow the others.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import nadi
from bench.measure import MEMORY_MB, SCOPE, STREAM, Figure, open_stream
from bench.part import ROOT
from bench.process import settle
from bench.steady import Waits, steadily
from nadi.client.aio import Ack
from nadi.segmentstore.data_dir import TIER2

WRITERS, FAST_READERS, PROCESSES = 10, 49, 3
MEDIAN_BYTES, SPREAD, LEAST_BYTES, MOST_BYTES = 1_000, 1.5, 20, 200_000  # log-normal: 3 KB in the mean, 1 % above 33 KB
LENGTHS = 2_000
RATE, SECONDS, WARM_S, FULL_S = 400, 15.0, 2.0, 5.0
STOPPED_S, RUNNING_S = 0.9, 0.1  # the slow reader, in turns
OF_WITHOUT = 1.25  # times the fast readers' p99 without the slow one


@dataclass(frozen=True, slots=True)
class Load:
    """The amount of work, of a bench and of a test."""

    readers: int = FAST_READERS
    processes: int = PROCESSES
    rate: float = RATE
    seconds: float = SECONDS
    full_s: float = FULL_S


class Events:
    """Random events with fixed random lengths; the first eight bytes are the time of writing."""

    def __init__(self) -> None:
        chance = random.Random(1)
        drawn = (chance.lognormvariate(float(np.log(MEDIAN_BYTES)), SPREAD) for _ in range(LENGTHS))
        self.lengths = [round(min(max(length, LEAST_BYTES), MOST_BYTES)) for length in drawn]
        self._bytes = os.urandom(2 * MOST_BYTES)

    def make(self, number: int) -> bytes:
        length = self.lengths[number % LENGTHS]
        at = number * 37 % MOST_BYTES
        return time.monotonic_ns().to_bytes(8) + self._bytes[at : at + length - 8]

    @property
    def mean_bytes(self) -> float:
        return sum(self.lengths) / LENGTHS


def mixed(folder: Path, load: Load | None = None) -> list[Figure]:
    load = load or Load()
    events = Events()
    with nadi.embedded(folder) as server, ExitStack() as opened:
        managers = [opened.enter_context(nadi.StreamManager(server.controller_uri)) for _ in range(WRITERS)]
        open_stream(managers[0])
        writers = [opened.enter_context(manager.create_writer(SCOPE, STREAM)) for manager in managers]
        full = _full_speed(writers, events, load.full_s)
        settle(server.pid, folder / TIER2, sum(managers[0].stream_info(SCOPE, STREAM).tail.positions.values()))
        acks, tails = _steady(server.controller_uri, writers, events, load)
        with _slow_reader(server.controller_uri):
            acks_beside, tails_beside = _steady(server.controller_uri, writers, events, load)
        memory = server.peak_memory_bytes() / 1e6
    figures = [
        Figure(f"mixed lengths, {WRITERS} writers at full speed", full, "events/s"),
        Figure("the same in bytes", full * events.mean_bytes / 1e6, "MB/s"),
    ]
    for name, ack, tail in (
        (f"mixed, {load.readers} readers", acks, tails),
        ("and a slow reader", acks_beside, tails_beside),
    ):
        figures += [
            Figure(f"{name}, at {load.rate:,.0f} events/s", ack.rate, "events/s"),
            Figure(f"{name}, acknowledged, p50", ack.ms(50), "ms"),
            Figure(f"{name}, acknowledged, p99", ack.ms(99), "ms"),
            Figure(f"{name}, written to read by the fast ones, p50", tail.ms(50), "ms"),
            Figure(f"{name}, written to read by the fast ones, p99", tail.ms(99), "ms"),
        ]
    ratio = tails_beside.ms(99) / tails.ms(99)
    return [
        *figures,
        Figure("p99 of the fast ones beside a slow one, of that without", ratio, "times", OF_WITHOUT, at_most=True),
        Figure("server memory at its peak, mixed", memory, "MB", MEMORY_MB, at_most=True),
    ]


def _full_speed(writers: list[nadi.EventWriter], events: Events, seconds: float) -> float:
    """Return acknowledged events/s of all writers together, each in a separate thread."""
    end = time.perf_counter() + seconds

    def write(at: int) -> int:
        number = at
        while time.perf_counter() < end:
            writers[at].write_event(events.make(number), f"{number}")
            number += len(writers)
        writers[at].flush()
        return (number - at) // len(writers)

    began = time.perf_counter()
    with ThreadPoolExecutor(len(writers)) as threads:
        count = sum(threads.map(write, range(len(writers))))
    return count / (time.perf_counter() - began)


def _steady(uri: str, writers: list[nadi.EventWriter], events: Events, load: Load) -> tuple[Waits, Waits]:
    """Return the times of acknowledgements, and of the fast readers."""
    count = int(load.rate * load.seconds)
    total = sum(events.lengths[number % LENGTHS] for number in range(count))

    def write(number: int) -> Ack:
        return writers[number % WRITERS].write_event(events.make(number), f"{number}")

    def flush() -> None:
        for writer in writers:
            writer.flush()

    with tempfile.TemporaryDirectory() as folder:
        shares = [len(range(load.readers)[at :: load.processes]) for at in range(load.processes)]
        with ExitStack() as running:
            readers = [
                running.enter_context(_reading("tail", uri, str(share), str(count), str(total), f"{folder}/{at}.npy"))
                for at, share in enumerate(shares)
            ]
            acks = steadily(write, load.rate, load.seconds, flush, warm_s=min(WARM_S, load.seconds / 4))
            for reader in readers:
                assert reader.wait(60) == 0, f"a process of readers ended with {reader.returncode}"
        waits = np.concatenate([np.load(file) for file in sorted(Path(folder).glob("*.npy"))])
    assert len(waits) == load.readers * count, "each reader has each event"
    return acks, Waits(np.sort(waits).tolist(), acks.rate)


@contextlib.contextmanager
def _reading(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process of readers that are at their start."""
    command = [sys.executable, "-m", "bench.mixed_readers", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "reading\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def _slow_reader(uri: str) -> Iterator[None]:
    """Run a reader with much to read, mostly suspended."""
    over = threading.Event()
    with _reading("history", uri) as process:

        def stop_and_go() -> None:
            while not over.wait(RUNNING_S):
                process.send_signal(signal.SIGSTOP)
                over.wait(STOPPED_S)
                process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=stop_and_go)
        thread.start()
        try:
            yield
            assert process.poll() is None, f"the slow reader ended with {process.returncode}"
        finally:
            over.set()
            thread.join()
