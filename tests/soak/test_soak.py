"""Ten seconds of the soak; NADI_SOAK_SECONDS and NADI_SOAK_SEED lengthen or repeat it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.run import Soak, seed_of

SECONDS = float(os.environ.get("NADI_SOAK_SECONDS", "10"))


@pytest.mark.crash
@pytest.mark.timeout(SECONDS + 300)
def test_readers_of_a_group_killed_at_random(tmp_path: Path) -> None:
    seed = seed_of("NADI_SOAK_SEED")
    print(f"NADI_SOAK_SEED={seed}")
    # readers must not count as dead on a machine that pauses for seconds
    print(Soak(tmp_path, SECONDS, seed, dead_after_ms=8000).run())
