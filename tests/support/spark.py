"""The session of Spark that all tests of a process share; its Java compiles less, as it lives for minutes.

The variable NADI_SPARK_CONF adds settings, as "spark.sql.ansi.enabled=false;spark.sql.caseSensitive=true": so the whole
suite runs under settings that users have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"


@contextmanager
def spark_session() -> Iterator[Any]:
    """Its queries and views end with the block, it with this process: a start costs as much as ten tests."""
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    builder = tuned(SparkSession.builder.master("local[2,2]").appName("nadi tests"), java_options=JAVA_OPTIONS)
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
    """Settings that the session has until the block ends; None: Spark's default."""
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
