"""The first row of a new session: seconds from Spark being up until `take(1)` of a stream is there.

    python -m bench.spark.first URI SCOPE STREAM

is such a session; it prints them.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.spark.setting import SCOPE, Bench, fill, new_session
from bench.spark.tally import Row, Tally

_MARK_S = 2.0


def first(bench: Bench) -> list[Row]:
    fill(bench, "first", 4)
    tally, name = Tally("s"), "first row of a new session"
    for _ in range(bench.sizes.runs):
        command = [sys.executable, "-m", __name__, bench.uri, SCOPE, "first"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        tally.note(name, float(done.stdout.split()[-1]))
    (row,) = tally.rows("", {})
    return [Row(row.name, row.value, row.unit, None, _MARK_S, at_most=True)]


def main(uri: str, scope: str, stream: str) -> None:
    spark = new_session()
    began = time.perf_counter()
    rows = spark.read.format("nadi").options(controller=uri, scope=scope, stream=stream).load()
    if len(rows.take(1)) != 1:
        raise SystemExit("there was no row")
    print(time.perf_counter() - began)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
