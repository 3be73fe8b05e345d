"""A batch read: count and sum of lengths of 100-byte events, from 1, 4 and 16 segments, compared with Parquet of the
same and with the fastest source that Python can be; and their count, with all columns and with offsets alone, from
tier 2 by the tasks and through the server.

Spark reads only the requested column of the Parquet file; it doesn't pass this request to a source in Python, so nadi
is measured with `columns`, and without, where rows have all five. The fastest source hands out the same batches, ready
in the page cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bench.spark import ready
from bench.spark.setting import EVENT_BYTES, Bench, fill, settled
from bench.spark.tally import Row, Tally
from pyspark_nadi import DefaultSource

SEGMENTS = (1, 4, 16)
COUNTED = 4
ALL = f"batch read, {COUNTED} segments, all columns"
PARQUET = "batch read, Parquet"
READY = "batch read, ready batches in Python"
_OF_PARQUET, _OF_READY = 0.9, 0.95


def read(bench: Bench) -> list[Row]:
    for segments in SEGMENTS:
        fill(bench, f"read-{segments}", segments)
    settled(bench.folder)
    path = str(bench.folder / "rows.parquet")
    bench.read("read-4").write.mode("overwrite").parquet(path)
    sources: dict[str, Callable[[], Any]] = {PARQUET: partial(bench.spark.read.parquet, path)}
    for segments in SEGMENTS:
        name = f"batch read, {segments} segment{'s' if segments > 1 else ''}"
        sources[name] = partial(bench.read, f"read-{segments}", columns="event")
    sources[ALL] = partial(bench.read, f"read-{COUNTED}")
    sources[READY] = _ready(bench, f"read-{COUNTED}")
    tally = Tally("rows/s")
    for frame in sources.values():  # what Java has to compile is compiled in these
        for _ in range(2):
            _seconds(bench, frame())
    for _ in range(bench.sizes.runs):
        for name, frame in sources.items():
            tally.note(name, bench.sizes.rows / _seconds(bench, frame()))
    marks = {name: None if name in (ALL, READY) else _OF_PARQUET for name in sources if name != PARQUET}
    counted = f"batch read, {COUNTED} segments"
    of_ready = {row.name: row for row in tally.rows(READY, {counted: _OF_READY})}[counted]
    return [*tally.rows(PARQUET, marks), replace(of_ready, name=f"{counted}, of ready batches")]


def _ready(bench: Bench, stream: str) -> Callable[[], Any]:
    options = {**bench.options(stream), "columns": "event"}
    reader = DefaultSource(options).reader(bench.read(stream, columns="event").schema)
    parts = [list(reader.read(part)) for part in reader.partitions()]
    folder = ready.make(bench.folder / "ready", parts, parts[0][0].schema)
    return partial(bench.spark.read.format(ready.registered(bench.spark)).options(folder=str(folder)).load)


def counts(bench: Bench) -> list[Row]:
    """Measure `count()` alone."""
    stream, rows = f"count-{COUNTED}", bench.sizes.rows
    fill(bench, stream, COUNTED)
    settled(bench.folder)
    kinds = {
        "all columns": {},
        "offset": {"columns": "offset"},
        "all columns, through the server": {"direct": "never"},
        "offset, through the server": {"columns": "offset", "direct": "never"},
    }
    tally = Tally("rows/s")
    for done in range(2 + bench.sizes.runs):
        for name, options in kinds.items():
            began = time.perf_counter()
            found = bench.read(stream, **options).count()
            if found != rows:
                raise AssertionError(f"{found} of {rows} rows were counted")
            if done >= 2:  # what Java has to compile is compiled in the first ones
                tally.note(f"count of {name}", rows / (time.perf_counter() - began))
    return tally.rows("count of all columns", {"count of offset": None})


def _seconds(bench: Bench, frame: Any) -> float:
    began = time.perf_counter()
    (found,) = frame.selectExpr("count(1)", "sum(length(event))").collect()
    seconds = time.perf_counter() - began
    rows = bench.sizes.rows
    if tuple(found) != (rows, rows * EVENT_BYTES):
        raise AssertionError(f"{found} was read of {rows} rows")
    return seconds
