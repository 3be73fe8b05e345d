"""`script/simulate`: many seeds at once, and the report of a failed one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import work
from .__main__ import main
from .judging.history import GuaranteeError

ROOT = Path(__file__).resolve().parents[2]


def test_several_seeds_run_in_separate_processes() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "3", "--minutes", "0.2", "--processes", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "3 seeds, 0 failed" in ran.stdout


def test_repeated_seed_has_the_same_trace_and_writes_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["5", "--minutes", "0.2", "--log"]
    assert main([*command, str(tmp_path / "one")]) == main([*command, str(tmp_path / "other")]) == 0
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()
    assert "ReadTable(" in (tmp_path / "one").read_text()
    traces = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed 5: trace ")]
    assert len(traces) == 2
    assert len(set(traces)) == 1


def test_failed_seed_is_reported_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulate(seed: int, *_: Any, **__: Any) -> Any:
        raise GuaranteeError(f"an event of {seed} was acknowledged but is missing")

    monkeypatch.setattr(work, "simulate", simulate)
    assert main(["--seeds", "2", "--first", "8", "--minutes", "0.5", "--processes", "1"]) == 1
    output = capsys.readouterr().out
    assert "seed 9 FAILED: GuaranteeError: an event of 9" in output
    assert "script/simulate 9 --minutes 0.5 --log 9.log" in output
    assert "2 seeds, 2 failed" in output
