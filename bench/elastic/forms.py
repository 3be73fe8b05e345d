"""`script/bench elastic`: streams that scale themselves, under real sales at a day's course, ten-fold load, a hot key.

Readers and a Spark query check that no event is lost, duplicated or reordered. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.elastic import plan, report, retail
from bench.elastic.retail import RetailMissingError
from bench.elastic.run import BY_HAND, Outcome, Settings, run
from bench.elastic.scalings import OVER, seconds_until_all_under
from bench.java.client import JavaMissingError
from bench.part import PartFailedError

STEADY_S = 20  # at the lower rate, before the ten-fold


@dataclass(frozen=True, slots=True)
class Form:
    """A load. minutes: its default duration; top: its default maximum of events per second."""

    title: str
    minutes: float
    top: int


FORMS = {
    "day": Form("a day's sales, by customer", 10, 20_000),
    "tenfold": Form("ten-fold load at once, by customer", 3, 10_000),
    "hot-key": Form("sales by country: one key has 92 %", 4, 3_000),
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="script/bench elastic", description=__doc__)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--minutes", type=float, help="how long (default 10 for day, 3 for tenfold, 4 for hot-key)")
    parser.add_argument("--low", type=int, default=50, help="events/s at night, for day (default 50)")
    parser.add_argument("--top", type=int, help="events/s at the most (default 20000, 10000, 3000)")
    parser.add_argument("--target", type=int, default=1000, help="events/s for a segment (default 1000)")
    parser.add_argument("--factor", type=int, default=16, help="pieces of a split at most (default 16)")
    parser.add_argument("--scaling", choices=("fast", "classic", BY_HAND), default="fast", help="default: fast")
    parser.add_argument("--writer", choices=("python", "java"), default="python", help="nadi's client or the official")
    parser.add_argument("--no-spark", action="store_true", help="without the Spark query")
    parser.add_argument("--naps", action="store_true", help="the second reader stops every second for as long")
    parser.add_argument("--made", action="store_true", help="made data, where the real can't be downloaded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder to work in and to keep (default: a temporary one)")
    parser.add_argument("--picture", type=Path, help="draw the segments over time: .svg, .png or .pdf")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, width=110)
    form = FORMS[options.form]
    seconds = round(60 * (options.minutes or form.minutes))
    folder = Path(tempfile.mkdtemp(prefix="nadi-elastic-")) if options.data is None else options.data
    try:
        plan.save(folder / "plan", *_plan(options, seconds, options.top or form.top))
        settings = Settings(
            options.target,
            options.factor,
            options.scaling,
            options.writer,
            not options.no_spark,
            options.seed,
            options.naps,
        )
        outcome = run(folder, settings)
        report.show(console, form.title, outcome)
        figures = report.figures(outcome)
        if options.form == "tenfold":
            figures |= _steps(console, outcome, options.target)
        if options.picture is not None:
            report.draw(outcome, options.picture)
        if options.json is not None:
            options.json.write_text(json.dumps(figures, indent=2) + "\n")
    except (RetailMissingError, JavaMissingError, PartFailedError) as error:
        console.print(f"script/bench elastic: {error}")
        sys.exit(2)
    finally:
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if outcome.is_good else 1)


def _plan(options: argparse.Namespace, seconds: int, top: int) -> tuple[list[plan.Line], list[int]]:
    rows = None if options.made else retail.sales()
    if options.form == "hot-key":
        lines = retail.by_country(rows) if rows else plan.made_lines_with_hot_key(100_000, options.seed)
        return lines, [top] * seconds
    lines = retail.by_customer(rows) if rows else plan.made_lines(100_000, 5_000, options.seed)
    if options.form == "tenfold":
        return lines, [top // 10] * STEADY_S + [top] * (seconds - STEADY_S)
    return lines, plan.follow(retail.day(rows) if rows else plan.made_day(), seconds, options.low, top)


def _steps(console: Console, outcome: Outcome, target: int) -> dict[str, float | None]:
    """Return how long after the load grew."""
    step_ms = outcome.began_ms + STEADY_S * 1000
    splits = [one.at_ms for one in outcome.scalings if one.kind == "split" and one.at_ms > step_ms]
    found = {
        "first split, s": (splits[0] - step_ms) / 1000 if splits else None,
        f"all segments under {OVER} times the target, s": seconds_until_all_under(
            outcome.samples, step_ms, OVER * target
        ),
        "all segments under the target, s": seconds_until_all_under(outcome.samples, step_ms, target),
    }
    for name, value in found.items():
        console.print(f"after the load grew, {name}: {value}")
    return found
