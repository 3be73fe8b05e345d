"""A chain of queries, each from one stream into the next, exactly once: the time from writing an event to reading it
after the last one."""

from __future__ import annotations

import threading
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from bench.spark.setting import SCOPE, Bench
from bench.spark.tally import Row

LENGTHS = (1, 2, 3)
_PAUSE_S = 0.01  # between two events
_LIMIT_S = 300


def chains(bench: Bench) -> list[Row]:
    """Measure p50 and p99 of one run of each length: of as many events as `batches`, ten times, after as many
    others."""
    rows = []
    for length in LENGTHS:
        waits = np.array(_waits(bench, length))
        name = f"chain of {length}, written to read"
        rows += [Row(f"{name}, p{part}", float(np.percentile(waits, part)), "ms") for part in (50, 99)]
    return rows


def _waits(bench: Bench, length: int) -> list[float]:
    """Return the waits in ms, by event."""
    streams = [f"chain-{length}-{number}" for number in range(length + 1)]
    for stream in streams:
        bench.manager.create_stream(SCOPE, stream)
    queries = [_query(bench, source, target) for source, target in pairwise(streams)]
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(_PAUSE_S):
            writer.write_event(b"%d" % time.time_ns(), "k")

    thread = threading.Thread(target=write, name="writes a chain's first stream")
    try:
        with bench.manager.create_writer(SCOPE, streams[0]) as writer:
            events = bench.manager.read_events(SCOPE, streams[-1], timeout=_LIMIT_S)
            writer.write_event(b"first", "k")
            next(events)  # the queries run
            thread.start()
            try:
                count = 10 * bench.sizes.batches  # tasks of several queries need more Python workers: Spark starts them
                waits = [(time.time_ns() - int(event.data)) / 1e6 for event in islice(events, 2 * count)]
                return waits[count:]
            finally:
                stop.set()
                thread.join()
    finally:
        for query in queries:
            query.stop()


def _query(bench: Bench, source: str, target: str) -> Any:
    writing = bench.read_stream(source).select("event").writeStream.format("nadi").options(**bench.options(target))
    return writing.option("checkpointLocation", str(Path(bench.folder) / "checkpoints" / uuid4().hex)).start()
