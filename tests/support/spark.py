"""A session of Spark for a test, whose Java compiles less: it lives for a minute, and beside others.

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
def spark_session(name: str, master: str = "local[2]") -> Iterator[Any]:
    """It ends with the block, its Java with this process."""
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    builder = tuned(SparkSession.builder.master(master).appName(name), java_options=JAVA_OPTIONS)
    for setting in filter(None, os.environ.get("NADI_SPARK_CONF", "").split(";")):
        builder.config(*setting.split("=", 1))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


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
