#!/usr/bin/env bash
# The project that `spark-pipelines init` makes runs once: its second `spark-pipelines run` fails with
# LOCATION_ALREADY_EXISTS, as the default catalog is in memory and forgets the tables, but their folders remain. One
# would expect an incremental update, which is what the command's help promises.
# Seen with PySpark 4.3.0.
# Users of nadi set a catalog that outlives a run: docs/spark.md, "Declarative pipelines".
set -euo pipefail
command -v java >/dev/null || [ -x "${JAVA_HOME:-}/bin/java" ] || { echo "Spark needs Java 17 or later" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pyspark[pipelines]==4.3.0' 'pandas<3'
cd "$folder"
export PATH=$folder/venv/bin:$PATH PYSPARK_PYTHON=$folder/venv/bin/python SPARK_LOCAL_IP=127.0.0.1
unset SPARK_HOME SPARK_CONF_DIR
spark-pipelines init --name project >/dev/null
cd project
spark-pipelines run >../first.log 2>&1 || { tail -3 ../first.log; echo "the first run fails"; exit 1; }
if spark-pipelines run >../second.log 2>&1; then echo "the second run succeeds"; exit 1; fi
grep -o -m 1 'LOCATION_ALREADY_EXISTS.*Cannot name the managed table as [^,]*' ../second.log
