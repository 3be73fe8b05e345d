"""A user's program for a Spark Connect server: batch, write, streaming and foreachBatch, by the format's name."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

remote, controller, folder = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
home = {"controller": controller, "scope": "home"}

rows = spark.createDataFrame([(f"k{number % 5}:{number}", f"k{number % 5}") for number in range(200)], ["event", "key"])
options = {**home, "stream": "written", "allow_create_stream": "true", "routing_key_attribute_name": "key"}
rows.coalesce(1).write.format("nadi").options(**options).mode("append").save()
print("batch", spark.read.format("nadi").options(**home, stream="written").load().count())

read = spark.readStream.format("nadi").options(**home, stream="written", start_stream_cut="earliest").load()
keyed = read.selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
copy = (
    keyed.writeStream.format("nadi")
    .options(**home, stream="copied", allow_create_stream="true")
    .option("checkpointLocation", str(Path(folder) / "copied"))
    .trigger(availableNow=True)
    .start()
)
copy.awaitTermination()
print("streaming", spark.read.format("nadi").options(**home, stream="copied").load().count())


def each(batch, number):  # type: ignore[no-untyped-def]
    options = {"controller": controller, "scope": "home", "stream": "each", "allow_create_stream": "true"}
    batch.write.format("nadi").options(**options).mode("append").save()


query = (
    keyed.writeStream.foreachBatch(each)
    .option("checkpointLocation", str(Path(folder) / "each"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("foreachBatch", spark.read.format("nadi").options(**home, stream="each").load().count())

written = {bytes(row.event) for row in spark.read.format("nadi").options(**home, stream="written").load().collect()}
given = rows.toArrow()
forms = {
    "Arrow": spark.createDataFrame(given),
    "pandas": spark.createDataFrame(given.to_pandas()),
    "mapInArrow": rows.mapInArrow(lambda batches: batches, rows.schema),
    "mapInPandas": rows.mapInPandas(lambda frames: frames, rows.schema),
}
for form, frame in forms.items():
    options["stream"] = form
    frame.write.format("nadi").options(**options, default_num_segments=2).mode("append").save()
    found = spark.read.format("nadi").options(**home, stream=form, columns="event,segment_id").load()
    events = found.toPandas()["event"] if form == "pandas" else found.toArrow()["event"].to_pylist()
    assert {bytes(event) for event in events} == written, form
    assert len(set(found.toPandas()["segment_id"])) == 2, "their keys say where they go"
print("forms", len(forms))

try:
    from nadi import StreamManager
    from nadi.spark import follow_segments

    with StreamManager(controller) as manager:
        follow_segments(spark, manager, "home", "written", max_executors=2)
except ValueError as error:
    print("executors:", error)
spark.stop()
