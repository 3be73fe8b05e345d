"""A driver for kill tests: a query for each link of a chain of streams. Arguments: controller, folder, master, streams.

Prints a line once the queries run; ends with 3 if one fails, and exits once all events are processed if the file `end`
exists.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path


def main(controller: str, folder: str, master: str, *streams: str) -> int:
    from pyspark.sql import SparkSession

    from nadi.spark import tuned
    from tests.spark.kills.killing import Killing
    from tests.support.spark import JAVA_OPTIONS

    here = Path(folder)
    builder = tuned(SparkSession.builder.master(master).appName("a chain to be killed"), java_options=JAVA_OPTIONS)
    builder = builder.config("spark.executor.memory", "600m").config(
        "spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]
    )
    builder = builder.config("spark.excludeOnFailure.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Killing)
    at = {"controller": controller, "scope": "home"}
    queries = []
    for link, (source, target) in enumerate(pairwise(streams)):
        kills = f"{folder}:{link}"
        limits = {"max_bytes_per_trigger": 100_000, "min_partition_bytes": 1, "max_partitions": 3}
        lost = {"groupId": f"link-{link}", "output": target, "startAt": "last-committed"}  # if the checkpoint is
        rows = spark.readStream.format("killing").options(**at, stream=source, kills=kills, **limits, **lost).load()
        keyed = rows.selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
        writer = keyed.writeStream.format("killing").options(**at, stream=target, kills=kills)
        queries.append(writer.option("checkpointLocation", str(here / f"checkpoint-{link}")).start())
    print("running", flush=True)
    while True:
        is_last = (here / "end").exists()
        for query in queries:
            if is_last and query.exception() is None:
                query.processAllAvailable()
            if (error := query.exception()) is not None:
                print(error, file=sys.stderr, flush=True)
                return 3
        if is_last:
            break
        time.sleep(0.1)
    for query in queries:
        query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
