"""Short fuzz runs; `python -m tests.fuzz` runs long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("target", "inputs"), [("decoder", 3_000), ("handlers", 500), ("wire-port", 500), ("rpc-port", 300)]
)
def test_nothing_that_strangers_send_harms_the_server(target: str, inputs: int) -> None:
    assert f"{inputs:,} inputs" in fuzz("--target", target, "--inputs", str(inputs), "--seed", "3")


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_nothing_harms_it_in_a_million_inputs() -> None:
    fuzz("--inputs", "1000000", "--seed", "4")
