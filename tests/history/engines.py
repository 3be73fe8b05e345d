"""Engines that answer how many readings each meter has before a cut, and their sum.

Some know the whole history, table and stream together (`is_whole`); others only the events that the stream still has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Protocol

import duckdb
import polars

import nadi
import nadi.lake
from nadi import search
from nadi.model.streamcut import StreamCut
from tests.history.readings import COLUMNS, Readings, Total
from tests.history.writer_main import SCOPE, STREAM
from tests.support.spark import JAVA_OPTIONS

Answer = dict[str, Total]
WAIT_S = 120.0  # for an index to reach a cut


class Engine(Protocol):
    name: str
    is_whole: bool  # it knows truncated events, and so any earlier cut

    def query(self, cut: StreamCut) -> Answer:
        """Return the totals of each meter with readings."""


class Python:
    """Reader of single events, which checks that each meter's readings are consecutive."""

    name, is_whole = "python", False

    def __init__(self, manager: nadi.StreamManager, readings: Readings) -> None:
        self._manager, self._readings = manager, readings

    def query(self, cut: StreamCut) -> Answer:
        totals: dict[str, list[int]] = {}
        for event in self._manager.read_events(SCOPE, STREAM, end=cut, timeout=WAIT_S):
            reading = json.loads(event.data)
            meter, n = reading["meter"], reading["n"]
            own = totals.setdefault(meter, [n, 0, 0])
            assert n == own[0] + own[1], f"{meter}: reading {n} follows {own[0] + own[1] - 1}"
            own[1] += 1
            own[2] += reading["wm"]
        return {meter: Total(count, wm) for meter, (_, count, wm) in totals.items()}


class DuckDB:
    name, is_whole = "duckdb", True

    def __init__(self, manager: nadi.StreamManager) -> None:
        self._manager = manager

    def query(self, cut: StreamCut) -> Answer:
        with duckdb.connect() as connection:
            connection.register("united", nadi.lake.union(self._manager, SCOPE, STREAM, at=cut))
            rows = connection.sql("select meter, count(*), sum(wm) from united group by meter").fetchall()
        return {meter: Total(count, int(wm)) for meter, count, wm in rows}


class Polars:
    name, is_whole = "polars", True

    def __init__(self, manager: nadi.StreamManager) -> None:
        self._manager = manager

    def query(self, cut: StreamCut) -> Answer:
        united = nadi.lake.union(self._manager, SCOPE, STREAM, at=cut, columns=["wm", "meter"])
        rows = polars.DataFrame(united).group_by("meter").agg(polars.len(), polars.col("wm").sum()).rows()
        return {meter: Total(count, wm) for meter, count, wm in rows}


class Spark:
    """Spark session, open until `close`."""

    name, is_whole = "spark", True
    _options: ClassVar[dict[str, str]] = {"scope": SCOPE, "stream": STREAM, "source": "union"}

    def __init__(self, uri: str) -> None:
        from pyspark.sql import SparkSession

        from nadi.spark import tuned

        builder = SparkSession.builder.master("local[2]").appName("a judge of history")
        self._session: Any = tuned(builder, java_options=JAVA_OPTIONS).getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")
        self._uri = uri

    def query(self, cut: StreamCut) -> Answer:
        read = self._session.read.format("nadi").options(controller=self._uri, **self._options)
        rows = read.option("end", cut.as_text()).load()
        rows_by_meter = rows.selectExpr("meter", "wm").groupBy("meter").agg({"*": "count", "wm": "sum"}).collect()
        return {row["meter"]: Total(row["count(1)"], row["sum(wm)"]) for row in rows_by_meter}

    def close(self) -> None:
        self._session.stop()


class Rows:
    """The stream as a table, counted by PyArrow."""

    name, is_whole = "rows", False

    def __init__(self, manager: nadi.StreamManager) -> None:
        self._table = nadi.stream_table(manager, SCOPE, STREAM)

    def query(self, cut: StreamCut) -> Answer:
        import pyarrow

        rows_by_meter = (
            pyarrow.table(self._table.rows(end=cut)).group_by("meter").aggregate([("wm", "count"), ("wm", "sum")])
        )
        return {row["meter"]: Total(row["wm_count"], row["wm_sum"]) for row in rows_by_meter.to_pylist()}


class Index:
    """Search index, queried for counts by meter, and by value for the sums."""

    name, is_whole = "index", False

    def __init__(self, manager: nadi.StreamManager, cache: Path) -> None:
        self.search = search.indexes(manager, SCOPE).open(STREAM, cache=cache)

    def query(self, cut: StreamCut) -> Answer:
        counts = self.search.count(by="meter", limit=100, until=cut, wait_for=cut, timeout=WAIT_S)
        totals = {}
        for meter, count in counts.items():
            by_value = self.search.count(f'meter:"{meter}"', by="wm", limit=10_000, until=cut)
            assert sum(by_value.values()) == count, f"{meter}: the index has {count} and {sum(by_value.values())}"
            totals[meter] = Total(count, sum(value * times for value, times in by_value.items()))
        return totals

    def close(self) -> None:
        self.search.close()


class Latest:
    """The latest row of each meter."""

    name = "latest"

    def __init__(self, manager: nadi.StreamManager) -> None:
        self._table = nadi.stream_table(manager, SCOPE, STREAM)

    def query(self, cut: StreamCut) -> dict[str, tuple[int, int]]:
        """Return each meter's latest number and value."""
        rows = polars.DataFrame(self._table.latest(cut))
        return {row["meter"]: (row["n"], row["wm"]) for row in rows.iter_rows(named=True)}


def define_table(manager: nadi.StreamManager) -> None:
    """Define the table that `Rows` and `Latest` read."""
    manager.stream_tables(SCOPE).define(STREAM, value_schema=COLUMNS, key=["meter"], event_time="at")
