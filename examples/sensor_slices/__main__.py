"""Sine waves, slices of their high values and aggregates of these: three programs linked by streams, exactly once,
through kills.

A producer writes the readings of eight sensors into the stream `readings`, whose segments are split halfway. The
bookmarker, a Spark job with a state for each sensor, finds runs of high values, and writes a slice of each run to
`slices`: two stream cuts, exact to the event. The slice processor, another Spark job, follows `slices`, reads each
slice and writes its aggregate to `aggregates`. Halfway both jobs are killed (kill -9) and restarted. At the end all
aggregates must match the sine waves. The parts also run by hand: examples.sensor_slices.producer, .bookmarker and
.processor.
"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from examples.programs import through_a_kill
from examples.running import ended, parser, place
from examples.sensor_slices.checker import compare, show
from examples.sensor_slices.producer import AGGREGATES, create_streams, produce
from examples.sensor_slices.waves import SENSORS, sensors, truth

console = Console(highlight=False)


def main() -> int:
    arguments = parser("examples.sensor_slices", __doc__)
    arguments.add_argument("--readings", type=int, default=3_000, help="of each sensor (default: 3000)")
    arguments.add_argument("--seconds", type=float, default=20, help="to write them in (default: 20)")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    began = time.monotonic()
    with place(options, "sensor-slices", console) as here:
        create_streams(here.manager, here.scope)
        jobs = [
            (f"examples.sensor_slices.{name}", ["--checkpoint", str(here.folder / f"checkpoint-{name}")])
            for name in ("bookmarker", "processor")
        ]
        write = (here.manager, here.scope, range(options.readings), options.seconds)
        total = SENSORS * options.readings
        through_a_kill(here, console, jobs, lambda on_written: produce(*write, on_written), total, AGGREGATES)
        verdict = compare(truth(sensors(), options.readings), here.events(AGGREGATES))
    show(verdict, console)
    console.print(f"took {time.monotonic() - began:.0f} s")
    return verdict.is_right


if __name__ == "__main__":
    sys.exit(main())
