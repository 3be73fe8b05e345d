"""Random damages to the folders of a stopped and of a killed server; `python -m tests.damage` runs many.

NADI_DAMAGE_TRIALS and NADI_DAMAGE_SEED lengthen or repeat a run.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.damage.examine import BAD, examine
from tests.damage.folder import make
from tests.damage.inflict import KINDS
from tests.damage.trial import Trial, run

TRIALS = int(os.environ.get("NADI_DAMAGE_TRIALS", "2"))
SEED = int(os.environ.get("NADI_DAMAGE_SEED", "1"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("damage")
    for name, killed in (("stopped", False), ("killed", True)):
        make(where / name, killed=killed, events=1_200)
    return where


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_random_damage_is_never_read_as_valid_and_losses_are_reported(folders: Path) -> None:
    trials = [Trial(folders, SEED * 1_000_000 + number) for number in range(TRIALS)]
    kinds = [Trial(folders, SEED * 1_000_000 + TRIALS + number, kind) for number, kind in enumerate(KINDS)]
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(run, trials + kinds))
    bad = [
        str(outcome)
        for outcome in outcomes
        if outcome.verdict.outcome in BAD or (outcome.after is not None and outcome.after.outcome in BAD)
    ]
    assert not bad, "\n\n".join(bad)


def test_examine_detects_wrong_results(folders: Path) -> None:
    ledger = make(folders / "small", killed=False, events=60)
    segment, offset, data = ledger.streams["steady"][5]
    ledger.streams["steady"][5] = (segment, offset, data[:-1] + b"?")
    ledger.streams["events"].append((segment, 1_000_000, b"never written"))
    verdict = examine(folders / "small", ledger)
    assert verdict.outcome == "WRONG"
    assert any("gone unsaid" in note for note in verdict.notes)
