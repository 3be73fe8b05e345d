"""Ten seeds of a server with short, eventful simulations, in every test run; four of a cluster."""

from __future__ import annotations

import pytest

from .seeds import DENSE, quiet
from .work import simulate


@pytest.mark.timeout(900)  # ten seconds on an idle machine
@pytest.mark.parametrize("first", [1_000, pytest.param(1_010, marks=pytest.mark.slow)])
def test_server_keeps_its_guarantees(first: int) -> None:
    with quiet():
        for seed in range(first, first + 10):
            simulate(seed, DENSE.seconds, pace=DENSE.pace)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(1_200, 1_400, 25))
def test_server_keeps_its_guarantees_for_ten_minutes(first: int) -> None:
    with quiet():
        for seed in range(first, first + 25):
            simulate(seed, 600.0)
