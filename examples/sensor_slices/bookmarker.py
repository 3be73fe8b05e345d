"""The bookmarker: finds runs of high values of each sensor, and writes a slice of each run to `slices`.

A keyed operator of Spark: it keeps a state per sensor from batch to batch, and processes the sensor's rows in the order
of the stream. A slice has two stream cuts, just before the run's first event and just after its last. Slices are
written exactly once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.programs import checkpoint_argument, follow, job_parser
from examples.sensor_slices.producer import READINGS, SLICES
from examples.sensor_slices.waves import NEW, Slice, State, fold
from nadi.spark import in_order

POSITION_COLUMNS = ("segment_id", "offset", "position_before", "position")


def positioned(rows: Iterable[Any]) -> Iterator[tuple[int, int, str, str]]:
    """Return number and value of a sensor's rows, and the cuts just before and just after each."""
    return ((row.number, row.value, row.position_before, row.position) for row in rows)


def find_live(spark: SparkSession, controller: str, scope: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: readings in, slices out, exactly once."""

    def step(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], store: Any) -> Iterator[pd.DataFrame]:
        (sensor,) = key
        state = State.from_text(store.get[0]) if store.exists else NEW
        state, runs = fold(state, positioned(in_order(frames)))
        store.update((state.as_text(),))
        slices = [Slice(f"{sensor}.{run.number}", sensor, run.first, run.last, run.start, run.end) for run in runs]
        events = [msgspec.json.encode(found) for found in slices]
        yield pd.DataFrame({"event": events, "routing_key": [sensor] * len(events)})

    home = {"controller": controller, "scope": scope}
    events = (
        spark.readStream.format("nadi")
        .options(**home, stream=READINGS, columns=",".join(["event", *POSITION_COLUMNS]))
        .load()
    )
    reading = F.from_json(F.col("event").cast("string"), "sensor string, number long, value long").alias("reading")
    readings = events.select(reading, *POSITION_COLUMNS)
    slices = (
        readings.select("reading.*", *POSITION_COLUMNS)
        .groupBy("sensor")
        .applyInPandasWithState(step, "event binary, routing_key string", "state string", "append", "NoTimeout")
    )
    writer = slices.writeStream.format("nadi").options(**home, stream=SLICES).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def main() -> int:
    arguments = job_parser("examples.sensor_slices.bookmarker", __doc__)
    checkpoint_argument(arguments)
    return follow("bookmarker", arguments.parse_args(), find_live)


if __name__ == "__main__":
    sys.exit(main())
