"""The column `event_time` with a server: as noted by writers, across scalings, truncations and restarts."""

from __future__ import annotations

import datetime
import itertools
import random
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import StructType

import nadi
from nadi.client.manager.streams import stores_of
from nadi.client.scan import rows as event_times
from nadi.client.state_sync.revisioned_stream import open_revisioned_stream
from nadi.errors import InvalidArgumentError
from nadi.model.keyspace import equal_ranges
from nadi.model.watermark import SegmentPosition, Watermark, encode_watermark
from nadi.spark.connections import client_of
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.streaming import StreamReader
from nadi.spark.source_requests import BatchReader
from pyspark_nadi import DefaultSource
from tests.support.waiting import until

from .queries import Home
from .scaled import KEYS, scale_somehow

COLUMNS = "event, event_time, segment_id"
SERVER_LIMITS = "watermark_period_s=0.1"  # they are made often
STEP = 25  # events between two notes
_names = itertools.count()


class Noted:
    """A stream of events that are their own times, counting up; times are noted after every STEP of them."""

    def __init__(self, home: Home) -> None:
        self.manager, self.stream = home.manager, f"noted-{next(_names)}"
        self.cuts = self.manager.cuts("home", self.stream)
        self.written = 0
        self.manager.create_stream("home", self.stream, 2)
        self.writer = self.manager.create_writer("home", self.stream)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            numbers = range(self.written, self.written + STEP)
            self.writer.write_batch([b"%d" % number for number in numbers], [f"k{number % KEYS}" for number in numbers])
            self.written += STEP
            self.writer.note_time(self.written)
            until(lambda: self.cuts.after_event_time(self.written))


def add_watermark(home: Home, stream: str, noted: int, offset: int) -> None:
    """Add a watermark like the controller, in a stream of one segment."""
    client = client_of(options_of(home, stream).controller)

    async def add() -> None:
        marks = await open_revisioned_stream(stores_of(client.manager), "home", f"_MARK{stream}")
        entry = encode_watermark(Watermark(noted, noted, (SegmentPosition(0, 0.0, 1.0, offset),)))
        await marks.append(entry, (await marks.extent()).end)

    client.run(add())


def known(number: int) -> int | None:
    """Return the last time noted before an event."""
    return number // STEP * STEP or None


def options_of(home: Home, stream: str, use: Use = Use.READ, **given: Any) -> ReadOptions:
    where = {"controller": home.uri, "scope": "home"} | ({"stream": stream} if stream else {})
    usual = {"columns": COLUMNS, "eventTimeUnit": "none"}
    return ReadOptions.from_spark(usual | where | {name: str(value) for name, value in given.items()}, use)


def rows_of(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for one in partitions for rows in reader.read(one) for row in rows.to_pylist()]


def batch(home: Home, stream: str, **given: Any) -> list[dict[str, Any]]:
    reader = BatchReader(options_of(home, stream, **given))
    return rows_of(reader, reader.partitions())


@pytest.mark.parametrize("at_once", [1, 3, 16_384])
def test_event_times_through_scalings(home: Home, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_times, "WATERMARKS_AT_ONCE", at_once)
    stream, chance = Noted(home), random.Random(at_once)
    for _ in range(4):
        stream.live(2)
        scale_somehow(home.manager, stream.stream, chance)
    stream.live(1)
    rows = batch(home, stream.stream, min_partition_bytes=100)
    assert len({row["segment_id"] for row in rows}) > 6
    assert {int(row["event"]): row["event_time"] for row in rows} == {n: known(n) for n in range(stream.written)}


def test_query_adds_event_times_to_an_older_checkpoint(home: Home) -> None:
    stream = Noted(home)
    stream.live(2)
    scale_somehow(home.manager, stream.stream, random.Random(1))
    stream.live(2)
    limited = {"approx_bytes_per_trigger": "200"}
    given = {"controller": home.uri, "scope": "home", "stream": stream.stream, **limited}
    without = StreamReader(ReadOptions.from_spark(given, Use.READ_STREAM))
    offset = without.initialOffset()
    offset = without.latestOffset(offset, without.getDefaultReadLimit())
    reader = StreamReader(options_of(home, stream.stream, Use.READ_STREAM, **limited))
    times = dict[int, Any]()
    batches = 0
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        times |= {int(row["event"]): row["event_time"] for row in rows_of(reader, reader.partitions(offset, end))}
        offset, batches = end, batches + 1
    assert batches > 3
    assert STEP < len(times) < stream.written
    assert times == {number: known(number) for number in times}


