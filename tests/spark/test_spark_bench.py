"""The benchmark of Spark in its smallest form: every part gives its figures, with ratios where it has a mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.spark import forms
from bench.spark.setting import Sizes
from bench.spark.tally import Row

TINY = Sizes(rows=2_000, batches=2, warm=1, a_batch=500, runs=1)


def figures_of(parts: list[str], folder: Path, spark: Any) -> dict[str, Row]:
    return {row.name: row for _, rows in forms.measured(parts, TINY, {}, folder, spark) for row in rows}


def test_reads_and_micro_batches_have_ratios(spark: Any, tmp_path: Path) -> None:
    found = figures_of(["read", "count", "batch"], tmp_path, spark)
    assert all(row.value > 0 for row in found.values())
    assert {name for name, row in found.items() if row.ratio is not None and row.mark is not None} == {
        "batch read, 1 segment",
        "batch read, 4 segments",
        "batch read, 16 segments",
        "micro-batch",
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_streams_writes_and_a_new_session_have_figures(spark: Any, tmp_path: Path) -> None:
    found = figures_of(["stream", "chain", "write", "first"], tmp_path, spark)
    assert all(row.value > 0 for row in found.values())
    assert {name for name, row in found.items() if row.mark is not None} == {
        "stream to stream, exactly once",
        "streaming write, exactly once",
        "first row of a stream",
    }
