#!/usr/bin/env bash
# A streaming query of Spark with named sources (source evolution) drops a source and later takes it up again, under the
# same name and with the same checkpoint. If one batch ran meanwhile, the source continues where it stopped. If two ran,
# it starts over at its first offset, without an error or a warning, and all its rows are processed twice. One would
# expect the position to be kept by name, as the offset log keeps all batches (100), or an error in both cases.
# Seen with PySpark 4.3.0.
# Users of nadi keep the position in a reader group: docs/spark.md, "Change the sources of a query".
set -euo pipefail
command -v java >/dev/null || [ -x "${JAVA_HOME:-}/bin/java" ] || { echo "Spark needs Java 17 or later" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pyspark==4.3.0' pyarrow
cd "$folder"
SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON="$folder/venv/bin/python" "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import os

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow


class Count(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields the numbers below that in a file."""

    def __init__(self, options):
        self.file = options["file"]

    def initialOffset(self):
        return {"at": 0}

    def prepareForTriggerAvailableNow(self):
        pass

    def latestOffset(self, start, limit):
        return {"at": int(open(self.file).read())}

    def partitions(self, start, end):
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition):
        yield from ((number,) for number in range(*partition.value))


class Counting(DataSource):
    @classmethod
    def name(cls):
        return "counting"

    def schema(self):
        return "number int"

    def streamReader(self, schema):
        return Count(self.options)


settings = {"ui.enabled": "false", "sql.shuffle.partitions": "1"}
settings["sql.streaming.queryEvolution.enableSourceEvolution"] = "true"
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.getOrCreate()
spark.dataSource.register(Counting)


def rows_of_b(batches_without_b):
    """Return how many rows of b the query processes, of 10."""
    case, numbers = f"{batches_without_b}", {"a": 0, "b": 0}
    total = 0
    for sources in ("ab", *["a"] * batches_without_b, "ab"):
        numbers["a"] += 10
        numbers["b"] = 10
        for name, number in numbers.items():
            open(f"{case}-{name}", "w").write(str(number))
        frames = [
            spark.readStream.format("counting").option("file", os.path.abspath(f"{case}-{name}")).name(name).load()
            .selectExpr(f"'{name}' AS source", "number")
            for name in sources
        ]
        rows = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
        counts = []
        query = rows.writeStream.foreachBatch(lambda batch, _: counts.append(batch.where("source = 'b'").count()))
        query.option("checkpointLocation", f"checkpoint-{case}").trigger(availableNow=True).start().awaitTermination()
        total += sum(counts)
    return total


found = rows_of_b(1), rows_of_b(2)
print(f"PySpark {pyspark.__version__}: of 10 rows, the query has processed {found[0]} and {found[1]}")
raise SystemExit(0 if found == (10, 20) else 1)
PYTHON