def test_later_read_may_have_later_event_time(home: Home) -> None:
    home.manager.create_stream("home", "late")
    with home.manager.create_writer("home", "late") as writer:
        writer.write_batch([b"0", b"1", b"2"], "k")
    times = [[row["event_time"] for row in batch(home, "late")]]
    for noted, offset in ((5, 9), (7, 18)):
        add_watermark(home, "late", noted, offset)
        times.append([row["event_time"] for row in batch(home, "late")])
    assert times == [[None, None, None], [None, 5, 5], [None, 5, 7]]


def test_event_times_of_streams_with_and_without_notes(home: Home) -> None:
    stream = Noted(home)
    stream.live(2)
    home.manager.create_stream("home", "never")
    with home.manager.create_writer("home", "never") as writer:
        writer.write_batch([b"0", b"30"], "k")
    rows = batch(home, "", streams=f"never,{stream.stream}", columns=f"{COLUMNS},stream")
    assert [row["event_time"] for row in rows if row["stream"] == "never"] == [None, None]
    assert {row["event_time"] for row in rows if row["stream"] == stream.stream} == {None, STEP}


def test_remaining_rows_keep_event_times_after_truncation(home: Home) -> None:
    stream = Noted(home)
    stream.live(4)
    half = stream.cuts.after_event_time(2 * STEP)
    assert half is not None
    home.manager.truncate_stream(stream.cuts.after(half, 5))
    marks = home.manager.cuts("home", f"_MARK{stream.stream}")
    stream.live(1)
    until(lambda: any(marks.head().positions.values()))
    rows = batch(home, stream.stream)
    assert len(rows) == 3 * STEP - 5
    assert all(row["event_time"] == known(int(row["event"])) for row in rows)
    home.manager.truncate_stream(marks.tail())
    assert {row["event_time"] for row in batch(home, stream.stream)} == {None}


# --- units --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "noted"),
    [
        ("s", 1_795_435_201),
        ("ms", 1_795_435_201_123),
        (None, 1_795_435_201_123),
        ("US", 1_795_435_201_123_456),
        ("ns", 1_795_435_201_123_456_789),
        ("ms", -62_135_596_800_000),
        ("ns", -1),
    ],
)
def test_times_in_their_writers_unit(home: Home, unit: str | None, noted: int) -> None:
    stream = f"unit-{next(_names)}"
    home.manager.create_stream("home", stream)
    with home.manager.create_writer("home", stream) as writer:
        writer.write_batch([b"0", b"1"], "k")
    add_watermark(home, stream, noted, 9)
    given = {"controller": home.uri, "scope": "home", "stream": stream, "columns": "event_time"}
    given |= {"eventTimeUnit": unit} if unit else {}
    source = DefaultSource(given)
    assert source.schema() == "event_time timestamp_ltz"
    reader = source.reader(StructType().add("event_time", "timestamp"))
    per_s = {"s": 1, "us": 10**6, "ns": 10**9}.get((unit or "").lower(), 10**3)
    expected = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    expected += datetime.timedelta(microseconds=noted * 10**6 // per_s)
    assert rows_of(reader, reader.partitions()) == [{"event_time": None}, {"event_time": expected}]
    assert batch(home, stream, columns="event_time")[1] == {"event_time": noted}


def test_numbers_out_of_range_of_the_unit_are_rejected(home: Home) -> None:
    home.manager.create_stream("home", "nanoseconds")
    with home.manager.create_writer("home", "nanoseconds") as writer:
        writer.write_batch([b"0", b"1"], "k")
    add_watermark(home, "nanoseconds", 1_795_435_201_123_456_789, 9)
    with pytest.raises(InvalidArgumentError, match="'eventTimeUnit'"):
        batch(home, "nanoseconds", eventTimeUnit="ms")


def test_invalid_event_time_unit_is_rejected(home: Home) -> None:
    given = {"controller": home.uri, "scope": "home", "stream": "late"}
    assert DefaultSource(given | {"columns": "event_time", "eventTimeUnit": "None"}).schema() == "event_time long"
    for wrong, says in (
        ({"columns": "event_time", "eventTimeUnit": "hours"}, "hours"),
        ({"columns": "event", "eventTimeUnit": "ms"}, "'event_time'"),
        ({"eventTimeUnit": "ms"}, "'event_time'"),
    ):
        with pytest.raises(InvalidArgumentError, match=says):
            DefaultSource(given | wrong).schema()
        with pytest.raises(InvalidArgumentError, match=says):
            ReadOptions.from_spark(given | wrong)


# --- as Spark has it ----------------------------------------------------------------------------------

HOUR_MS = 3_600_000
BEGIN = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)


