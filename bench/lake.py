"""`python -m bench.lake [EVENTS]`: the speed of writing and joining a lake, and of reading table and stream as one, in
Arrow and in Spark, compared with plain Parquet."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

import nadi
import nadi.lake
from nadi.lake import LakeWriter

_AT_ONCE = 20_000
_WARM, _RUNS = 2, 7
_TASKS = 16
_NEEDED = ["meter", "wh", "at", "volts", "_offset"]  # by the queries in Spark


def main(events: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        nadi.embedded(f"{folder}/server") as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        _measure(manager, server.controller_uri, Path(folder), events)


def _measure(manager: nadi.StreamManager, uri: str, folder: Path, events: int) -> None:
    manager.create_scope("home")
    manager.create_stream("home", "meters", 4)
    _write(manager, events)
    size = manager.cuts("home", "meters").bytes_between(*_ends(manager))
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    lake = nadi.lake.define(
        manager,
        "home",
        "meters",
        table="home.meters",
        catalog=catalog,
        value_format="json",
        value_schema="meter string, wh long, at timestamp, volts double",
        commit_bytes=32 << 20,
    )
    writer = LakeWriter(manager, lake)
    began, commits = time.perf_counter(), 0
    while writer.commit() is not None:
        commits += 1
    took = time.perf_counter() - began
    print(f"written: {events / took:,.0f} events/s, {size / took / 1e6:,.1f} MB/s of JSON, {commits} commits")
    began = time.perf_counter()
    joined = writer.compact()
    print(f"joined: {joined} files in {time.perf_counter() - began:.2f} s")
    table = nadi.lake.union(manager, "home", "meters")
    paths = [one.file.file_path.removeprefix("file://") for one in table._files]
    parquet = ds.dataset(paths)
    _compare(
        "Arrow, table part", lambda: pa.table(table).num_rows, "dataset of Parquet", lambda: parquet.to_table().num_rows
    )
    ready = [_ready(folder / name, manager, names) for name, names in (("all", None), ("some", _NEEDED))]
    _in_spark(uri, paths, ready)


def _ready(folder: Path, manager: nadi.StreamManager, columns: list[str] | None) -> Path:
    """A source in Python with the union's batches in memory."""
    from bench.spark.ready import make

    union = nadi.lake.union(manager, "home", "meters", columns=columns)
    return make(folder, (split.batches() for split in union.splits(_TASKS)), union.schema)


def _in_spark(uri: str, paths: list[str], ready: list[Path]) -> None:
    from pyspark.sql import SparkSession

    from bench.spark.ready import registered
    from nadi.spark import tuned, union

    spark: Any = tuned(SparkSession.builder.master("local[2]").appName("lake")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"controller": uri, "scope": "home", "stream": "meters", "source": "union"}

    def total(frame: Any) -> Any:
        return frame.groupBy("meter").sum("wh").count(), frame.agg(
            {"volts": "sum", "at": "max", "_offset": "max"}
        ).collect()

    def plain() -> Any:
        return total(spark.read.parquet(*paths))

    ours = spark.read.format("nadi").options(**options)
    named = spark.read.format("nadi").options(**options, columns=",".join(_NEEDED))
    whole, some = (spark.read.format(registered(spark)).options(folder=str(one)) for one in ready)
    loads: dict[str, Callable[[], Any]] = {
        "nadi.spark.union": lambda: union(spark, "home", "meters", controller=uri),
        "source=union": ours.load,
        "source=union, columns named": named.load,
        "any source in Python, all columns": whole.load,
        "any source in Python, columns named": some.load,
    }
    for name, load in loads.items():
        _compare(f"Spark, {name}", partial(_call, total, load), "Spark's plain Parquet", plain)
    spark.stop()


def _call(total: Callable[[Any], Any], load: Callable[[], Any]) -> Any:
    return total(load())


def _compare(name: str, ours: Callable[[], Any], other: str, theirs: Callable[[], Any]) -> None:
    """Compare pairs of consecutive runs, so that other load on the machine affects both."""
    for _ in range(_WARM):
        ours(), theirs()
    pairs = [(_timed(ours), _timed(theirs)) for _ in range(_RUNS)]
    mine, its = (median(one[at] for one in pairs) for at in (0, 1))
    print(f"{name}: {mine:.2f} s; {other}: {its:.2f} s; {median(b / a for a, b in pairs):.2f} × its speed")


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ends(manager: nadi.StreamManager) -> tuple[nadi.StreamCut, nadi.StreamCut]:
    info = manager.stream_info("home", "meters")
    return info.head, info.tail


def _write(manager: nadi.StreamManager, events: int) -> None:
    with manager.create_writer("home", "meters") as writer:
        for first in range(0, events, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, events))
            rows = [
                b'{"meter": "meter-%d", "wh": %d, "at": "2026-11-%02dT12:00:00Z", "volts": %d.%d}'
                % (number % 1_000, number, 1 + number % 28, 220 + number % 20, number % 10)
                for number in numbers
            ]
            writer.write_batch(rows, [f"meter-{number % 1_000}" for number in numbers])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
