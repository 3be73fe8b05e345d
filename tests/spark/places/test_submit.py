"""`spark-submit` of a program on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nadi

from .cluster import SPARK, source_path
from .guide import command

PROGRAM = """
import nadi
from pyspark.sql import SparkSession
from nadi.spark import follow_segments

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("nadi").options(controller={controller!r}, scope="home", stream="meters").load()
print("counted", rows.count())
try:
    with nadi.StreamManager({controller!r}) as manager:
        follow_segments(spark, manager, "home", "meters", max_executors=2)
except ValueError as error:
    print("executors:", error)
"""


@pytest.mark.spark
@pytest.mark.slow  # on a cluster, test_standalone.py does it in its quick form
@pytest.mark.timeout(300)
def test_a_program_is_submitted(tmp_path: Path) -> None:
    submit = command(
        "spark-submit --master spark://spark.example:7077 job.py",
        {"spark://spark.example:7077": '"local[2]"', "/opt/nadi/bin/python": sys.executable},
    )
    path = {"PATH": f"{SPARK / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": source_path()}
    with nadi.embedded(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", 2)
        with manager.create_writer("home", "meters") as writer:
            for number in range(100):
                writer.write_event(b"%d" % number, str(number))
        (tmp_path / "job.py").write_text(PROGRAM.format(controller=server.controller_uri))
        done = subprocess.run(
            ["bash", "-ec", submit],
            cwd=tmp_path,
            env=os.environ | path | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK)},
            capture_output=True,
            text=True,
            timeout=250,
        )
    assert done.returncode == 0, done.stderr
    assert "counted 100" in done.stdout
    assert "executors: spark: master local[2]" in done.stdout
