"""The bookmarker: finds where each sensor's values are high, and writes a slice of each such stretch to `slices`.

A keyed operator of Spark: for each sensor it keeps a state from batch to batch, and goes through the sensor's rows in
the order of the stream. A slice has two stream cuts, one just before the stretch's first event and one just after its
last. Slices are written exactly once.
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

PLACE = ("segment_id", "offset", "position_before", "position")


def positioned(rows: Iterable[Any]) -> Iterator[tuple[int, int, str, str]]:
    """Number and value of a sensor's rows, and the cuts just before and just after each."""
    return ((row.number, row.value, row.position_before, row.position) for row in rows)


def find_live(spark: SparkSession, controller: str, scope: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: readings in, slices out, exactly once."""

    def step(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], kept: Any) -> Iterator[pd.DataFrame]:
        (sensor,) = key
        state = State.from_text(kept.get[0]) if kept.exists else NEW
        state, found = fold(state, positioned(in_order(frames)))
        kept.update((state.as_text(),))
        slices = [Slice(f"{sensor}.{one.number}", sensor, one.first, one.last, one.start, one.end) for one in found]
        events = [msgspec.json.encode(one) for one in slices]
        yield pd.DataFrame({"event": events, "routing_key": [sensor] * len(events)})

    home = {"controller": controller, "scope": scope}
    events = (
        spark.readStream.format("nadi").options(**home, stream=READINGS, columns=",".join(["event", *PLACE])).load()
    )
    reading = F.from_json(F.col("event").cast("string"), "sensor string, number long, value long").alias("reading")
    readings = events.select(reading, *PLACE)
    slices = (
        readings.select("reading.*", *PLACE)
        .groupBy("sensor")
        .applyInPandasWithState(step, "event binary, routing_key string", "state string", "append", "NoTimeout")
    )
    writer = slices.writeStream.format("nadi").options(**home, stream=SLICES).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def main() -> int:
    made = job_parser("examples.sensor_slices.bookmarker", __doc__)
    checkpoint_argument(made)
    return follow("bookmarker", made.parse_args(), find_live)


if __name__ == "__main__":
    sys.exit(main())
