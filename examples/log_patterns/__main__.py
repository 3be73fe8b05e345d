"""Error patterns in log lines over windows of five minutes, exactly once, through a killed job.

A producer writes an hour and a half of the log lines of five services within some seconds, out of order and some of
them late, into the stream `lines`. A Spark job counts the errors by window, service and kind, into the stream
`patterns`; in the middle it is killed (kill -9, Spark and all) and started again. A checker computes the same plainly
and compares. The parts are programs that also run by hand: examples.log_patterns.producer, .job and .checker.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

from rich.console import Console

from examples.log_patterns.checker import PATTERNS, read_and_compare, show
from examples.log_patterns.producer import LINES, produce
from examples.running import Place, Program, bars, ended, parser, place, wait_for

console = Console(highlight=False)


def main() -> int:
    made = parser("examples.log_patterns", __doc__)
    made.add_argument("--minutes", type=float, default=90, help="of log, 20 or more (default: 90)")
    made.add_argument("--a-minute", type=int, default=400, help="lines in each (default: 400)")
    made.add_argument("--seconds", type=float, default=20, help="to write them in (default: 20)")
    options = made.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    began = time.monotonic()
    with place(options, "log-patterns", console) as here:
        here.manager.create_stream(here.scope, LINES, 3)
        here.manager.create_stream(here.scope, PATTERNS, 2)
        _count(here, options)
        verdict = read_and_compare(here.manager, here.scope)
    show(verdict, console)
    console.print(f"took {time.monotonic() - began:.0f} s")
    return verdict.is_right


def _count(here: Place, options: argparse.Namespace) -> None:
    """Have the lines written while the job counts them; the job is killed once it has told of some windows."""
    arguments = ["--controller", here.controller, "--scope", here.scope, "--checkpoint", str(here.folder / "job")]
    job = "examples.log_patterns.job"
    total = int(options.minutes * options.a_minute)
    with bars(console) as progress:
        written = progress.add_task("lines written", total=total)
        told = progress.add_task("counts of errors found by Spark", total=None)

        def has_more(than: int) -> bool:
            count = len(here.events(PATTERNS))
            progress.update(told, completed=count)
            return count > than

        def write() -> None:
            size = (options.minutes, options.a_minute, options.seconds)
            produce(here.manager, here.scope, *size, lambda count: progress.advance(written, count))

        writing = threading.Thread(target=write, name="producer", daemon=True)
        with Program(here.folder, job, *arguments) as first:
            progress.update(told, description="Spark starts")
            writing.start()
            wait_for("the job finds no errors", lambda: has_more(0), [first])
            first.kill()
        progress.update(told, description="killed; Spark starts again")
        before = len(here.events(PATTERNS))
        with Program(here.folder, job, *arguments) as second:
            writing.join()
            wait_for("the job goes on with nothing", lambda: has_more(before), [second])
            progress.update(told, description="counts of errors found by Spark")
            second.finish()
        has_more(0)


if __name__ == "__main__":
    sys.exit(main())
