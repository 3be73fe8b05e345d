"""Runs a cluster of three servers with a given number of faults, verified by several clients.

    python -m tests.cluster.foreign_clients --faults 200 --with java,python,spark
    python -m tests.cluster.foreign_clients --faults 6 --only roll,roll_drained --with python

The seed determines the faults and their durations, but not their timing within threads and processes.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path

from tests.cluster.foreign_clients.trial import KINDS, run_trial
from tests.cluster.processes.faults import WAYS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.foreign_clients", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="kills, pauses, cuts, stops and the like (default 20)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit for starting new faults")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=("folder", "s3"), default="s3", help="kind of shared store (default s3)")
    parser.add_argument("--containers", type=int, default=8)
    parser.add_argument(
        "--with", dest="verifiers", default=",".join(KINDS), help=f"verifiers: {', '.join(KINDS)} (default: all)"
    )
    parser.add_argument("--only", default="", help=f"allowed faults: {', '.join(WAYS)} (default: all)")
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name]
    if unknown_faults := set(only) - set(WAYS):
        parser.error(f"unknown faults {', '.join(sorted(unknown_faults))}: use {', '.join(WAYS)}")
    names = [name for name in arguments.verifiers.split(",") if name]
    if unknown := set(names) - KINDS.keys():
        parser.error(f"unknown verifiers {', '.join(sorted(unknown))}: use {', '.join(KINDS)}")
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    folder, began = Path(tempfile.mkdtemp(prefix="nadi-clients-")), time.monotonic()
    print(f"seed {seed}, in {folder}", flush=True)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {text}", flush=True)

    verdict = run_trial(
        folder,
        seed,
        arguments.faults,
        names,
        s3=arguments.store == "s3",
        containers=arguments.containers,
        limit_s=60.0 * arguments.minutes,
        say=say,
        only=only,
    )
    for line in verdict.lines:
        say(line)


if __name__ == "__main__":
    main()
