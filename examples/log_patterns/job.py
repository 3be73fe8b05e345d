"""The job: follows `lines`, and writes each five-minute window's errors to `patterns` after the window has ended.

A streaming aggregation of Spark: its state has the counts so far, next to its position. A window has ended when the
watermark passes its end; the watermark follows the latest line at a distance that no line in time can exceed, so Spark
itself drops none. Each batch's windows are written in transactions that are committed once, however often the job is
killed and restarted with the same checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.log_patterns.lines import LATE_MS, TOO_LATE, VARIABLE, WATERMARK_MS, WINDOW_MS
from examples.log_patterns.producer import LINES
from examples.programs import checkpoint_argument, follow, job_parser

PATTERNS = "patterns"


def errors_of(lines: DataFrame) -> DataFrame:
    """Return time, service and pattern of each error line."""
    parts = F.split(F.col("event").cast("string"), " ", 6)
    named = lines.select(
        F.try_to_timestamp(F.get(parts, F.lit(0))).alias("received"),
        F.try_to_timestamp(F.get(parts, F.lit(1))).alias("at"),
        F.get(parts, F.lit(3)).alias("service"),
        F.get(parts, F.lit(4)).alias("level"),
        F.get(parts, F.lit(5)).alias("message"),
    )
    errors = named.where("received IS NOT NULL AND at IS NOT NULL AND level = 'ERROR' AND message IS NOT NULL")
    is_late = F.unix_millis("received") - F.unix_millis("at") > LATE_MS
    time = F.when(is_late, F.col("received")).otherwise(F.col("at"))
    pattern = F.when(is_late, F.lit(TOO_LATE)).otherwise(F.regexp_replace("message", VARIABLE, "#"))
    return errors.select(time.alias("time"), "service", pattern.alias("pattern"))


def count_live(spark: SparkSession, controller: str, scope: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: lines in, counts of errors out, exactly once."""
    home = {"controller": controller, "scope": scope}
    lines = spark.readStream.format("nadi").options(**home, stream=LINES).load()
    counts = (
        errors_of(lines)
        .withWatermark("time", f"{WATERMARK_MS} milliseconds")
        .groupBy(F.window("time", f"{WINDOW_MS} milliseconds"), "service", "pattern")
        .count()
    )
    start = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm'Z'").alias("window")
    values = F.to_json(F.struct(start, "service", "pattern", "count")).cast("binary")
    events = counts.select(values.alias("event"), F.col("service").alias("routing_key"))
    writer = events.writeStream.format("nadi").options(**home, stream=PATTERNS).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def main() -> int:
    arguments = job_parser("examples.log_patterns.job", __doc__)
    checkpoint_argument(arguments)
    return follow("log patterns", arguments.parse_args(), count_live)


if __name__ == "__main__":
    sys.exit(main())
