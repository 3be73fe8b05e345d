"""A user's job: count a stream's events, then copy it to another stream until a file appears."""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

controller, source, target, end, folder = sys.argv[1:]
home = {"controller": controller, "scope": "home"}
spark = SparkSession.builder.appName("copy").getOrCreate()
spark.sparkContext.setLogLevel("WARN")

rows = spark.read.format("nadi").options(**home, stream=source, end_stream_cut=end).load()
(Path(folder) / "counted.json").write_text(json.dumps({"rows": rows.count()}))

query = (
    spark.readStream.format("nadi")
    .options(**home, stream=source)
    .load()
    .selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
    .writeStream.format("nadi")
    .options(**home, stream=target)
    .option("checkpointLocation", f"{folder}/checkpoint")
    .start()
)
while not (Path(folder) / "end").exists():
    if query.awaitTermination(1):
        break
    time.sleep(0.1)
query.processAllAvailable()
query.stop()
spark.stop()
