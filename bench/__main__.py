"""nadi's benchmarks: `script/bench` runs all that take less than two minutes, and prints a table with the targets.

All figures come from a real server in a separate process, on a real disk with fsync; the machine's own fsync is
measured first, as no figure means anything without it. Medians of several runs. `script/bench peers` compares nadi
with other systems at the same work; `script/bench elastic` shows streams that scale themselves (`bench/elastic`);
`script/bench spark` measures nadi in Spark (`bench/spark`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import (
    amplification,
    busy,
    diskless,
    encryption,
    epochs,
    events,
    frames,
    long,
    measure,
    mixed,
    peers,
    plays,
    searching,
    settle,
    splits,
    spread,
    start,
    streams,
    structures,
    transactions,
)
from bench.cluster import million, model, moves, writes
from bench.java import spread as java_spread
from bench.kafka import door
from bench.measure import Figure, LeftOutError

console = Console(highlight=False)

STREAMS, EPOCHS = 100_000, 2_000
BENCHES: dict[str, Callable[[Path], list[Figure]]] = {
    "disk": measure.disk,
    "write-100": lambda folder: measure.write(folder, 100, 4_000_000, 400_000, "events/s"),
    "write-1k": lambda folder: measure.write(folder, 1_000, 1_000_000, 250, "MB/s"),
    "write-10k": lambda folder: measure.write(folder, 10_000, 150_000, 300, "MB/s"),
    "write-batch": events.write_batch,
    "write-arrow": events.write_arrow,
    "write-1k-batch": events.write_large_batch,
    "round-trip": events.round_trip,
    "tail": events.tail,
    "tail-group": events.tail_group,
    "latency": measure.latency,
    "read": measure.read,
    "read-bytes": events.read_bytes,
    "splits": splits.splits,
    "spread": spread.spread,
    "settle": settle.settle,
    "mixed": mixed.mixed,
    "transactions": transactions.transactions,
    "bytes": structures.byte_stream,
    "changes": structures.changes,
    "restart": measure.restart,
    "start": start.start,
    "epochs": partial(epochs.epochs, count=EPOCHS),
    "streams": partial(streams.many_streams, count=STREAMS),
}
BY_NAME: dict[str, Callable[[Path], list[Figure]]] = {  # minutes each: they run only if they are named
    "amplification": amplification.amplification,
    "busy-streams": partial(busy.busy_streams, count=STREAMS),
    "frames": frames.frames,
    "cluster-handover": moves.hand_over,
    "cluster-million": million.million,
    "cluster-takeover": moves.takeover,
    "cluster-model": model.model,
    "cluster-write": writes.writes,
    "diskless": diskless.diskless,
    "encryption": encryption.encryption,
    "kafka-door": door.door,
    "long": long.long,
    "search": searching.search,
    "search-plays": plays.plays,
    "standing": searching.standing,
    "spread-java": java_spread.spread_java,
    "spread-java-pooled": partial(java_spread.spread_java, pooled=True),
}


def main() -> None:
    if sys.argv[1:2] == ["elastic"]:
        from bench.elastic import forms

        forms.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["spark"]:
        from bench.spark import forms as spark_forms

        spark_forms.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which: {', '.join(BENCHES)} (default: all of these); {', '.join(BY_NAME)}; or peers, elastic, or spark",
    )
    parser.add_argument("--runs", type=_natural, default=3, help="runs of each; the median counts (default 3)")
    parser.add_argument("--data", type=Path, help="folder to work in (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    many = f"how many streams a bench creates (default {STREAMS}, and {million.STREAMS} of `cluster-million`)"
    parser.add_argument("--streams", type=_natural, help=many)
    parser.add_argument("--epochs", type=_natural, help=f"how often `epochs` scales (default {EPOCHS})")
    parser.add_argument("--minutes", type=_natural, help=f"how long `long` takes (default {long.MINUTES})")
    which = f"of `peers`: peers or works, or both, with commas: {', '.join(peers.CHOICES)} (default: all)"
    parser.add_argument("--only", help=which)
    options = parser.parse_args()
    _refuse_without_effect(parser, options)
    if "peers" in options.names:
        if len(options.names) > 1:
            parser.error("peers is a run of its own")
        only = options.only.split(",") if options.only is not None else []
        try:
            peers.chosen(only)
        except ValueError as error:
            parser.error(f"--only: {error}")
        results = peers.run(console, options.runs, options.data, only)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=2) + "\n")
        return
    benches: dict[str, Callable[[Path], list[Figure]]] = BENCHES | BY_NAME
    benches["epochs"] = partial(epochs.epochs, count=options.epochs or EPOCHS)
    benches["streams"] = partial(streams.many_streams, count=options.streams or STREAMS)
    benches["busy-streams"] = partial(busy.busy_streams, count=options.streams or STREAMS)
    benches["cluster-million"] = partial(million.million, count=options.streams or million.STREAMS)
    benches["long"] = partial(long.long, minutes=options.minutes or long.MINUTES)
    unknown = set(options.names) - set(benches)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: choose from {', '.join(benches)}")
    table = Table(title=f"nadi benchmarks, median of {options.runs}")
    for column in ("figure", "measured", "target", "reached"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    rows = []
    for name in options.names or BENCHES:
        try:
            runs = [_run(name, benches[name], number, options) for number in range(options.runs)]
        except LeftOutError as error:
            console.print(f"{name} is left out: {error}", markup=False)
            continue
        for figures in zip(*runs, strict=True):
            figure = figures[0]
            value = statistics.median(f.value for f in figures)
            reached = "" if figure.target is None else ("yes" if figure.reached(value) else "NO")
            target = "" if figure.target is None else f"{'<' if figure.at_most else ''} {figure.target:,g}"
            table.add_row(
                figure.name,
                f"{value:,.4g} {figure.unit}" if value < 1000 else f"{value:,.0f} {figure.unit}",
                target,
                reached,
            )
            rows.append({"name": figure.name, "value": value, "unit": figure.unit, "target": figure.target})
    console.print(table)
    if not options.names:
        console.print(f"Only by name, as they take minutes: {', '.join(BY_NAME)}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def _run(name: str, bench: Callable[[Path], list[Figure]], number: int, options: argparse.Namespace) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="nadi-bench-", dir=options.data))
    try:
        with console.status(f"{name}, run {number + 1} of {options.runs}"):
            return bench(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _natural(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _refuse_without_effect(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject an option that none of the named benches uses."""
    heeded = {
        "streams": {"streams", "busy-streams", "cluster-million"},
        "epochs": {"epochs"},
        "minutes": {"long"},
        "only": {"peers"},
    }
    for option, names in heeded.items():
        if getattr(options, option) is not None and not names & set(options.names or BENCHES):
            parser.error(f"--{option} needs {' or '.join(sorted(names))}")


if __name__ == "__main__":
    main()
