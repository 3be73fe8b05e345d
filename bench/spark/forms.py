"""`script/bench spark`: its arguments, its parts, its table."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.jars import BROKER, SPARK, Missing, jars_of
from bench.spark import batches, chains, first, kafka, reads, real_time, writes
from bench.spark.setting import QUICK, Bench, Sizes, opened
from bench.spark.tally import Row

KAFKA, REAL_TIME = "kafka", "real-time"
PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "read": reads.read,
    "count": reads.counts,
    "batch": batches.batches,
    "stream": batches.streams,
    "chain": chains.chains,
    "write": writes.writes,
    KAFKA: kafka.beside_kafka,
    REAL_TIME: real_time.real_time,
    "first": first.first,
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="script/bench spark", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--runs", type=int, help="rounds; the median counts (default 5)")
    parser.add_argument("--rows", type=int, help="of a read or write (default 4000000)")
    parser.add_argument("--quick", action="store_true", help="little of everything, once: whether it works")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="a further option of nadi's reads"
    )
    parser.add_argument("--data", type=Path, help="folder to work in (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    given = parser.parse_args(arguments)
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    if not all("=" in option for option in given.option):
        parser.error("an option is NAME=VALUE")
    changed = {name: value for name in ("runs", "rows") if (value := getattr(given, name)) is not None}
    sizes = replace(QUICK if given.quick else Sizes(), **changed)
    console = Console(highlight=False)
    table = Table(title=f"nadi in Spark, median of {sizes.runs}")
    for column in ("figure", "measured", "ratio", "mark", "reached"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    found: list[dict[str, Any]] = []
    parts, jars = given.parts or list(PARTS), []
    beside = {KAFKA, REAL_TIME} & set(parts)
    if beside:
        try:
            jars_of(BROKER)
            jars = jars_of(SPARK)
        except Missing as error:
            parts = [part for part in parts if part not in beside]
            console.print(f"{' and '.join(sorted(beside))}: left out: {error}")
    reading = dict(option.split("=", 1) for option in given.option)
    for part, rows in measured(parts, sizes, reading, given.data, jars=jars):
        for row in rows:
            table.add_row(*cells(row))
            console.print(f"{part}: {row.name}: {cells(row)[1]}")
        found += [{"part": part, **asdict(row)} for row in rows]
    console.print(table)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def measured(
    parts: Sequence[str],
    sizes: Sizes,
    reading: Mapping[str, str],
    data: Path | None = None,
    spark: Any = None,
    jars: Sequence[Path] = (),
) -> Iterator[tuple[str, list[Row]]]:
    """Return the figures of each part, in a temporary folder. spark: an existing session; jars: those of a new one."""
    folder = Path(tempfile.mkdtemp(prefix="nadi-bench-", dir=data))
    try:
        with opened(folder, sizes, reading, spark, jars) as bench:
            for part in parts:
                yield part, PARTS[part](bench)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """Format a line of the table.

    >>> cells(Row("a read", 5_000_000, "rows/s", 0.95, 0.9))
    ('a read', '5,000,000 rows/s', '0.95', '> 0.9', 'yes')
    """
    value = f"{row.value:,.0f}" if row.value >= 1000 else f"{row.value:,.3g}"
    mark = "" if row.mark is None else f"{'<' if row.at_most else '>'} {row.mark:,.9g}"
    reached = {None: "", True: "yes", False: "NO"}[row.is_reached]
    return row.name, f"{value} {row.unit}", "" if row.ratio is None else f"{row.ratio:.2f}", mark, reached
