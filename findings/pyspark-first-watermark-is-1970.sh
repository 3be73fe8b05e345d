#!/usr/bin/env bash
# A streaming query of Spark drops rows of before 1970 as late in its first batch, before any row has made a watermark and
# however large its delay is: its first watermark isn't "none" but 0, which is 1970, and no delay is taken from that. A
# window over a history such as weather records loses them without a word but the metric numRowsDroppedByWatermark.
# Seen with PySpark 4.3.0, with the update mode; a row of 1969 is dropped though the delay is 100 years.
# Users of nadi who replay such a history shift its times: docs/spark.md, "Windows over history".
set -euo pipefail
command -v java >/dev/null || [ -x "${JAVA_HOME:-}/bin/java" ] || { echo "Spark needs Java 17 or later" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pyspark==4.3.0'
cd "$folder"
SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import json
import os

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

settings = {"shuffle.partitions": "1", "session.timeZone": "UTC", "streaming.ui.enabled": "false"}
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(f"spark.sql.{name}", value)
spark = builder.getOrCreate()
os.mkdir("in")
with open("in/rows.json", "w") as file:
    for at in ("1969-07-20T20:17:40Z", "1975-07-17T16:19:09Z", "2026-01-01T00:00:00Z"):
        file.write(json.dumps({"at": at}) + "\n")
rows = spark.readStream.schema("at timestamp").json("in")
counts = rows.withWatermark("at", "36500 days").groupBy(window("at", "1 day")).count()
query = counts.writeStream.format("memory").queryName("days").outputMode("update").trigger(availableNow=True).start()
query.awaitTermination()
days = sorted(str(row.window.start.date()) for row in spark.table("days").collect())
dropped = sum(p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress)
print(f"PySpark {pyspark.__version__}: days {days}, rows dropped by the watermark: {dropped}")
raise SystemExit(0 if (days, dropped) == (["1975-07-17", "2026-01-01"], 1) else 1)
PYTHON
