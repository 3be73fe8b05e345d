"""A household's history as stream, lake and index, to which so much happens as is asked for, and all engines' answers.

    python -m tests.history --rounds 60 --seed 7

A seed gives what happens, and which readings there are, but not when it happens to threads and processes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from tests.history.judge import has_spark, tell


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("--rounds", type=int, default=24, help="in each, a kill, a split, a merge or a truncation")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=1000.0, help="readings a second, about")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two rounds at most")
    parser.add_argument("--no-spark", action="store_true", help="without Spark among those asked")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.randrange(1 << 32)
    folder, began = Path(tempfile.mkdtemp(prefix="nadi-history-")), time.monotonic()
    print(f"seed {seed}, in {folder}", flush=True)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {text}", flush=True)

    with_spark = has_spark() and not asked.no_spark
    told = tell(folder, seed, asked.rounds, rate=asked.rate, pause_s=asked.pause, with_spark=with_spark, say=say)
    for line in told.lines():
        say(line)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
