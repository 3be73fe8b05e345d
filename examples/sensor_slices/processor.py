"""The slice processor: follows `slices`, reads each slice, and writes what is in it to `aggregates`, exactly once.

The slices of a batch are dealt to Spark's tasks, and each task reads its slices between their two cuts, from whatever
segments they lie in. A segment has other sensors' readings, too: a slice is what is of its own sensor between the cuts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import nadi
from examples.programs import checkpoint_argument, follow, job_parser
from examples.sensor_slices.producer import AGGREGATES, READINGS, SLICES
from examples.sensor_slices.waves import Aggregate, Reading, Slice

_RESULT = pa.schema([("event", pa.binary()), ("routing_key", pa.string())])


def aggregate(manager: nadi.StreamManager, scope: str, one: Slice) -> Aggregate:
    """Read a slice, and say what is in it."""
    start, end = nadi.StreamCut.from_text(one.start_cut), nadi.StreamCut.from_text(one.end_cut)
    events = manager.read_events(scope, READINGS, start=start, end=end, routing_keys=[one.sensor])
    readings = [msgspec.json.decode(event.data, type=Reading) for event in events]
    mine = [reading for reading in readings if reading.sensor == one.sensor]
    values = [reading.value for reading in mine]
    return Aggregate(one.sensor, mine[0].number, mine[-1].number, len(mine), sum(values), max(values))


def process_live(spark: SparkSession, controller: str, scope: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: slices in, their aggregates out, exactly once."""

    def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with nadi.StreamManager(controller) as manager:
            for batch in batches:
                slices = [msgspec.json.decode(event.as_py(), type=Slice) for event in batch["event"]]
                found = [msgspec.json.encode(aggregate(manager, scope, one)) for one in slices]
                columns = {"event": found, "routing_key": [one.sensor for one in slices]}
                yield pa.RecordBatch.from_pydict(columns, schema=_RESULT)

    home = {"controller": controller, "scope": scope}
    slices = spark.readStream.format("nadi").options(**home, stream=SLICES).load()
    found = slices.select("event").mapInArrow(process, "event binary, routing_key string")
    writer = found.writeStream.format("nadi").options(**home, stream=AGGREGATES).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def main() -> int:
    made = job_parser("examples.sensor_slices.processor", __doc__)
    checkpoint_argument(made)
    return follow("slice processor", made.parse_args(), process_live)


if __name__ == "__main__":
    sys.exit(main())
