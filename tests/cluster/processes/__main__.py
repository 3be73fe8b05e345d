"""The long form: a cluster to which so many things happen as are asked for.

    python -m tests.cluster.processes --kills 200 --store s3

A seed gives what happens, and for how long, but not when it happens to threads and processes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.cluster.processes.story import tell


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.processes", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills, pauses, cuts, stops and the like (default 20)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=("folder", "s3"), default="s3", help="what the servers share (default s3)")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.randrange(1 << 32)
    folder, began = Path(tempfile.mkdtemp(prefix="nadi-cluster-")), time.monotonic()
    print(f"seed {seed}, in {folder}", flush=True)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {text}", flush=True)

    story = tell(folder, seed, asked.kills, s3=asked.store == "s3", say=say)
    waited_s = sorted(story.waited_s)
    say(
        f"{dict(story.happened)}; until all had acknowledgements again: median {statistics.median(waited_s):.2f} s, "
        f"most {waited_s[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
