"""`script/bench cluster-handover` in its smallest form."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import moves


@pytest.mark.slow
def test_each_container_is_written_while_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "ROUNDS", 1)
    monkeypatch.setattr(moves, "_SETTLED_S", 0.2)
    figures = moves.hand_over(tmp_path, filled=50)
    assert all(0.0 < figure.value < 60.0 for figure in figures)
