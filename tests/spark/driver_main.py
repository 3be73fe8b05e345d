"""A driver to be killed: copies stream `in` to `out` until it is told to end by a file.

Arguments: controller, checkpoint folder, file. Prints a line once the query runs.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(controller: str, checkpoint: str, end: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    spark = tuned(SparkSession.builder.master("local[2]").appName("driver to be killed")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    at = {"controller": controller, "scope": "home"}
    rows = spark.readStream.format("nadi").options(**at, stream="in", max_bytes_per_trigger=200_000).load()
    keyed = rows.selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
    query = (
        keyed.writeStream.format("nadi").options(**at, stream="out").option("checkpointLocation", checkpoint).start()
    )
    print("running", flush=True)
    while not Path(end).exists():
        error = query.exception()
        if error is not None:
            raise error
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
