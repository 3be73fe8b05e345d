"""The slice processor: follows `slices`, reads each slice, and writes its aggregate to `aggregates`, exactly once.

The slices of a batch are distributed over Spark's tasks, and each task reads its slices between their two cuts, from
any segments. A segment has other sensors' readings too: a slice has those of its own sensor between the cuts.
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


def aggregate(manager: nadi.StreamManager, scope: str, slice_: Slice) -> Aggregate:
    """Read a slice, and return its aggregate."""
    start, end = nadi.StreamCut.from_text(slice_.start_cut), nadi.StreamCut.from_text(slice_.end_cut)
    events = manager.read_events(scope, READINGS, start=start, end=end, routing_keys=[slice_.sensor])
    readings = [msgspec.json.decode(event.data, type=Reading) for event in events]
    of_sensor = [reading for reading in readings if reading.sensor == slice_.sensor]
    values = [reading.value for reading in of_sensor]
    return Aggregate(slice_.sensor, of_sensor[0].number, of_sensor[-1].number, len(of_sensor), sum(values), max(values))


def process_live(spark: SparkSession, controller: str, scope: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: slices in, their aggregates out, exactly once."""

    def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with nadi.StreamManager(controller) as manager:
            for batch in batches:
                slices = [msgspec.json.decode(event.as_py(), type=Slice) for event in batch["event"]]
                aggregates = [msgspec.json.encode(aggregate(manager, scope, slice_)) for slice_ in slices]
                columns = {"event": aggregates, "routing_key": [slice_.sensor for slice_ in slices]}
                yield pa.RecordBatch.from_pydict(columns, schema=_RESULT)

    home = {"controller": controller, "scope": scope}
    slices = spark.readStream.format("nadi").options(**home, stream=SLICES).load()
    aggregates = slices.select("event").mapInArrow(process, "event binary, routing_key string")
    writer = aggregates.writeStream.format("nadi").options(**home, stream=AGGREGATES).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def main() -> int:
    arguments = job_parser("examples.sensor_slices.processor", __doc__)
    checkpoint_argument(arguments)
    return follow("slice processor", arguments.parse_args(), process_live)


if __name__ == "__main__":
    sys.exit(main())
