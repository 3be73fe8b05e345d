"""Driver of the query in `spark`.

    python -m tests.cluster.foreign_clients.spark_main URI STREAM FOLDER

At a line on its standard input it copies all remaining events, writes the file `settled`, and ends. It exits with 3 if
the query fails.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from nadi.spark import tuned
from tests.cluster.processes.client import put
from tests.crash.load import SCOPE, STREAM
from tests.support.spark import JAVA_OPTIONS

_POLL_S = 0.1


def main(uri: str, copies: str, folder: Path) -> int:
    builder = tuned(
        SparkSession.builder.master("local[2]").appName("a verifier of a cluster"), java_options=JAVA_OPTIONS
    )
    spark = builder.config("spark.driver.memory", "800m").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    at = {"controller": uri, "scope": SCOPE}
    rows = spark.readStream.format("nadi").options(**at, stream=STREAM, columns="event").load()
    keyed = rows.selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
    writer = keyed.writeStream.format("nadi").options(**at, stream=copies).trigger(processingTime="1 second")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    signal = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        signal.set()

    threading.Thread(target=listen, daemon=True).start()
    while not signal.wait(_POLL_S):
        if (error := query.exception()) is not None:
            print(error, file=sys.stderr, flush=True)
            return 3
        if (last := query.lastProgress) is not None:
            put(folder / "progress", {"batches": last["batchId"]})
    query.processAllAvailable()
    if (error := query.exception()) is not None:
        print(error, file=sys.stderr, flush=True)
        return 3
    query.stop()
    put(folder / "settled", True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
