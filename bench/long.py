"""Ten minutes of a steady load with a reader of history: whether anything drifts.

5,000 events/s of 1 KB are written, while another process repeatedly reads the stream from head to tail at 20 MB/s. A
line per minute has the times of acknowledgements, and the sizes of the server, its log and tier 2; the verdict compares
the last third of the minutes with the first.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nadi
from bench.measure import KEYS, MEMORY_MB, SCOPE, STREAM, Figure, open_stream
from bench.part import ROOT
from bench.process import folder_bytes
from bench.steady import Waits, steadily
from nadi.segmentstore.data_dir import TIER2
from nadi.standalone import EmbeddedServer

RATE, SIZE = 5_000, 1_000
MINUTES, MINUTE_S = 10, 60.0
HISTORY_BYTES_S = 20_000_000
DRIFT = 1.5  # times the first third's


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute of the run. memory_mb: of the server, at the end; log_mb, tier2_mb: files of the log, including spare
    ones, and of tier 2."""

    waits: Waits
    memory_mb: float
    log_mb: float
    tier2_mb: float

    def line(self, number: int) -> str:
        return (
            f"minute {number}: {self.waits.rate:,.0f} events/s, p50 {self.waits.ms(50):.2f}, "
            f"p99 {self.waits.ms(99):.1f}, at most {self.waits.ms(100):.0f} ms; "
            f"memory {self.memory_mb:,.0f}, log {self.log_mb:,.0f}, tier 2 {self.tier2_mb:,.0f} MB"
        )


def long(
    folder: Path, minutes: int = MINUTES, minute_s: float = MINUTE_S, say: Callable[[str], object] = print
) -> list[Figure]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        with manager.create_writer(SCOPE, STREAM) as writer, _history_read(server.controller_uri):
            found = []
            for number in range(1, minutes + 1):
                found.append(_minute(writer, server, folder, minute_s))
                say(found[-1].line(number))
        peak_mb = server.peak_memory_bytes() / 1e6
    say(f"verdict: {verdict(found)}")
    p99s = [minute.waits.ms(99) for minute in found]
    return [
        Figure("steady load, acknowledged, p99 of the median minute", statistics.median(p99s), "ms"),
        Figure("steady load, acknowledged, p99 of the worst minute", max(p99s), "ms"),
        Figure("p99 of the last third of minutes, of the first third's", drift(p99s), "times", DRIFT, at_most=True),
        Figure(
            "memory of the last third, of the first third's",
            drift([minute.memory_mb for minute in found]),
            "times",
            DRIFT,
            at_most=True,
        ),
        Figure("files of the log at the end", found[-1].log_mb, "MB"),
        Figure("tier 2 at the end", found[-1].tier2_mb, "MB"),
        Figure("server memory at its peak, steady load", peak_mb, "MB", MEMORY_MB, at_most=True),
    ]


def drift(values: Sequence[float]) -> float:
    """Return the ratio of the medians of the last and the first third, of at least two values.

    >>> drift([1.0, 1.0, 9.0, 2.0, 2.0, 3.0])
    2.5
    """
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) / statistics.median(values[:third])


def verdict(minutes: Sequence[Minute]) -> str:
    """Describe what drifts."""
    figures = {
        "p99": [minute.waits.ms(99) for minute in minutes],
        "memory": [minute.memory_mb for minute in minutes],
        "the log": [minute.log_mb for minute in minutes],
    }
    drifts = [f"{name} to {drift(values):.1f} times" for name, values in figures.items() if drift(values) > DRIFT]
    return f"drifts: {', '.join(drifts)} of the first third" if drifts else "nothing drifts"


def _minute(writer: nadi.EventWriter, server: EmbeddedServer, folder: Path, seconds: float) -> Minute:
    event = os.urandom(SIZE)
    waits = steadily(lambda number: writer.write_event(event, KEYS[number % 1000]), RATE, seconds, writer.flush)
    return Minute(
        waits,
        server.memory_bytes() / 1e6,
        folder_bytes(folder / "container-0" / "log") / 1e6,
        folder_bytes(folder / TIER2) / 1e6,
    )


@contextlib.contextmanager
def _history_read(uri: str) -> Iterator[None]:
    """Run a process that repeatedly reads all history until the end; it must not have failed by then."""
    reader = subprocess.Popen([sys.executable, "-m", "bench.long", uri], cwd=ROOT, stdin=subprocess.PIPE)
    try:
        yield
        assert reader.poll() is None, f"the reader of history ended with {reader.returncode}"
    finally:
        reader.kill()
        reader.wait()
        assert reader.stdin is not None
        reader.stdin.close()


def read_again_and_again(uri: str) -> None:
    """Read in the reader's process, which is killed at the end. Compare the events with their positions."""
    with nadi.StreamManager(uri) as manager:
        while True:
            began, read = time.monotonic(), 0
            end = manager.stream_info(SCOPE, STREAM).tail
            with manager.create_reader(SCOPE, STREAM, end=end) as reader:
                for _, block in reader:
                    read += block.size_bytes
                    time.sleep(max(0.0, began + read / HISTORY_BYTES_S - time.monotonic()))
            assert read == sum(end.positions.values()), "each byte once"
            time.sleep(0.1)


if __name__ == "__main__":
    read_again_and_again(sys.argv[1])
