"""A structured streaming query, in a separate process: writes keys and sequences of all events to files, exactly once.

The sink's own log has the files of each batch. No batch reads a key from two segments, and a file has one task's rows
in order, so a key's events must be in order across batches and within the only file of a batch that has the key.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow.parquet as pq

from bench.elastic.parts import SCOPE, STREAM
from bench.elastic.verdict import Array
from bench.part import say_ready

TRIGGER = "2 seconds"


def main(uri: str, folder: Path) -> None:
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    builder = SparkSession.builder.master("local[2]").appName("elastic")
    builder = builder.config("spark.sql.streaming.fileSink.log.deletion", "false")  # the log of batches is needed
    spark = tuned(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.format("nadi").options(controller=uri, scope=SCOPE, stream=STREAM).load()
    number = "CAST(conv(hex(substring(event, {}, 4)), 16, 10) AS BIGINT)"
    query = (
        rows.selectExpr(f"{number.format(1)} AS key", f"{number.format(5)} AS sequence")
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=TRIGGER)
        .start()
    )
    query.processAllAvailable()
    say_ready()
    sys.stdin.readline()
    query.processAllAvailable()
    query.stop()
    spark.stop()


def read_back(folder: Path) -> tuple[Array, Array, int]:
    """Return keys and sequences in the query's order, and the number of batches."""
    keys, sequences, batches = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for files in _batches(folder / "rows" / "_spark_metadata"):
        batches += 1
        for file in files:
            table = pq.read_table(file)
            keys.append(table["key"].to_numpy())
            sequences.append(table["sequence"].to_numpy())
    return np.concatenate(keys), np.concatenate(sequences), batches


def _batches(log: Path) -> list[list[str]]:
    """Return the files of each batch; `N.compact` repeats the logs before it."""
    found: dict[int, list[str]] = {}
    for file in sorted(log.iterdir(), key=lambda path: int(path.name.partition(".")[0]) if path.name[0] != "." else -1):
        if not file.name[0].isdigit():
            continue
        paths = [json.loads(line)["path"] for line in file.read_text().splitlines()[1:]]
        known = {path for before in found.values() for path in before}
        found[int(file.name.partition(".")[0])] = [path for path in paths if path not in known]
    return [[unquote(urlparse(path).path) for path in found[number]] for number in sorted(found)]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(sys.argv[1], Path(sys.argv[2]))
