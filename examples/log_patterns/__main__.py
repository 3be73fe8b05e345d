"""Error patterns in log lines over windows of five minutes, exactly once, through a killed job.

A producer writes an hour and a half of log lines of five services within seconds, out of order and some of them late,
into the stream `lines`. A Spark job counts the errors by window, service and kind, into the stream `patterns`; halfway
it is killed (kill -9, with Spark) and restarted. A checker computes the same counts in plain Python and compares. The
parts also run by hand: examples.log_patterns.producer, .job and .checker.
"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from examples.log_patterns.checker import PATTERNS, read_and_compare, show
from examples.log_patterns.producer import LINES, produce
from examples.programs import through_a_kill
from examples.running import ended, parser, place

console = Console(highlight=False)


def main() -> int:
    arguments = parser("examples.log_patterns", __doc__)
    arguments.add_argument("--minutes", type=float, default=90, help="of log, 20 or more (default: 90)")
    arguments.add_argument("--a-minute", type=int, default=400, help="lines in each (default: 400)")
    arguments.add_argument("--seconds", type=float, default=20, help="to write them in (default: 20)")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    began = time.monotonic()
    with place(options, "log-patterns", console) as here:
        here.manager.create_stream(here.scope, LINES, 3)
        here.manager.create_stream(here.scope, PATTERNS, 2)
        job = ("examples.log_patterns.job", ["--checkpoint", str(here.folder / "checkpoint")])
        size = (options.minutes, options.a_minute, options.seconds)
        total = int(options.minutes * options.a_minute)
        through_a_kill(
            here,
            console,
            [job],
            lambda on_written: produce(here.manager, here.scope, *size, on_written),
            total,
            PATTERNS,
        )
        verdict = read_and_compare(here.manager, here.scope)
    show(verdict, console)
    console.print(f"took {time.monotonic() - began:.0f} s")
    return verdict.is_right


if __name__ == "__main__":
    sys.exit(main())
