"""Rows per second into a stream, exactly once: of a batch write, and of a streaming query with large batches."""

from __future__ import annotations

import time
from typing import Any

from bench.spark.batches import progress_of, rate
from bench.spark.setting import SCOPE, Bench
from bench.spark.tally import Row, Tally

BATCH, STREAMING = "batch write, exactly once", "streaming write, exactly once"
_STREAMING_ROWS_S = 1_000_000
_MOST_BATCHES = 10  # of a million rows each they take their time
_EVENT = "cast(lpad(cast(id AS string), 100, '0') AS binary) AS event"
SEGMENTS = 4


def writes(bench: Bench) -> list[Row]:
    for stream in ("batch", "streaming"):
        bench.manager.create_stream(SCOPE, stream, SEGMENTS)
    tally = Tally("rows/s")
    for number in range(bench.sizes.runs + 1):
        values = _batch(bench), _streaming(bench)
        if number:  # the first round is for Java's compiler
            for name, value in zip((BATCH, STREAMING), values, strict=True):
                tally.note(name, value)
    batch, streaming = tally.rows("", {})
    return [batch, Row(streaming.name, streaming.value, streaming.unit, None, _STREAMING_ROWS_S)]


def _batch(bench: Bench) -> float:
    rows = bench.spark.range(0, bench.sizes.rows, 1, 4).selectExpr(_EVENT)
    began = time.perf_counter()
    rows.write.format("nadi").mode("append").options(**bench.options("batch")).save()
    return float(bench.sizes.rows / (time.perf_counter() - began))


def _streaming(bench: Bench) -> float:
    source = rate(bench, bench.sizes.a_batch, 2).selectExpr("value AS id").selectExpr(_EVENT)
    found: list[dict[str, Any]] = progress_of(
        bench, source.writeStream.format("nadi").options(**bench.options("streaming")), _MOST_BATCHES
    )
    seconds = sum(one["durationMs"]["triggerExecution"] for one in found) / 1000
    return float(sum(one["numInputRows"] for one in found) / seconds)
