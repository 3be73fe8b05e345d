"""A session of Spark for a test, whose Java compiles less: it lives for a minute, and beside others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"


@contextmanager
def spark_session(name: str, master: str = "local[2]") -> Iterator[Any]:
    """It ends with the block, its Java with this process."""
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    session = tuned(SparkSession.builder.master(master).appName(name), java_options=JAVA_OPTIONS).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
