"""Many random damages: `python -m tests.damage --trials 1000 --seed 1`. Exits with 1 if any trial failed."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.damage.examine import BAD
from tests.damage.folder import make
from tests.damage.trial import Trial, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    kinds = "a kind of file: log, run, chunk, snapshot, store, epoch, rest; or several at a time: log+snapshot"
    parser.add_argument("--only", default="", help=kinds)
    parser.add_argument("--folder", type=Path, help="where the folders are; kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        where = options.folder or Path(scratch)
        where.mkdir(parents=True, exist_ok=True)
        for name, killed in (("stopped", False), ("killed", True)):
            if not (where / name).exists():
                make(where / name, killed=killed)
        table: Counter[tuple[str, str]] = Counter()
        bad = 0
        trials = [Trial(where, options.seed * 1_000_000 + number, options.only) for number in range(options.trials)]
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            for outcome in pool.imap(run, trials):
                table[outcome.kinds, outcome.text] += 1
                is_bad = outcome.verdict.outcome in BAD or (outcome.after is not None and outcome.after.outcome in BAD)
                bad += is_bad
                if is_bad or outcome.verdict.outcome == "refused":
                    print(outcome, flush=True)
        for (kinds, text), count in sorted(table.items()):
            print(f"{count:6}  {kinds:20} {text}")
        print(f"{options.trials} trials, {bad} bad")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
