"""The demo's Spark jobs: the streaming job that finds slices, and the batch jobs that replay them.

All of them run the same fold (`slices.fold`). Readings are JSON events; Spark parses them and groups them by meter;
within a group they are sorted in the order of the stream, (segment, offset), as a shuffle doesn't preserve order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.smart_meters.readings import Reading
from examples.smart_meters.slices import RULES, Position, Slice, Stretch, fold, micro_wh
from nadi import StreamCut
from nadi.spark import in_order

POSITION_COLUMNS = ("segment_id", "offset", "position_before", "position")  # the position of a row
SCOPE, METERS_STREAM, SLICES_STREAM, BOOKMARKS_STREAM = "home", "meters", "slices", "bookmarks"


class FoundSlice(msgspec.Struct, frozen=True):
    """A slice as stored in the slices stream: its cuts, times and energy."""

    meter: str
    start_cut: str
    end_cut: str
    start: int  # ms since 1970, UTC
    end: int
    energy_micro_wh: int
    energy_wh: float

    def slice(self) -> Slice:
        return Slice(self.meter, self.start, self.end, self.energy_micro_wh, (), ())


@dataclass(frozen=True, slots=True)
class Household:
    """The address of the household's streams."""

    controller: str


def _options(household: Household, stream: str) -> dict[str, str]:
    return {"controller": household.controller, "scope": SCOPE, "stream": stream}


def _parsed(events: DataFrame, *columns: str) -> DataFrame:
    reading = F.from_json(F.col("event").cast("string"), "meter string, at long, wh double").alias("r")
    return events.select(reading, *columns).select("r.*", *columns)


def _bounded(spark: SparkSession, household: Household, start: str, end: str, *columns: str) -> DataFrame:
    """Return the readings between two cuts, with the given ones of POSITION_COLUMNS."""
    options = _options(household, METERS_STREAM) | {"start_stream_cut": start, "end_stream_cut": end}
    return _parsed(spark.read.format("nadi").options(**options, columns=",".join(["event", *columns])).load(), *columns)


def _placed(frames: pd.DataFrame | Iterator[pd.DataFrame]) -> list[tuple[Reading, Position]]:
    """Return a meter's readings in order, with their positions."""
    rows = in_order(frames)
    return [(Reading(row.meter, row.at, row.wh), (row.position_before, row.position)) for row in rows]


def _found_slice(found: Slice) -> FoundSlice:
    """Return the slice with its two stream cuts, before its first event and after its last."""
    return FoundSlice(
        found.meter,
        str(found.first_position[0]),
        str(found.last_position[1]),
        found.start,
        found.end,
        found.energy_micro_wh,
        found.energy_wh,
    )


def find_slices_live(spark: SparkSession, household: Household, start: StreamCut, checkpoint: Path) -> StreamingQuery:
    """Start the streaming job: meters stream in, slices out, exactly once."""

    def step(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        stretch = Stretch.from_text(state.get[0]) if state.exists and state.get[0] else None
        stretch, finished = fold(RULES[key[0]], stretch, _placed(frames))
        state.update((stretch.as_text() if stretch is not None else "",))
        events = [msgspec.json.encode(_found_slice(found)) for found in finished]
        yield pd.DataFrame({"event": events, "routing_key": [key[0]] * len(events)})

    options = _options(household, METERS_STREAM) | {"start_stream_cut": start.as_text()}
    rows = spark.readStream.format("nadi").options(**options, columns=",".join(["event", *POSITION_COLUMNS])).load()
    readings = _parsed(rows, *POSITION_COLUMNS)
    slices = readings.groupBy("meter").applyInPandasWithState(
        step, "event binary, routing_key string", "stretch string", "append", "NoTimeout"
    )
    writer = slices.writeStream.format("nadi").options(**_options(household, SLICES_STREAM))
    return writer.option("checkpointLocation", str(checkpoint)).outputMode("append").start()


def slices_of(spark: SparkSession, household: Household, start: str, end: str) -> list[FoundSlice]:
    """Run the same algorithm over a bookmarked range of the stream."""

    def whole(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
        _, finished = fold(RULES[key[0]], None, _placed(frame))
        return pd.DataFrame({"found": [msgspec.json.encode(_found_slice(found)) for found in finished]})

    rows = (
        _bounded(spark, household, start, end, *POSITION_COLUMNS)
        .groupBy("meter")
        .applyInPandas(whole, "found binary")
        .collect()
    )
    found = [msgspec.json.decode(bytes(row.found), type=FoundSlice) for row in rows]
    return sorted(found, key=lambda slice_: (slice_.start, slice_.meter))


def energy_of_slice(spark: SparkSession, household: Household, found: FoundSlice) -> int:
    """Read a slice between its own two cuts, and sum its energy in micro-watt-hours again."""
    rows = _bounded(spark, household, found.start_cut, found.end_cut).where(F.col("meter") == found.meter)
    return sum(micro_wh(row.wh) for row in rows.select("wh").collect())


def readings_of(spark: SparkSession, household: Household, start: str, end: str) -> list[Reading]:
    """Return all readings between two cuts, by time."""
    rows = _bounded(spark, household, start, end).select("meter", "at", "wh").collect()
    return sorted((Reading(row.meter, row.at, row.wh) for row in rows), key=lambda reading: reading.at)


def energy_by_meter(spark: SparkSession, household: Household, start: str, end: str) -> dict[str, int]:
    """Return the micro-watt-hours of each meter between two cuts."""

    def add(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"meter": [key[0]], "micro_wh": [sum(map(micro_wh, frame["wh"]))]})

    rows = _bounded(spark, household, start, end).groupBy("meter").applyInPandas(add, "meter string, micro_wh long")
    return {row.meter: row.micro_wh for row in rows.collect()}
