"""A short typical Spark program with nadi, run so that Java can archive the classes it loads.

    python -m nadi.cli.spark.rehearsal FILE

writes them to FILE. Its session reads a stream, aggregates it, copies it to another one with a query, and writes files.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nadi import StreamManager, embedded
from nadi.spark import tuned
from nadi.spark.tuning import QUIET, TUNED

_EVENTS = 200
_JAVA = "spark.driver.extraJavaOptions"
_DUMP_S = 300.0


def rehearse(archive: Path) -> None:
    """Run the program and have Java write the archive when it ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = tuned(SparkSession.builder.master("local[2]").appName("nadi spark archive"))
    builder.config(_JAVA, f"{TUNED[_JAVA]} -XX:ArchiveClassesAtExit={archive} {QUIET}")
    with tempfile.TemporaryDirectory() as folder:
        with embedded(Path(folder, "data")) as server, StreamManager(server.controller_uri) as manager:
            spark = builder.getOrCreate()
            spark.sparkContext.setLogLevel("OFF")
            _programs(spark, manager, {"controller": server.controller_uri, "scope": "rehearsal"}, folder)
            spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None, "the session has a gateway"
        gateway.proc.stdin.close()  # ends Java, which then writes the archive
        gateway.proc.wait(_DUMP_S)


def _programs(spark: Any, manager: StreamManager, home: dict[str, str], folder: str) -> None:
    manager.create_scope(home["scope"])
    manager.create_stream(home["scope"], "in", 2)
    manager.create_stream(home["scope"], "out", 2)
    with manager.create_writer(home["scope"], "in") as writer:
        for number in range(_EVENTS):
            writer.write_event(b"%d" % number, str(number % 7))
    nadi = {"format": "nadi", **home}
    rows = spark.read.load(**nadi, stream="in").selectExpr("CAST(event AS string) AS text", "segment_id")
    rows.groupBy("segment_id").count().collect()
    rows.join(rows.limit(5), "text").orderBy("text").toPandas() if find_spec("pandas") else rows.collect()
    rows.write.json(os.path.join(folder, "json"))
    rows.write.parquet(os.path.join(folder, "parquet"))
    spark.read.parquet(os.path.join(folder, "parquet")).count()
    rows.selectExpr("text AS event").write.format("nadi").options(**home, stream="out").mode("append").save()
    copied = (
        spark.readStream.load(**nadi, stream="in")
        .selectExpr("event", "CAST(segment_id AS string) AS routing_key")
        .writeStream.format("nadi")
        .options(**home, stream="out")
        .option("checkpointLocation", os.path.join(folder, "copied"))
        .start()
    )
    counted = (
        spark.readStream.load(**nadi, stream="in")
        .groupBy("segment_id")
        .count()
        .writeStream.foreachBatch(lambda batch, _: batch.collect() and None)
        .outputMode("update")
        .option("checkpointLocation", os.path.join(folder, "counted"))
        .start()
    )
    for query in (copied, counted):
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    rehearse(Path(sys.argv[1]))
