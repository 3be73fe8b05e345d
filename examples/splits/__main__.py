"""One stream read by many workers in parallel: processes of this machine, Dask, Ray, and a MapReduce job of Hadoop.

Six meters write their readings, one of them half of all, while segments are split and merged. Then each engine sums the
watt-hours of each meter, with workers that read separate splits, and the sums must be exact. Engines that aren't
installed are skipped with a message.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Mapping

from rich.console import Console

import nadi
from examples.running import ExampleError, Place, bars, ended, parser, place
from examples.splits.meters import SCHEMA, STREAM, produce

PROCESSES, DASK, RAY, HADOOP = BY = ("processes", "dask", "ray", "hadoop")
RAY_BYTES = 100_000_000  # for results of tasks; by default a third of the machine's memory
console = Console(highlight=False)


class LeftOutError(Exception):
    """An engine's requirements are missing; the message names them."""


def main() -> int:
    arguments = parser("examples.splits", __doc__)
    arguments.add_argument("--by", choices=BY, action="append", help="use this engine (default: all installed ones)")
    arguments.add_argument("--readings", type=int, default=40_000, help="number of readings (default: 40000)")
    arguments.add_argument("--workers", type=int, default=2, help="number of workers (default: 2)")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    if options.workers < 1 or not 10 <= options.readings <= 10_000_000:
        raise ExampleError("--workers must be 1 or more, and --readings from 10 to 10,000,000")
    with place(options, "splits", console) as here:
        with bars(console) as progress:
            task = progress.add_task("readings written", total=options.readings)
            expected = produce(here.manager, here.scope, options.readings, lambda count: progress.advance(task, count))
        is_right, used = True, 0
        for name in options.by or BY:
            began = time.monotonic()
            try:
                totals = _totals_by(name, here, options.workers)
            except LeftOutError as why:
                console.print(f"{name}: skipped, {why}")
                continue
            used += 1
            is_same = dict(totals) == {meter: wh for meter, wh in expected.items() if wh}
            is_right = is_right and is_same
            result = "exactly as written" if is_same else "[red]different from what was written[/red]"
            console.print(f"{name}: {sum(totals.values()):,} Wh of {len(totals)} meters, {result}; {_since(began)}")
    if not used:
        raise ExampleError("none of the selected engines is installed")
    return is_right


def _totals_by(name: str, here: Place, workers: int) -> Mapping[str, int]:
    scan = nadi.scan(
        here.manager, here.scope, STREAM, columns=["value"], value_format="json", value_schema=SCHEMA, unnest=True
    )
    splits = scan.splits(workers, max_bytes=1 << 20)
    if name == PROCESSES:
        from examples.splits.processes import by_processes

        with bars(console) as progress:
            task = progress.add_task("bytes read", total=scan.size_bytes)
            return by_processes(splits, workers, lambda count: progress.advance(task, count))
    if name == DASK:
        _check_installed("dask", "pip install 'dask[dataframe]'")
        from examples.splits.with_dask import by_dask

        return by_dask(splits, workers)
    if name == RAY:
        _check_installed("ray", "pip install ray")
        return _by_ray(splits, workers)
    from examples.splits.hadoop import MissingError, by_hadoop

    try:
        return by_hadoop(here.controller, here.scope, STREAM, here.folder / "hadoop")
    except MissingError as error:
        raise LeftOutError(str(error)) from None


def _by_ray(splits: list[nadi.Split], workers: int) -> Mapping[str, int]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # by default it reports each use to its makers
    import ray

    from examples.splits.with_ray import by_ray

    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=RAY_BYTES,
    )
    try:
        return by_ray(splits)
    finally:
        ray.shutdown()


def _check_installed(module: str, remedy: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise LeftOutError(f"as it is not installed ({remedy})")


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
