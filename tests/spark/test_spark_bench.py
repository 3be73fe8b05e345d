"""The smallest form of Spark's benchmark: every part has figures, with ratios where it has a reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.kafka import jars
from bench.spark import forms
from bench.spark.setting import Sizes

TINY = Sizes(rows=2_000, batches=2, warm=1, a_batch=500, runs=1)


READS = {f"batch read, {number} segment{'s' * (number > 1)}" for number in (1, 4, 16)} | {
    "batch read, 4 segments, of ready batches"
}
WRITES = {"stream to stream, exactly once", "streaming write, exactly once", "first row of a stream"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("parts", "marked"),
    [(["read", "count", "batch"], READS | {"micro-batch"}), (["stream", "chain", "write", "first"], WRITES)],
)
def test_parts_have_figures_and_marks(spark: Any, tmp_path: Path, parts: list[str], marked: set[str]) -> None:
    measured = forms.measured(parts, TINY, {}, tmp_path, spark)
    found = {row.name: row for _, rows in measured for row in rows}
    assert all(row.value > 0 for row in found.values())
    assert {name for name, row in found.items() if row.mark is not None} == marked
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_comparison_with_sparks_kafka_source(tmp_path: Path) -> None:
    for kind in (jars.SPARK, jars.BROKER):
        try:
            jars.jars_of(kind)
        except jars.Missing as error:
            pytest.skip(str(error))
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench", "spark", "kafka", "real-time", "--quick", "--data", str(tmp_path)]
    subprocess.run([*command, "--json", str(found)], check=True, timeout=300, cwd=Path(__file__).parents[2])
    rows = json.loads(found.read_text())
    assert len(rows) == 8 + 12
    assert all(row["value"] > 0 for row in rows)
