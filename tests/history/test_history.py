"""A short history: each fault once, with all installed engines."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.history.readings import Readings, Total

ROUNDS = int(os.environ.get("NADI_HISTORY_ROUNDS", "9"))


def test_total_is_the_sum_across_repetitions() -> None:
    readings = Readings(3)
    meter, last = "main1", 30_000
    values = [readings.of(meter, n).wm for n in range(last)]
    assert readings.total(meter, last) == Total(last, sum(values))
    assert readings.between(meter, 10, 29_000) == Total(28_990, sum(values[10:29_000]))
    first = [readings.reading(number) for number in range(100)]
    for name in readings.meters:
        assert [reading.n for reading in first if reading.meter == name] == list(range(readings.counts(100)[name]))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.parametrize("engines", ["all but Spark", pytest.param("all", marks=pytest.mark.spark)])
def test_all_engines_agree_in_spite_of_faults(tmp_path: Path, engines: str) -> None:
    for needed in ("pyiceberg", "sqlalchemy", "tantivy", "duckdb", "polars"):
        pytest.importorskip(needed)
    from tests.history.judge import has_spark, run_history

    with_spark = engines == "all"
    if with_spark and not has_spark():
        pytest.skip("Spark isn't installed, or can't read lakes")
    seed = int(os.environ.get("NADI_HISTORY_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    history = run_history(tmp_path, seed, ROUNDS, rate=500.0, pause_s=0.5, with_spark=with_spark, say=print)
    assert sum(history.done.values()) > ROUNDS // 2
