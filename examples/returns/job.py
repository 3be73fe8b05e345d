"""The job: joins each return with the sales it may belong to, and writes the pairs to `pairs`.

A join of two streams. Each return waits in Spark's state for sales stored after it, and each sale for thirty days of
returns; the watermarks bound the waits. A return without a sale is written alone once the watermark has passed it.
Pairs are written exactly once, however often the job is killed and restarted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.programs import checkpoint_argument, follow, job_parser
from examples.returns.checker import PAIRS
from examples.returns.producer import RETURNS, SALES
from examples.returns.shop import RETURNED_WITHIN_MS, WATERMARK_MS

LINE = "id string, customer string, item string, at long, quantity int"


def join_live(spark: SparkSession, controller: str, scope: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: sales and returns in, pairs out, exactly once."""
    home = {"controller": controller, "scope": scope}

    def lines(stream: str) -> DataFrame:
        events = spark.readStream.format("nadi").options(**home, stream=stream).load()
        parsed = events.select(F.from_json(F.col("event").cast("string"), LINE).alias("line")).select("line.*")
        timed = parsed.withColumn("time", F.timestamp_millis("at"))
        return timed.withWatermark("time", f"{WATERMARK_MS} milliseconds").alias(stream)

    within = f"INTERVAL '{RETURNED_WITHIN_MS // 1000}' SECOND"
    matches = F.expr(
        "returns.customer = sales.customer AND returns.item = sales.item"
        f" AND sales.time BETWEEN returns.time - {within} AND returns.time"
    )
    pairs = lines(RETURNS).join(lines(SALES), matches, "leftOuter")
    both = F.struct(F.col("returns.id").alias("back"), F.col("sales.id").alias("sale"))
    event = F.to_json(both, {"ignoreNullFields": "false"}).cast("binary")
    events = pairs.select(event.alias("event"), F.col("returns.customer").alias("routing_key"))
    writer = events.writeStream.format("nadi").options(**home, stream=PAIRS).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def main() -> int:
    arguments = job_parser("examples.returns.job", __doc__)
    checkpoint_argument(arguments)
    return follow("returns", arguments.parse_args(), join_live)


if __name__ == "__main__":
    sys.exit(main())
