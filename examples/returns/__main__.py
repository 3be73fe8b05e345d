"""A join of two streams: a shop's returns with its sales of the thirty days before, exactly once, through a killed job.

The lines are real: three months of a British online shop (Online Retail II, see NOTICE). A producer writes them within
seconds, out of order, into the streams `sales` and `returns`. A Spark job joins them by customer, item and time into
the stream `pairs`; halfway it is killed (kill -9, with Spark) and restarted. A checker computes the same join in plain
Python and compares. The parts also run by hand: examples.returns.producer, .job and .checker.
"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from examples.programs import through_a_kill
from examples.returns.checker import PAIRS, read_and_compare, show
from examples.returns.producer import create_streams, produce, some_lines
from examples.running import ended, parser, place

console = Console(highlight=False)


def main() -> int:
    arguments = parser("examples.returns", __doc__)
    arguments.add_argument("--lines", type=int, metavar="N", help="the first N only (default: all 29,000)")
    arguments.add_argument("--seconds", type=float, default=20, help="to write them in (default: 20)")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    began = time.monotonic()
    lines = some_lines(options.lines)
    with place(options, "returns", console) as here:
        create_streams(here.manager, here.scope)
        here.manager.create_stream(here.scope, PAIRS, 2)
        job = ("examples.returns.job", ["--checkpoint", str(here.folder / "checkpoint")])
        write = (here.manager, here.scope, lines, options.seconds)
        through_a_kill(here, console, [job], lambda on_written: produce(*write, on_written), len(lines), PAIRS)
        verdict = read_and_compare(here.manager, here.scope)
    show(verdict, console)
    console.print(f"took {time.monotonic() - began:.0f} s")
    return verdict.is_right


if __name__ == "__main__":
    sys.exit(main())
