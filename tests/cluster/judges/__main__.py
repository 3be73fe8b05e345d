"""A cluster of three servers to which so many things happen as are asked for, before judges.

    python -m tests.cluster.judges --faults 200 --with java,python,spark
    python -m tests.cluster.judges --faults 6 --only roll,roll_drained --with python

A seed gives what happens, and for how long, but not when it happens to threads and processes.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path

from tests.cluster.judges.jury import KINDS, tell
from tests.cluster.processes.faults import WAYS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.judges", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="kills, pauses, cuts, stops and the like (default 20)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these nothing more happens")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=("folder", "s3"), default="s3", help="what the servers share (default s3)")
    parser.add_argument("--containers", type=int, default=8)
    parser.add_argument("--with", dest="judges", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--only", default="", help=f"what may happen, of {', '.join(WAYS)} (default: all)")
    asked = parser.parse_args()
    only = [name for name in asked.only.split(",") if name]
    if unheard := set(only) - set(WAYS):
        parser.error(f"nothing is called {', '.join(sorted(unheard))}; there are {', '.join(WAYS)}")
    names = [name for name in asked.judges.split(",") if name]
    if unknown := set(names) - KINDS.keys():
        parser.error(f"there is no judge {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    seed = asked.seed if asked.seed is not None else random.randrange(1 << 32)
    folder, began = Path(tempfile.mkdtemp(prefix="nadi-judges-")), time.monotonic()
    print(f"seed {seed}, in {folder}", flush=True)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {text}", flush=True)

    verdict = tell(
        folder,
        seed,
        asked.faults,
        names,
        s3=asked.store == "s3",
        containers=asked.containers,
        limit_s=60.0 * asked.minutes,
        say=say,
        only=only,
    )
    for line in verdict.lines:
        say(line)


if __name__ == "__main__":
    main()
