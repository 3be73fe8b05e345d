"""The common setting of all parts: sizes, repetitions, one server, one tuned session, and data to read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import nadi
from bench.measure import KEYS
from bench.process import folder_bytes

SCOPE = "bench"
EVENT_BYTES = 100
CORES = 2
# so that history is in tier 2 soon, as that of a stream in use is
_LIMITS = "chunk_flush_age_s=1"
_PIECE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes. rows: of a read or a write; batches: the measured ones of a streaming query, after `warm` others;
    a_batch: rows of each at full speed; a_second: rows of real-time mode, for some seconds."""

    rows: int = 4_000_000
    batches: int = 60
    warm: int = 15
    a_batch: int = 1_000_000
    a_second: int = 5_000
    seconds: int = 10
    runs: int = 5


QUICK = Sizes(rows=50_000, batches=5, warm=2, a_batch=5_000, a_second=500, seconds=1, runs=1)


@dataclass(frozen=True, slots=True)
class Bench:
    """A server, a client, a session; reading: further options of nadi's reads."""

    uri: str
    manager: nadi.StreamManager
    spark: Any
    folder: Path
    sizes: Sizes
    reading: Mapping[str, str] = field(default_factory=dict)

    def options(self, stream: str) -> dict[str, str]:
        return {"controller": self.uri, "scope": SCOPE, "stream": stream}

    def read(self, stream: str, **more: str) -> Any:
        return self.spark.read.format("nadi").options(**{**self.options(stream), **self.reading, **more}).load()

    def read_stream(self, stream: str) -> Any:
        return self.spark.readStream.format("nadi").options(**self.options(stream), **self.reading).load()


@contextmanager
def opened(
    folder: Path, sizes: Sizes, reading: Mapping[str, str], spark: Any = None, jars: Sequence[Path] = ()
) -> Iterator[Bench]:
    """Open a bench in an empty folder; spark: an existing session, jars: those of a new one."""
    environment = {"NADI_LIMITS": _LIMITS}
    with (
        nadi.embedded(folder / "server", environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope(SCOPE)
        session = spark or new_session(jars)
        try:
            yield Bench(server.controller_uri, manager, session, folder, sizes, reading)
        finally:
            if spark is None:
                session.stop()


def new_session(jars: Sequence[Path] = ()) -> Any:
    """Start a tuned session of two cores; jars: besides Spark's own."""
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    builder = tuned(SparkSession.builder.master(f"local[{CORES}]").appName("bench"))
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def fill(bench: Bench, stream: str, segments: int) -> None:
    """Create a stream with `rows` random events, all of them soon in tier 2."""
    bench.manager.create_stream(SCOPE, stream, segments)
    borders = pa.py_buffer(np.arange(0, (_PIECE_ROWS + 1) * EVENT_BYTES, EVENT_BYTES, dtype=np.int32))
    keys = pa.array([KEYS[number % len(KEYS)] for number in range(_PIECE_ROWS)])
    left = bench.sizes.rows
    with bench.manager.create_writer(SCOPE, stream) as writer:
        while left:
            count = min(left, _PIECE_ROWS)
            chance = pa.py_buffer(os.urandom(_PIECE_ROWS * EVENT_BYTES))  # no two alike: Parquet would keep one
            events = pa.Array.from_buffers(pa.binary(), _PIECE_ROWS, [None, borders, chance])
            writer.write_batch(events.slice(0, count), keys.slice(0, count))
            left -= count
        writer.flush()


def settled(folder: Path, limit_s: float = 60.0) -> None:
    """Wait until tiering has finished: until nothing new was tiered for some time."""
    end, before, since = time.monotonic() + limit_s, -1, time.monotonic()
    while time.monotonic() < end:
        now = folder_bytes(folder / "server" / "tier2" / "container-0")
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > 3:
            return
        time.sleep(0.2)
