"""One trial: a copy of a folder, one to four damages, a check; after a refused start, a repair and another check."""

from __future__ import annotations

import pickle
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.damage.examine import Verdict, examine, repair
from tests.damage.inflict import Damage, inflict

_TOGETHER = 0.15  # fraction of trials with several objects of a snapshot, perhaps both copies of one


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial determined by its seed, on the folders in `where`, created by `folder.make`. only: one kind of file, or
    several joined by "+", each of which gets some damage."""

    where: Path
    seed: int
    only: str = ""


@dataclass(slots=True)
class Outcome:
    """The damages, and the result; `after`: after the repair."""

    seed: int
    base: str
    damages: list[Damage]
    verdict: Verdict
    said: str = ""
    after: Verdict | None = None

    @property
    def kinds(self) -> str:
        return "+".join(sorted({damage.kind for damage in self.damages}))

    @property
    def text(self) -> str:
        return self.verdict.outcome + (f", repaired: {self.after.outcome}" if self.after else "")

    def __str__(self) -> str:
        notes = self.verdict.notes + (["after the repair: ", *self.after.notes] if self.after else [])
        damages = "; ".join(map(str, self.damages))
        return f"seed {self.seed}, {self.base}: {damages}\n  {self.text}: {' | '.join(notes)[:1500]}\n{self.said}"


def run(trial: Trial) -> Outcome:
    """Run the trial on a copy of one of its folders."""
    where, seed, only = trial.where, trial.seed, trial.only
    chance = random.Random(seed)
    base = chance.choice(["stopped", "killed"])
    ledger = pickle.loads((where / f"{base}.ledger").read_bytes())
    copy = where / f"trial-{seed}"
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-r", "--sparse=always", where / base, copy], check=True)
    try:
        kinds = only.split("+")
        if not only and chance.random() < _TOGETHER:
            kinds = ["snapshot", "snapshot"]
        chosen = [*kinds, *chance.choices(kinds, k=chance.choice([0, 0, 0, 1, 2]))]
        damages = [inflict(copy, chance, kind) for kind in chosen]
        outcome = Outcome(seed, base, damages, examine(copy, ledger))
        if outcome.verdict.outcome == "refused":
            code, outcome.said = repair(copy)
            if code == 0 or "a server can be started" in outcome.said:  # with reported losses
                outcome.after = examine(copy, ledger, may_lose=True, said=outcome.said)
            elif not _is_given_up(outcome.said, [damage.kind for damage in damages]):
                outcome.verdict.worse("REFUSED SOUND DATA", f"the repair ended with {code}")
        return outcome
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _is_given_up(said: str, kinds: list[str]) -> bool:
    """Return whether the damages hit an object and all its copies, and the repair says so (`docs/guarantees.md`)."""
    if "its snapshot " in said:
        return kinds.count("snapshot") > 1
    return "number of containers is unknown" in said and kinds.count("store") > 1
