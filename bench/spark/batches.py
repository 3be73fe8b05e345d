"""Micro-batches with hardly any rows, compared with Spark's `rate-micro-batch` source, and one in Python that reads
nothing: p50 of a trigger.

Batches follow each other at once; the measured ones had rows, and come after some that aren't measured.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.spark.nothing import registered
from bench.spark.setting import SCOPE, Bench
from bench.spark.tally import Row, Tally

RATE = "micro-batch, Spark's rate"
_OF_RATE, _STREAMS_OF_RATE = 1.15, 2.5
_PAUSE_S = 0.005  # between two events of those that a query reads
_LIMIT_S = 300


def batches(bench: Bench) -> list[Row]:
    """Measure a query that drops its rows."""
    bench.manager.create_stream(SCOPE, "source")
    tally, name = Tally("ms"), "micro-batch"
    nothing = bench.spark.readStream.format(registered(bench.spark)).load()
    with written(bench, "source"):
        for _ in range(bench.sizes.runs):
            tally.note(RATE, p50(bench, rate(bench, 10).writeStream.format("noop")))
            tally.note(f"{name}, a source that reads nothing", p50(bench, nothing.writeStream.format("noop")))
            tally.note(name, p50(bench, bench.read_stream("source").writeStream.format("noop")))
    return tally.rows(RATE, {name: _OF_RATE}, at_most=True)


def streams(bench: Bench) -> list[Row]:
    """Measure a query from one stream into another, exactly once."""
    for stream in ("from", "to"):
        bench.manager.create_stream(SCOPE, stream)
    tally, name = Tally("ms"), "stream to stream, exactly once"
    nothing = registered(bench.spark)
    with written(bench, "from"):
        for _ in range(bench.sizes.runs):
            tally.note(RATE, p50(bench, rate(bench, 10).writeStream.format("noop")))
            empty = bench.spark.readStream.format(nothing).load().writeStream.format(nothing)
            tally.note("a source and a sink that do nothing", p50(bench, empty))
            events = bench.read_stream("from").select("event")
            tally.note(name, p50(bench, events.writeStream.format("nadi").options(**bench.options("to"))))
    return tally.rows(RATE, {name: _STREAMS_OF_RATE}, at_most=True)


def rate(bench: Bench, rows: int, partitions: int = 1) -> Any:
    """Measure batches with that many rows, one after the other."""
    source = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return source.option("numPartitions", partitions).load()


def progress_of(bench: Bench, writing: Any, most: int | None = None) -> list[dict[str, Any]]:
    """Return the progress of the measured batches of a new query, at most `most`, after a third as many others."""
    warm, count = bench.sizes.warm, bench.sizes.batches
    if most is not None and most < count:
        warm, count = most // 3, most
    checkpoint = Path(bench.folder) / "checkpoints" / uuid4().hex
    query = writing.option("checkpointLocation", str(checkpoint)).start()
    end = time.monotonic() + _LIMIT_S
    found: dict[int, dict[str, Any]] = {}
    try:
        while len(found) < warm + count:
            if query.exception() is not None:
                raise query.exception()
            if time.monotonic() > end:
                raise TimeoutError(f"{len(found)} batches in {_LIMIT_S} s")
            found |= {one["batchId"]: one for one in query.recentProgress if one["numInputRows"]}
            time.sleep(0.02)
    finally:
        query.stop()
    return [found[number] for number in sorted(found)][warm:]


def p50(bench: Bench, writing: Any) -> float:
    """Return p50 of a trigger of a new query, in ms."""
    return float(statistics.median(one["durationMs"]["triggerExecution"] for one in progress_of(bench, writing)))


@contextmanager
def written(bench: Bench, stream: str) -> Iterator[None]:
    """Write an event at times, from another thread, while the block runs."""
    stop = threading.Event()

    def write() -> None:
        with bench.manager.create_writer(SCOPE, stream) as writer:
            number = 0
            while not stop.wait(_PAUSE_S):
                writer.write_event(b"%020d" % number, f"{number % 10}")
                number += 1

    thread = threading.Thread(target=write, name=f"writes {stream}")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
