"""The first row of a new session: seconds from Spark being up until `take(1)` of a stream returns; and of a source that
reads nothing, which is Spark's own time.

    python -m bench.spark.first SOURCE SESSION URI SCOPE STREAM

is such a session; it prints the times until it was up, and from there to the row.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.spark.nothing import registered
from bench.spark.setting import CORES, SCOPE, Bench, fill, new_session
from bench.spark.tally import Row, Tally

_MARK_S = 2.0
_OF = {  # the sessions of a round: which source, by which session, with the archive of Spark's classes or without
    "a source that reads nothing": ("nothing", "tuned", False),
    "a stream": ("nadi", "tuned", False),
    "a stream, with the archive": ("nadi", "tuned", True),
    "a stream, by a session that is not tuned": ("nadi", "plain", False),
}


def first(bench: Bench) -> list[Row]:
    fill(bench, "first", 4)
    cache = {"with": bench.folder / "cache", "without": bench.folder / "none"}
    subprocess.run(["nadi", "spark", "archive"], env=_environment(cache["with"]), check=True, stdout=subprocess.DEVNULL)
    tally = Tally("s")
    for _ in range(bench.sizes.runs):
        for name, (source, session, has_archive) in _OF.items():
            command = [sys.executable, "-m", __name__, source, session, bench.uri, SCOPE, "first"]
            environment = _environment(cache["with" if has_archive else "without"])
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
            up, row = map(float, done.stdout.split()[-2:])
            tally.note(f"session up, then the first row of {name}", up + row)
            tally.note(f"first row of {name}", row)
    rows = tally.rows("", {})
    marked = "first row of a stream"
    return [
        Row(row.name, row.value, row.unit, None, _MARK_S if row.name == marked else None, at_most=True) for row in rows
    ]


def _environment(cache: Path) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return {**given, "XDG_CACHE_HOME": str(cache)}


def _plain_session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    session = SparkSession.builder.master(f"local[{CORES}]").appName("bench").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def main(source: str, session: str, uri: str, scope: str, stream: str) -> None:
    began = time.perf_counter()
    spark = new_session() if session == "tuned" else _plain_session()
    up = time.perf_counter()
    reader = spark.read.format("nadi" if source == "nadi" else registered(spark))
    rows = reader.options(controller=uri, scope=scope, stream=stream).load()
    if len(rows.take(1)) != 1:
        raise SystemExit("the read returned nothing")
    print(up - began, time.perf_counter() - up)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
