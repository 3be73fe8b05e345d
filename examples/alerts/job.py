"""The job: writes an alert when a meter has used more than its hour's budget, in Spark's real-time mode.

It reads the topic `meters` and writes to `alerts` through nadi's Kafka door. Each reading is added exactly once to its
meter's sum, however often the job is killed and restarted. An alert is written at least once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.alerts.budgets import ALERTS, BUDGETS, METERS
from examples.programs import checkpoint_argument, input_closes_within, spark_session
from examples.running import INTERRUPTED

SPARK = {
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",  # of rows on their way to the state (50: 50 ms more)
    "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",  # from Maven Central, on first use
    "spark.master": "local[3]",  # all tasks of a query run at once: one per partition, and one per shuffle partition
}


def alert_live(spark: SparkSession, kafka: str, checkpoint: Path) -> StreamingQuery:
    """Start the query: readings in, alerts out."""
    servers = {"kafka.bootstrap.servers": kafka}
    source = spark.readStream.format("kafka").options(**servers, subscribe=METERS, startingOffsets="earliest")
    reading = F.from_json(F.col("value").cast("string"), "meter string, at long, micro_wh long, sent long")
    budget = F.create_map(*[F.lit(each) for pair in BUDGETS.items() for each in pair])
    readings = source.load().select(reading.alias("reading")).select("reading.*")
    sums = readings.groupBy("meter", F.expr("at div 3600000").alias("hour")).agg(
        F.sum("micro_wh").alias("used"), F.last("micro_wh").alias("latest"), F.last("sent").alias("sent")
    )
    sums = sums.withColumn("budget", budget[F.col("meter")])
    crossed = sums.where("used > budget AND used - latest <= budget")
    alerts = crossed.select(
        F.col("meter").alias("key"), F.to_json(F.struct("meter", "hour", "used", "sent")).alias("value")
    )
    writer: Any = alerts.writeStream.format("kafka").options(**servers, topic=ALERTS).outputMode("update")
    query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).trigger(realTime="1 minute").start()
    return query


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m examples.alerts.job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--kafka", required=True, metavar="HOST:PORT", help="the door")
    arguments.add_argument("--until-input-closes", action="store_true", help="end when stdin closes")
    checkpoint_argument(arguments)
    options = arguments.parse_args()
    try:
        with spark_session("alerts", options.checkpoint / "local", settings=SPARK) as spark:
            query = alert_live(spark, options.kafka, options.checkpoint)
            while not options.until_input_closes or not input_closes_within(0.2):
                if query.awaitTermination(1):
                    return 1
            query.stop()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
