"""`python -m tests.soak --minutes 5`: readers of a group are killed at random; a seed determines the actions."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

from tests.soak.run import Soak, seed_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--rate", type=int, default=1000, help="events per second; each takes about 300 bytes of memory"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder where server data and notes are kept")
    arguments = parser.parse_args()
    seed = arguments.seed or seed_of("NADI_SOAK_SEED")
    print(f"seed {seed}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        print(Soak(folder, arguments.minutes * 60, seed, arguments.rate).run())


if __name__ == "__main__":
    main()
