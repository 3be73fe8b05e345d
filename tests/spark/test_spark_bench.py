"""The benchmark of Spark in its smallest form: every part gives its figures, with ratios where it has a mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.spark import forms
from bench.spark.setting import QUICK, Sizes
from bench.spark.tally import Row

TINY = Sizes(rows=2_000, batches=2, warm=1, a_batch=500, runs=1)


def figures_of(parts: list[str], folder: Path, spark: Any, sizes: Sizes = TINY) -> dict[str, Row]:
    return {row.name: row for _, rows in forms.measured(parts, sizes, {}, folder, spark) for row in rows}


def test_every_part_gives_its_figures(spark: Any, tmp_path: Path) -> None:
    found = figures_of(["read", "batch", "stream", "write"], tmp_path, spark)
    assert all(row.value > 0 for row in found.values())
    assert {name for name, row in found.items() if row.mark is not None} == {
        "batch read, 1 segment",
        "batch read, 4 segments",
        "batch read, 16 segments",
        "micro-batch",
        "stream to stream, exactly once",
        "streaming write, exactly once",
    }
    assert all((row.ratio is None) == (row.mark is None or row.mark > 10) for row in found.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_new_session_has_its_first_row(spark: Any, tmp_path: Path) -> None:
    assert figures_of(["first"], tmp_path, spark, QUICK)["first row of a new session"].value > 0
