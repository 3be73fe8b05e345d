"""A user's program with only Spark Connect's client: neither Spark nor nadi is installed."""

import importlib.util
import sys

from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

remote, controller, folder = sys.argv[1:]
assert is_remote_only()
assert importlib.util.find_spec("nadi") is None
spark = SparkSession.builder.remote(remote).getOrCreate()
home = {"controller": controller, "scope": "home"}

rows = spark.range(200).selectExpr("concat('k', id % 5, ':', id) AS event", "concat('k', id % 5) AS routing_key")
rows.coalesce(1).write.format("nadi").options(**home, stream="written").mode("append").save()
print("batch", spark.read.format("nadi").options(**home, stream="written").load().count())

read = spark.readStream.format("nadi").options(**home, stream="written").load()
copy = (
    read.selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
    .writeStream.format("nadi")
    .options(**home, stream="copied")
    .option("checkpointLocation", f"{folder}/copied")
    .trigger(availableNow=True)
    .start()
)
copy.awaitTermination()
print("streaming", spark.read.format("nadi").options(**home, stream="copied").load().count())
