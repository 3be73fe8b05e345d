"""The Spark session shared by all tests of a process; its Java compiles less, as it lives only for minutes.

The variable NADI_SPARK_CONF adds settings, such as "spark.sql.ansi.enabled=false;spark.sql.caseSensitive=true", to run
the whole suite with users' settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from bench.jars import SPARK, Missing, jars_of

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"


@contextmanager
def spark_session() -> Iterator[Any]:
    """Return the session. Its queries and views end with the block, the session with the process: starts are costly.

    It has Spark's source for Kafka, if that can be downloaded.
    """
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    builder = tuned(SparkSession.builder.master("local[2,2]").appName("nadi tests"), java_options=JAVA_OPTIONS)
    builder.config("spark.sql.shuffle.partitions", "2")
    with suppress(Missing):
        builder.config("spark.jars", ",".join(map(str, jars_of(SPARK))))
    for setting in filter(None, os.environ.get("NADI_SPARK_CONF", "").split(";")):
        builder.config(*setting.split("=", 1))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        for table in session.catalog.listTables():
            if table.isTemporary:
                session.catalog.dropTempView(table.name)


@contextmanager
def with_settings(session: Any, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Apply settings until the block ends; None: Spark's default."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        _set(session, settings)
        yield
    finally:
        _set(session, before)


def _set(session: Any, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)
