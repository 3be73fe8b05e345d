"""Long form of the test: a cluster with a given number of faults.

    python -m tests.cluster.processes --kills 200 --store s3

The seed determines the faults and their durations, but not their timing within threads and processes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.cluster.processes.random_faults import run_faults


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.processes", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills, pauses, cuts, stops and the like (default 20)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=("folder", "s3"), default="s3", help="kind of shared store (default s3)")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    folder, began = Path(tempfile.mkdtemp(prefix="nadi-cluster-")), time.monotonic()
    print(f"seed {seed}, in {folder}", flush=True)

    def log(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {text}", flush=True)

    run = run_faults(folder, seed, arguments.kills, s3=arguments.store == "s3", say=log)
    waited_s = sorted(run.waited_s)
    log(
        f"{dict(run.happened)}; time until all clients had acknowledgements: median "
        f"{statistics.median(waited_s):.2f} s, maximum {waited_s[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
