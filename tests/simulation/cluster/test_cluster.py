"""A whole cluster under simulated clocks, stores and networks: its guarantees hold whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..seeds import DENSE_CLUSTER, quiet
from .work import simulate

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(900)  # a quarter of a minute on an idle machine
@pytest.mark.parametrize(
    "first", [3_000, *(pytest.param(first, marks=pytest.mark.slow) for first in range(3_004, 3_096, 4))]
)
def test_cluster_keeps_its_guarantees(first: int) -> None:
    with quiet():
        for seed in range(first, first + 4):
            simulate(seed, DENSE_CLUSTER.seconds, pace=DENSE_CLUSTER.pace)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(3_100, 3_400, 25))
def test_cluster_keeps_its_guarantees_for_ten_minutes(first: int) -> None:
    with quiet():
        for seed in range(first, first + 25):
            simulate(seed, 600.0)


@pytest.mark.slow
def test_equal_seeds_repeat_in_every_process() -> None:
    """Earlier simulations in the process make no difference."""
    code = (
        "import sys; from tests.simulation.cluster.work import simulate; "
        "print(*(f'{seed} {simulate(seed, 4.0, pace=0.1).trace}' for seed in sys.argv[1:]), sep='\\n')"
    )
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])

    def traces(hashing: int, *seeds: str) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": f"{hashing}", "PYTHONPATH": path}
        command = [sys.executable, "-c", code, *seeds]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    first = traces(1, "9", "11", "24")  # each starts with another plot
    assert len(set(first)) == 3
    assert traces(2, "24", "11", "9") == first[::-1]
