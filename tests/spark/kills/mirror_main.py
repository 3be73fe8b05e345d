"""A driver for kill tests: windows are counted under Spark's default settings, and the checkpoint is mirrored.

Arguments: controller, folder, the number of queries. It runs until it is killed, and ends with 3 if one fails.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(controller: str, folder: str, queries: str) -> int:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from nadi.spark import tuned
    from tests.spark.kills.killing import Killing
    from tests.support.spark import JAVA_OPTIONS

    builder = tuned(SparkSession.builder.master("local[2]").appName("to be killed"), java_options=JAVA_OPTIONS)
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Killing)
    for number in range(int(queries)):
        checkpoint = str(Path(folder) / f"checkpoint-{number}")
        options = {"controller": controller, "scope": "home", "kills": f"{folder}:{number}"}
        reader = spark.readStream.format("killing").options(**options, stream="in", mirror_name=f"windows-{number}")
        rows = (
            reader.option("mirror_checkpoint", checkpoint).load().selectExpr("timestamp_seconds(INT(STRING(event))) t")
        )
        counts = rows.withWatermark("t", "20 seconds").groupBy(F.window("t", "10 seconds")).count()
        events = counts.selectExpr("CONCAT(UNIX_TIMESTAMP(window.start), ':', count) AS event")
        writer = events.writeStream.format("killing").options(**options, stream=f"out-{number}")
        writer.option("checkpointLocation", checkpoint).start()
    try:
        spark.streams.awaitAnyTermination()
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
    return 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
