"""The bench of splits, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.splits import COUNTS, Load, splits


@pytest.mark.slow  # nine processes start
def test_splits_are_measured(tmp_path: Path) -> None:
    figures = splits(tmp_path, Load(events=40_000, turns=1_000))
    found = {figure.name: figure.value for figure in figures}
    assert len(found) == len(figures), "names tell figures apart"
    largest = [figure for figure in figures if figure.name.startswith("largest of ")]
    assert len(largest) == len(COUNTS)
    assert all(1 <= figure.value < 1.1 for figure in largest)
    for name in ("raw events", "typed JSON"):
        one, two = (found[f"splits of {name}, {count}"] for count in ("one process", "two processes"))
        assert 0.1 < one < 100_000
        assert found[f"splits of {name}, two processes over one"] == pytest.approx(two / one)
        assert found[f"splits of {name}, the readers' CPU"] > 0.01
    assert found["counting, two processes over one"] > 0
