"""The demo's steps: prepare the streams, load a year, play the live week, cut weeks by date, replay."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from rich.console import Console

from examples.running import bars
from examples.smart_meters import jobs
from examples.smart_meters.jobs import BOOKMARKS_STREAM, METERS_STREAM, SCOPE, SLICES_STREAM, FoundSlice
from examples.smart_meters.readings import Reading, encode, read_readings, week
from nadi import EventTime, EventWriter, StreamCut, StreamManager

LIVE_SECONDS = 20.0  # the live week is played within about this time
WRITE_AT_ONCE = 4_000
Week = tuple[int, int]
Cuts = tuple[str, str]


class Bookmark(msgspec.Struct):
    """A week of the meters stream: its two stream cuts, as stored in the bookmarks stream."""

    week: str
    start_cut: str
    end_cut: str


@dataclass(frozen=True, slots=True)
class Stage(jobs.Household):
    """The household with its connection."""

    manager: StreamManager


def prepare(manager: StreamManager, controller: str) -> Stage:
    """Create the scope and its three streams; the readings' event time allows cuts by date."""
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, METERS_STREAM, 2, event_time=EventTime("at", "ms"))
    for stream in (SLICES_STREAM, BOOKMARKS_STREAM):
        manager.create_stream(SCOPE, stream)
    return Stage(controller, manager)


def _batches(readings: Iterable[Reading]) -> Iterator[list[Reading]]:
    iterator = iter(readings)
    while batch := list(islice(iterator, WRITE_AT_ONCE)):
        yield batch


def _write(writer: EventWriter, batch: list[Reading]) -> None:
    writer.write_batch([encode(reading) for reading in batch], [reading.meter for reading in batch])


def _tail(stage: Stage) -> str:
    return stage.manager.stream_info(SCOPE, METERS_STREAM).tail.as_text()


def cut_week(stage: Stage, when: Week) -> Cuts:
    """Cut a week of readings by date; store the cuts by name."""
    start, end = stage.manager.cuts(SCOPE, METERS_STREAM).between(*week(*when))
    bookmark = Bookmark(f"{when[0]}-W{when[1]:02}", start.as_text(), end.as_text())
    with stage.manager.create_writer(SCOPE, BOOKMARKS_STREAM) as writer:
        writer.write_event(msgspec.json.encode(bookmark), routing_key=bookmark.week)
    stage.manager.slices(SCOPE).create(bookmark.week, start, end, note="a week of readings")
    return bookmark.start_cut, bookmark.end_cut


def load_history(stage: Stage, source: Path, before: int, console: Console) -> None:
    """Write the readings before the live week at full speed."""
    count, began = 0, time.monotonic()
    with stage.manager.create_writer(SCOPE, METERS_STREAM) as writer, bars(console) as progress:
        task = progress.add_task("history", total=None)
        for batch in _batches(read_readings(source, None, before)):
            _write(writer, batch)
            count += len(batch)
            progress.update(task, completed=count)
        writer.flush()
        progress.update(task, total=count)
    console.print(f"{count:,} events loaded in {time.monotonic() - began:.0f} s")


def play_live(
    stage: Stage, spark: SparkSession, source: Path, live: Week, checkpoint: Path, console: Console
) -> list[FoundSlice]:
    """Play the live week while the Spark job follows the tail; return its slices."""
    start_ms, end_ms = week(*live)
    readings = list(read_readings(source, start_ms, end_ms))
    later = read_readings(source, end_ms)  # in the full data set three more weeks follow
    start = _tail(stage)
    stage.manager.bookmarks(SCOPE).create("live", StreamCut.from_text(start), note="start of the live week")
    query = jobs.find_slices_live(spark, stage, StreamCut.from_text(start), checkpoint)
    try:
        with stage.manager.create_writer(SCOPE, METERS_STREAM) as writer, bars(console) as progress:
            played = progress.add_task("live week", total=len(readings))
            slices = progress.add_task("slices found by Spark", total=None)
            steps = 100
            size = -(-len(readings) // steps)
            for number in range(steps):
                _write(writer, readings[number * size : (number + 1) * size])
                writer.flush()
                progress.advance(played, len(readings[number * size : (number + 1) * size]))
                progress.update(slices, completed=len(_slices(stage)))
                time.sleep(LIVE_SECONDS / steps)
            after = None
            for batch in _batches(later):
                after = progress.add_task("the weeks after it", total=None) if after is None else after
                _write(writer, batch)
                progress.advance(after, len(batch))
            writer.flush()
            query.processAllAvailable()
            found = _slices(stage)
            progress.update(slices, completed=len(found), total=len(found))
    finally:
        query.stop()
    return sorted(found, key=lambda slice_: (slice_.start, slice_.meter))


def _slices(stage: Stage) -> list[FoundSlice]:
    tail = stage.manager.stream_info(SCOPE, SLICES_STREAM).tail
    events = stage.manager.read_events(SCOPE, SLICES_STREAM, end=tail)
    return [msgspec.json.decode(event.data, type=FoundSlice) for event in events]


def replay(stage: Stage, spark: SparkSession, found: list[FoundSlice], console: Console) -> list[int]:
    """Return each slice's energy from a bounded Spark read between its own cuts."""
    with bars(console) as progress:
        return [jobs.energy_of_slice(spark, stage, slice_) for slice_ in progress.track(found, description="replays")]