def write_hours(manager: nadi.StreamManager, hours: range) -> None:
    """Write ten events after the note of each hour, and await its watermark."""
    cuts = manager.cuts("home", "meters")
    with manager.create_writer("home", "meters", writer_id="kitchen") as writer:
        for hour in hours:
            noted_ms = int(BEGIN.timestamp() * 1000) + hour * HOUR_MS
            writer.note_time(noted_ms)
            deadline = time.monotonic() + 60
            while cuts.after_event_time(noted_ms) is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            writer.write_batch([b"%d" % hour] * 10, [f"meter {n}" for n in range(10)])


@pytest.mark.spark
def test_the_guides_example(spark: Any, home: Home, tmp_path: Path) -> None:
    manager = home.manager
    manager.create_stream("home", "meters", 2)
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    section = guide.partition("### Event time")[2].partition("\n## ")[0]
    names: dict[str, Any] = {"spark": spark, "home": {"controller": home.uri, "scope": "home"}}
    for example in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(compile(example, "docs/spark.md", "exec"), names)
    with manager.create_writer("home", "meters") as writer:
        writer.write_batch([b"before anything was noted"] * 5, [f"meter {n}" for n in range(5)])
    found: dict[Any, int] = {}

    def keep(rows: Any, _: int) -> None:
        for row in rows.collect():
            assert row.window.start not in found, "a window comes once, when nothing more belongs there"
            found[row.window.start] = row["count"]

    for hours in (range(3), range(3, 6)):
        write_hours(manager, hours)
        if hours.start:
            ids = [one.segment_id for one in manager.current_segments("home", "meters")]
            manager.scale_stream("home", "meters", ids, equal_ranges(5 - len(ids)))
        query = names["counts"].writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination(120)
        local = [BEGIN.astimezone().replace(tzinfo=None) + datetime.timedelta(hours=n) for n in range(hours.stop - 2)]
        assert found == dict.fromkeys(local, 10), "those that ended ten minutes before the last row"


@pytest.fixture(scope="module")
def loaded(home: Home) -> dict[str, str]:
    """Load a year of two meters' hours into a stream at once; return the options to read it."""
    manager = home.manager
    manager.create_stream("home", "year", 2, event_time="read_at")
    hours = [BEGIN + datetime.timedelta(hours=hour) for hour in range(24 * 365)]
    with manager.create_writer("home", "year") as writer:
        for meter in range(2):
            events = [msgspec.json.encode({"read_at": hour, "meter": meter}) for hour in hours]
            for some in range(0, len(events), 24 * 30):
                writer.write_batch(events[some : some + 24 * 30], [f"{meter}"] * len(events[some : some + 24 * 30]))
    return {"controller": home.uri, "scope": "home", "stream": "year"}


WEEK = {"startingEventTime": "2027-03-01", "endingEventTime": "2027-03-08T00:00Z"}
WEEK_MS = {name: f"{1_803_859_200_000 + days * 86_400_000}" for name, days in zip(WEEK, (0, 7), strict=True)}


@pytest.mark.spark
@pytest.mark.parametrize("times", [WEEK, WEEK_MS], ids=["text", "ms"])
def test_batch_between_event_times_matches_plain_python(
    spark: Any, loaded: dict[str, str], times: dict[str, str]
) -> None:
    rows = spark.read.format("nadi").options(**loaded, **times, value_format="json", value_schema="read_at timestamp")
    found = rows.load().selectExpr("cast(value.read_at as long) at").collect()
    begin = 1_803_859_200
    assert sorted(row.at for row in found) == sorted(2 * [begin + 3600 * hour for hour in range(24 * 7)])


@pytest.mark.spark
def test_query_between_event_times_matches_plain_python(spark: Any, loaded: dict[str, str], tmp_path: Path) -> None:
    found: list[bytes] = []
    read = spark.readStream.format("nadi").options(**loaded, **WEEK, maxBytesPerTrigger="4096").load()
    query = read.writeStream.foreachBatch(lambda rows, _: found.extend(bytes(row.event) for row in rows.collect()))
    query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(120)
    assert len(found) == len(set(found)) == 2 * 24 * 7
    assert all(b"2027-03-01" <= event[12:22] < b"2027-03-08" for event in found)
