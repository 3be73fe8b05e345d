"""Run seeds again: python -m tests.simulation SEED [SEED...] [--seconds N]; a failing one tells what happened last."""

from __future__ import annotations

import argparse
import logging
import time

from .work import simulate

parser = argparse.ArgumentParser()
parser.add_argument("seeds", type=int, nargs="+")
parser.add_argument("--seconds", type=float, default=300.0, help="of simulated time")
parser.add_argument("--pace", type=float, default=1.0, help="how many times slower all of it happens")
arguments = parser.parse_args()
logging.disable(logging.ERROR)
for seed in arguments.seeds:
    began = time.perf_counter()
    print(
        seed,
        simulate(seed, arguments.seconds, pace=arguments.pace, tell=True),
        f"in {time.perf_counter() - began:.1f} s",
        flush=True,
    )
