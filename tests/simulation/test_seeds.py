"""`script/simulate`: many seeds at once, and what it says of one that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import work
from .__main__ import main
from .judging.history import BrokenWordError

ROOT = Path(__file__).resolve().parents[2]


def test_several_seeds_run_in_processes_of_their_own() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "3", "--minutes", "0.2", "--processes", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "3 seeds, 0 failed" in ran.stdout


def test_one_again_does_the_same_and_leaves_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["5", "--minutes", "0.2", "--log"]
    assert main([*command, str(tmp_path / "one")]) == main([*command, str(tmp_path / "other")]) == 0
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()
    assert "ReadTable(" in (tmp_path / "one").read_text()
    traces = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed 5: trace ")]
    assert len(traces) == 2
    assert len(set(traces)) == 1


def test_a_seed_that_failed_is_named_with_what_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulate(seed: int, *_: Any, **__: Any) -> Any:
        raise BrokenWordError(f"an event of {seed} was acknowledged, and is not there")

    monkeypatch.setattr(work, "simulate", simulate)
    assert main(["--seeds", "2", "--first", "8", "--minutes", "0.5", "--processes", "1"]) == 1
    said = capsys.readouterr().out
    assert "seed 9 FAILED: BrokenWordError: an event of 9 was acknowledged, and is not there" in said
    assert "script/simulate 9 --minutes 0.5 --log 9.log" in said
    assert "2 seeds, 2 failed" in said
