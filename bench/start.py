"""The time from the start of a process to the first acknowledgement: of a client, of one that embeds a server, and of
`nadi up`. It includes imports, which take most of the time."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nadi
from bench.measure import SCOPE, STREAM, Figure, open_stream

_TIMES = 5  # of each kind; the median counts
_WRITES = """
with nadi.StreamManager(uri) as manager, manager.create_writer("bench", "stream") as writer:
    writer.write_event(b"first").result()
    print("stored", flush=True)
"""
_CLIENT = "import sys, nadi; uri = sys.argv[1]" + _WRITES
_EMBEDDED = """
import sys, nadi
with nadi.embedded(sys.argv[1]) as server:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("bench")
        manager.create_stream("bench", "stream")
        with manager.create_writer("bench", "stream") as writer:
            writer.write_event(b"first").result()
            print("stored", flush=True)
"""


def start(folder: Path) -> list[Figure]:
    """Measure each in a new process, `nadi up` and the embedded server with a new folder each time."""
    with nadi.embedded(folder / "served") as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            open_stream(manager)
        client = _median(lambda _: _until_stored(_CLIENT, server.controller_uri))
    embedded = _median(lambda number: _until_stored(_EMBEDDED, str(folder / f"embedded-{number}")))
    up = _median(lambda number: _up(folder / f"up-{number}"))
    return [
        Figure("start of a client's process to its first acknowledgement", client, "s", 0.3, at_most=True),
        Figure("start of a process with nadi.embedded to its first acknowledgement", embedded, "s", 1, at_most=True),
        Figure("start of `nadi up` to its first acknowledgement", up, "s", 1, at_most=True),
    ]


def _median(measure: Callable[[int], float]) -> float:
    return statistics.median(map(measure, range(_TIMES)))


def _until_stored(program: str, argument: str) -> float:
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", program, argument], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n"
        return time.perf_counter() - began


def _up(folder: Path) -> float:
    """Measure with a running client: this process."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "nadi.cli.app", "up", "--data", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        uri = next(line.split()[-1] for line in lines if "controller" in line)
        with nadi.StreamManager(uri) as manager:
            open_stream(manager)
            with manager.create_writer(SCOPE, STREAM) as writer:
                writer.write_event(b"first").result()
                took = time.perf_counter() - began
        process.terminate()
    return took
