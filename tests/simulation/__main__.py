"""Simulations of a whole server or of a cluster: many seeds at once, or one seed with a log of its last events.

    script/simulate --seeds 1000 --minutes 10
    script/simulate 527 --log 527.log
    script/simulate --cluster --seeds 1000 --minutes 10

Exits with 1 if a seed failed; each failure is reported at once with its error and how to repeat it. Ctrl-C stops with
the results so far and exit code 130.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .days import Outcome
from .seeds import Ask, outcome_of

INTERRUPTED = 130  # a shell's exit code for SIGINT
_FIRST = 1
_TOTALS = [field.name for field in fields(Outcome) if field.name not in ("trace", "seconds", "more")]


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    seeds = options.seed or range(options.first, options.first + options.seeds)
    asks = [Ask(seed, options.minutes, options.pace, options.log, options.cluster) for seed in seeds]
    console, began = Console(highlight=False), time.monotonic()
    outcomes: list[Outcome] = []
    failed, is_interrupted = 0, False
    try:
        with _results(asks, options.processes) as results, _progress(console, len(asks)) as advance:
            for ask, outcome, why in results:
                advance()
                if outcome is not None:
                    outcomes.append(outcome)
                    continue
                failed += 1
                console.print(f"seed {ask.seed} FAILED: {why}\n  again: {ask.again}", markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        is_interrupted = True
    if len(asks) == 1 and outcomes:
        console.print(f"seed {asks[0].seed}: trace {outcomes[0].trace}")
    simulated_min = sum(outcome.seconds for outcome in outcomes) / 60
    totals = Counter({name: sum(getattr(outcome, name) for outcome in outcomes) for name in _TOTALS})
    for outcome in outcomes:
        totals.update(outcome.more)
    parts = [f"{total:,} {name}" for name, total in totals.items()]
    cpu_s = sum(resource.getrusage(whose).ru_utime for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    took = f"{simulated_min:,.0f} simulated minutes in {time.monotonic() - began:,.0f} s"
    took += f", {simulated_min / cpu_s:.1f} a second of one core"
    seeds_done = f"{len(asks):,} seeds"
    if is_interrupted:
        seeds_done = f"interrupted after {len(outcomes) + failed:,} of {seeds_done}"
    console.print(f"{seeds_done}, {failed} failed; {took}: {', '.join(parts)}", soft_wrap=True)
    if options.log is not None:
        console.print(f"the last events are in {options.log}", soft_wrap=True)
    return INTERRUPTED if is_interrupted else int(failed > 0)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int, nargs="*", help="seeds to run, instead of --seeds")
    parser.add_argument("--cluster", action="store_true", help="simulate three to five servers over one object store")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds (default 100)")
    parser.add_argument("--first", type=int, default=_FIRST, help=f"first seed (default {_FIRST})")
    parser.add_argument("--minutes", type=float, default=5.0, help="simulated time of each (default 5)")
    parser.add_argument("--pace", type=float, default=1.0, help="factor by which all events are slowed (default 1)")
    processes = os.cpu_count() or 1
    parser.add_argument("--processes", type=int, default=processes, help=f"processes (default {processes}: the cores)")
    parser.add_argument("--log", type=Path, help="file for the last events of a single seed")
    options = parser.parse_args(arguments)
    if options.log is not None and len(options.seed) != 1:
        parser.error("--log needs a single seed: script/simulate SEED --log FILE")
    if options.seed and (options.seeds != parser.get_default("seeds") or options.first != _FIRST):
        parser.error("both seeds and --seeds or --first are given: give one or the other")
    for name in ("seeds", "minutes", "pace", "processes"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} must be more than 0")
    return options


@contextmanager
def _results(asks: list[Ask], processes: int) -> Iterator[Iterator[tuple[Ask, Outcome | None, str]]]:
    if len(asks) == 1 or processes == 1:
        yield map(outcome_of, asks)
        return
    ignore_interruption = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # a terminal sends SIGINT to all processes
    count = min(processes, len(asks))
    with multiprocessing.get_context("spawn").Pool(count, *ignore_interruption, maxtasksperchild=50) as pool:
        yield pool.imap_unordered(outcome_of, asks)


@contextmanager
def _progress(console: Console, count: int) -> Iterator[Callable[[], None]]:
    columns = TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("seeds", total=count)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
