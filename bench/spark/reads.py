"""A batch read: count and sum of lengths of 100-byte events, from 1, 4 and 16 segments, beside Parquet of the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.spark.setting import EVENT_BYTES, Bench, fill, settled
from bench.spark.tally import Row, Tally

SEGMENTS = (1, 4, 16)
PARQUET = "batch read, Parquet"
_OF_PARQUET = 0.9


def read(bench: Bench) -> list[Row]:
    for segments in SEGMENTS:
        fill(bench, f"read-{segments}", segments)
    settled(bench.folder)
    path = str(bench.folder / "rows.parquet")
    bench.read("read-4").write.mode("overwrite").parquet(path)
    sources: dict[str, Callable[[], Any]] = {PARQUET: partial(bench.spark.read.parquet, path)}
    for segments in SEGMENTS:
        name = f"batch read, {segments} segment{'s' if segments > 1 else ''}"
        sources[name] = partial(bench.read, f"read-{segments}")
    tally = Tally("rows/s")
    for frame in sources.values():  # what Java has to compile is compiled in these
        for _ in range(2):
            _seconds(bench, frame())
    for _ in range(bench.sizes.runs):
        for name, frame in sources.items():
            tally.note(name, bench.sizes.rows / _seconds(bench, frame()))
    return tally.rows(PARQUET, {name: _OF_PARQUET for name in sources if name != PARQUET})


def _seconds(bench: Bench, frame: Any) -> float:
    began = time.perf_counter()
    (found,) = frame.selectExpr("count(1)", "sum(length(event))").collect()
    seconds = time.perf_counter() - began
    rows = bench.sizes.rows
    if tuple(found) != (rows, rows * EVENT_BYTES):
        raise AssertionError(f"{found} was read of {rows} rows")
    return seconds
