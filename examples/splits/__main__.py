"""One stream read by many workers at once: processes of this machine, Dask, Ray, and a MapReduce job of Hadoop.

Six meters write their readings, one of them half of all, while segments are split and merged. Then the watt-hours of
each meter are summed by each of these, whose workers each read splits of their own, and must be what was written, to
the digit. What isn't installed is left out, and said so.
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
RAY_BYTES = 100_000_000  # for what its tasks return; a third of the machine's memory otherwise
console = Console(highlight=False)


class LeftOutError(Exception):
    """What an engine needs isn't here; the text says what."""


def main() -> int:
    made = parser("examples.splits", __doc__)
    made.add_argument("--by", choices=BY, action="append", help="by one of these (default: all that are installed)")
    made.add_argument("--readings", type=int, default=40_000, help="to write (default: 40000)")
    made.add_argument("--workers", type=int, default=2, help="that read at once (default: 2)")
    options = made.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    if options.workers < 1 or not 10 <= options.readings <= 10_000_000:
        raise ExampleError("it takes a worker or more, and 10 to 10,000,000 readings")
    with place(options, "splits", console) as here:
        with bars(console) as progress:
            task = progress.add_task("readings written", total=options.readings)
            expected = produce(here.manager, here.scope, options.readings, lambda count: progress.advance(task, count))
        is_right, used = True, 0
        for name in options.by or BY:
            began = time.monotonic()
            try:
                found = _found(name, here, options.workers)
            except LeftOutError as why:
                console.print(f"{name}: left out, {why}")
                continue
            used += 1
            is_same = dict(found) == {meter: wh for meter, wh in expected.items() if wh}
            is_right = is_right and is_same
            told = "as it was written, to the digit" if is_same else "[red]not as it was written[/red]"
            console.print(f"{name}: {sum(found.values()):,} Wh of {len(found)} meters, {told}; {_since(began)}")
    if not used:
        raise ExampleError("nothing of what was asked for is here")
    return is_right


def _found(name: str, here: Place, workers: int) -> Mapping[str, int]:
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
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it tells its makers of each use otherwise
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


def _check_installed(module: str, how: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise LeftOutError(f"for it is not installed ({how})")


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
