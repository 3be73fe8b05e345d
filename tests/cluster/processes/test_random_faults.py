"""Random faults with real processes: kills, pauses, stops and cuts in any order."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster.processes.random_faults import run_faults

KILLS = int(os.environ.get("NADI_CLUSTER_KILLS", "30"))
pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(120 + 40 * KILLS)]


@pytest.mark.parametrize("s3", [False, True], ids=["folder", "s3"])
def test_random_faults_break_no_acknowledgement(tmp_path: Path, s3: bool) -> None:
    seed = int(os.environ.get("NADI_CLUSTER_SEED", random.randrange(1 << 32)))
    run_faults(tmp_path, seed, KILLS, s3=s3)
