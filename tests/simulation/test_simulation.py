"""A whole server under simulated clocks: its guarantees hold over many kills, and equal seeds repeat exactly."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nadi import limits
from nadi.segmentstore import storage_writer

from .work import simulate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log: servers log a lot about kills and failing disks."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_server_keeps_its_guarantees_over_an_hour_with_kills(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "STORAGE_WRITER_TICK_S", 2.0)  # polling dominates an idle hour
    monkeypatch.setattr(limits, "TXN_TICK_MS", 2_000)
    outcome = simulate(seed, 3600.0, pace=10.0)
    assert outcome.seconds >= 3600.0
    assert outcome.kills >= 3
    assert outcome.events > 100
    assert outcome.committed > 3
    assert outcome.counted > 30
    assert outcome.truncations > 0
    assert outcome.watermarks > 10


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_server_keeps_its_guarantees_with_kills_every_minute(seed: int) -> None:
    assert simulate(seed, 300.0).kills >= 2


def test_equal_seeds_repeat_in_every_process() -> None:
    code = (
        "import sys; from tests.simulation.work import simulate; "
        "print(*(simulate(seed, 20.0).trace for seed in sys.argv[1:]), sep='\\n')"
    )
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])

    def traces(hashing: int, *seeds: str) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": f"{hashing}", "PYTHONPATH": path}
        command = [sys.executable, "-c", code, *seeds]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    first, other = traces(1, "4", "5")
    assert first != other
    assert traces(2, "4") == [first]
