"""A short trial before verifiers: a few random faults, with all of nadi's and foreign clients."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster.foreign_clients.trial import KINDS, run_trial
from tests.cluster.foreign_clients.verifier import MissingError
from tests.compatibility.java_run import FIRST_JAVA_TIMEOUT_S

FAULTS = int(os.environ.get("NADI_CLUSTER_FAULTS", "4"))
pytestmark = [
    pytest.mark.crash,
    pytest.mark.compatibility,
    pytest.mark.slow,  # a minute or two, on both cores
    pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S + 900 + 60 * FAULTS),
]


@pytest.mark.parametrize("name", list(KINDS))
def test_random_faults_preserve_each_event_once_and_in_order(tmp_path: Path, name: str) -> None:
    seed = int(os.environ.get("NADI_CLUSTER_SEED", random.randrange(1 << 32)))
    try:
        verdict = run_trial(tmp_path, seed, FAULTS, [name], containers=6)
    except MissingError as error:
        pytest.skip(str(error))
    print(*verdict.lines, sep="\n")
    assert sum(verdict.happened.values()) == FAULTS


@pytest.mark.parametrize("way", ["roll", "roll_drained"])
def test_rolling_restart_preserves_all_events(tmp_path: Path, way: str) -> None:
    """As for an upgrade, with or without draining first."""
    seed = int(os.environ.get("NADI_CLUSTER_SEED", random.randrange(1 << 32)))
    verdict = run_trial(tmp_path, seed, 2, [], s3=False, containers=6, only=[way])
    print(*verdict.lines, sep="\n")
    assert verdict.happened == {way: 2}
