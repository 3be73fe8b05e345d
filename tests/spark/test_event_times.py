"""The column `event_time` on a server: as writers noted it, through scalings, truncations and restarts."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

import nadi
from nadi.client.manager.streams import stores_of
from nadi.client.scan import rows as event_times
from nadi.client.shared.revisioned_stream import open_revisioned_stream
from nadi.errors import InvalidArgumentError
from nadi.model.watermark import SegmentPosition, Watermark, encode_watermark
from nadi.spark.connections import client_of
from nadi.spark.formats import BatchReader
from nadi.spark.options.read import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.streaming import StreamReader
from pyspark_nadi import DefaultSource
from tests.support.waiting import until

from .queries import Home
from .scaled import KEYS, scale_somehow

COLUMNS = "event, event_time, segment_id"
STEP = 25  # events between two notes
_names = itertools.count()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A server that makes watermarks often."""
    with (
        nadi.embedded(
            tmp_path_factory.mktemp("noted"), environment={"NADI_LIMITS": "watermark_period_s=0.1"}
        ) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        yield Home(server.controller_uri, manager)


class Noted:
    """A stream whose events are their own times, each counted on; times are noted after every STEP of them."""

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
    """As the controller does, in a stream of one segment."""
    client = client_of(options_of(home, stream).controller)

    async def add() -> None:
        marks = await open_revisioned_stream(stores_of(client.manager), "home", f"_MARK{stream}")
        entry = encode_watermark(Watermark(noted, noted, (SegmentPosition(0, 0.0, 1.0, offset),)))
        await marks.append(entry, (await marks.extent()).end)

    client.run(add())


def known(number: int) -> int | None:
    """The last time that was noted before an event."""
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


def test_a_query_tells_the_same_and_goes_on_from_a_checkpoint_without_the_column(home: Home) -> None:
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
    told = dict[int, Any]()
    batches = 0
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        told |= {int(row["event"]): row["event_time"] for row in rows_of(reader, reader.partitions(offset, end))}
        offset, batches = end, batches + 1
    assert batches > 3
    assert STEP < len(told) < stream.written
    assert told == {number: known(number) for number in told}


def test_a_row_that_is_read_again_may_know_more(home: Home) -> None:
    home.manager.create_stream("home", "late")
    with home.manager.create_writer("home", "late") as writer:
        writer.write_batch([b"0", b"1", b"2"], "k")
    told = [[row["event_time"] for row in batch(home, "late")]]
    for noted, offset in ((5, 9), (7, 18)):
        add_watermark(home, "late", noted, offset)
        told.append([row["event_time"] for row in batch(home, "late")])
    assert told == [[None, None, None], [None, 5, 5], [None, 5, 7]]


def test_a_stream_that_was_never_noted_beside_one_that_was(home: Home) -> None:
    stream = Noted(home)
    stream.live(2)
    home.manager.create_stream("home", "never")
    with home.manager.create_writer("home", "never") as writer:
        writer.write_batch([b"0", b"30"], "k")
    rows = batch(home, "", streams=f"never,{stream.stream}", columns=f"{COLUMNS},stream")
    assert [row["event_time"] for row in rows if row["stream"] == "never"] == [None, None]
    assert {row["event_time"] for row in rows if row["stream"] == stream.stream} == {None, STEP}


def test_what_is_left_after_a_truncation_keeps_its_times(home: Home) -> None:
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


def test_numbers_that_are_no_times_in_that_unit(home: Home) -> None:
    home.manager.create_stream("home", "nanoseconds")
    with home.manager.create_writer("home", "nanoseconds") as writer:
        writer.write_batch([b"0", b"1"], "k")
    add_watermark(home, "nanoseconds", 1_795_435_201_123_456_789, 9)
    with pytest.raises(
        InvalidArgumentError, match=r"'eventTimeUnit' the unit that they note, of s, ms, us, ns, or 'none'"
    ):
        batch(home, "nanoseconds", eventTimeUnit="ms")


def test_the_option_is_checked(home: Home) -> None:
    given = {"controller": home.uri, "scope": "home", "stream": "late"}
    assert DefaultSource(given | {"columns": "event_time", "eventTimeUnit": "None"}).schema() == "event_time long"
    for wrong, says in (
        ({"columns": "event_time", "eventTimeUnit": "hours"}, "must be s, ms, us, ns since 1970, or none"),
        ({"columns": "event", "eventTimeUnit": "ms"}, "no effect where 'columns' leaves out 'event_time'"),
        ({"eventTimeUnit": "ms"}, "no effect where 'columns' leaves out 'event_time'"),
    ):
        with pytest.raises(InvalidArgumentError, match=says):
            DefaultSource(given | wrong).schema()
        with pytest.raises(InvalidArgumentError, match=says):
            ReadOptions.from_spark(given | wrong)
