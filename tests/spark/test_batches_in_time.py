"""Batches of a stream with event times end at the same time in all segments: loading history, a watermark drops no row
that wasn't late in its own segment."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.functions import window

import nadi
from nadi.client.reading import segment_range
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts import event_index
from nadi.errors import PermissionDeniedError
from nadi.model.keyspace import key_position
from nadi.naming import segment_name
from nadi.spark.reading.progress import StreamView

from .conftest import World
from .queries import Home, Query

pytestmark = pytest.mark.spark
YEAR = datetime(2025, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
METERS = 12
DAYS = 12


def readings(hours: Iterable[int], *, padding: bool = True) -> list[tuple[bytes, str]]:
    """Return hourly readings of each meter with their keys; those of low keys are large, so that segments differ in
    bytes per hour."""
    made = []
    for hour in hours:
        for meter in range(METERS):
            key = f"meter {meter}"
            size = 900 if padding and key_position(key) < 1 / 3 else 10
            made.append((encoded(YEAR + hour * HOUR, meter, size), key))
    return made


def encoded(time: datetime, meter: int, size: int = 10) -> bytes:
    return msgspec.json.encode({"read_at": time, "meter": meter, "wh": 7, "text": "." * size})


def load(manager: nadi.StreamManager, stream: str, events: list[tuple[bytes, str]]) -> None:
    with manager.create_writer("home", stream) as writer:
        writer.write_batch([event for event, _ in events], [key for _, key in events])


def as_loaded(manager: nadi.StreamManager, stream: str) -> None:
    manager.create_stream("home", stream, 3, event_time="read_at")
    load(manager, stream, readings(range(24 * DAYS)))


def as_split_and_merged(manager: nadi.StreamManager, stream: str) -> None:
    manager.create_stream("home", stream, 3, event_time="read_at")
    load(manager, stream, readings(range(8 * DAYS)))
    first, second, third = manager.current_segments("home", stream)
    manager.scale_stream("home", stream, [first.segment_id], [(0.0, 0.1), (0.1, first.high)])
    load(manager, stream, readings(range(8 * DAYS, 16 * DAYS)))
    manager.scale_stream("home", stream, [second.segment_id, third.segment_id], [(second.low, 1.0)])
    load(manager, stream, readings(range(16 * DAYS, 24 * DAYS)))


def time_of(event: bytes) -> datetime | None:
    time = msgspec.json.decode(event).get("read_at")
    return datetime.fromisoformat(time) if time is not None else None


def late_rows(batches: list[list[bytes]], delay: timedelta) -> list[bytes]:
    """Return the rows that Spark would drop: earlier than the latest row of any batch before, minus the delay."""
    late, latest = list[bytes](), YEAR - 1000 * HOUR
    for batch in batches:
        times = [(time, event) for event in batch if (time := time_of(event)) is not None]
        late += [event for time, event in times if time < latest - delay]
        latest = max([latest, *(time for time, _ in times)])
    return late


def late_in_their_segments(home: Home, stream: str, delay: timedelta) -> list[bytes]:
    late, latest = list[bytes](), dict[int, datetime]()
    for event in home.events(stream):
        time = time_of(event.data)
        if time is not None:
            before = latest.get(event.segment_id, time)
            late += [event.data] if time < before - delay else []
            latest[event.segment_id] = max(before, time)
    return late


LIMITS: list[dict[str, str]] = [
    {"maxBytesPerTrigger": "200000"},
    {"maxBytesPerSegment": "50000"},
    {"maxOffsetsPerTrigger": "500"},
    {},
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit), "all"))
def test_watermark_drops_no_rows(home: Home, limit: dict[str, str]) -> None:
    stream = f"behind-{next(iter(limit), 'all')}"
    as_split_and_merged(home.manager, stream)
    query = Query(home, stream, **limit)
    for _ in range(4):
        query.trigger()
    query.restart(2)
    assert len(query.run()) == len(set(query.run())) == 24 * DAYS * METERS
    assert late_rows(query.batches, 0 * HOUR) == []


def as_disordered(manager: nadi.StreamManager, stream: str) -> None:
    """Make some rows up to two days late, some clocks fast by a day, and some rows without a time."""
    chance = random.Random(5)
    manager.create_stream("home", stream, 3, event_time="read_at")
    events = list[tuple[bytes, str]]()
    for event, key in readings(range(24 * DAYS)):
        shift = chance.choice([0] * 40 + [-chance.randrange(48)] * 8 + [24, None])
        time, meter = time_of(event), msgspec.json.decode(event)["meter"]
        assert time is not None
        row = encoded(time + shift * HOUR, meter) if shift is not None else b'{"number": %d}' % len(events)
        events.append((row, key))
    load(manager, stream, events)


@pytest.mark.parametrize(
    "limit",
    [
        "maxBytesPerTrigger=30000",
        pytest.param("maxBytesPerSegment=10000", marks=pytest.mark.slow),
        pytest.param("maxOffsetsPerTrigger=300", marks=pytest.mark.slow),
    ],
)
def test_only_late_rows_are_dropped(home: Home, limit: str) -> None:
    stream = "disordered-" + limit.replace("=", "-")
    as_disordered(home.manager, stream)
    query, whole = Query(home, stream, **dict([limit.split("=")])), home.events(stream)
    assert sorted(query.run()) == sorted(event.data for event in whole)
    for delay in (0 * HOUR, 10 * HOUR, 80 * HOUR):
        late = late_rows(query.batches, delay)
        assert set(late) <= set(late_in_their_segments(home, stream, delay))
        assert bool(late) == (delay < 80 * HOUR)
    assert len(query.batches) < 100, "a disordered segment makes no batch small"


@pytest.mark.parametrize(
    "limit", [{"maxOffsetsPerTrigger": "1"}, {"maxBytesPerTrigger": "100"}], ids=["events", "bytes"]
)
def test_batch_smaller_than_a_row_per_segment_advances(home: Home, limit: dict[str, str]) -> None:
    stream = f"narrow-{next(iter(limit))}"
    home.manager.create_stream("home", stream, 3, event_time="read_at")
    load(home.manager, stream, readings(range(10)))
    query = Query(home, stream, **limit)
    assert len(query.run()) == 10 * METERS
    assert late_rows(query.batches, 0 * HOUR) == []


def test_batch_ends_at_one_time_in_all_streams(home: Home) -> None:
    for name, hours in (("many-a", 8 * DAYS), ("many-b", 24 * DAYS)):
        home.manager.create_stream("home", name, 2, event_time="read_at")
        load(home.manager, name, readings(range(hours), padding=name == "many-b"))
    home.manager.create_stream("home", "many-c", 1)
    untimed = [b"%d" % number for number in range(1_000)]
    load(home.manager, "many-c", [(event, "k") for event in untimed])
    query = Query(home, stream_pattern="many-.", maxBytesPerTrigger="60000")
    assert len(query.run()) == 32 * DAYS * METERS + len(untimed)
    timed = [[event for event in batch if event.startswith(b"{")] for batch in query.batches]
    assert late_rows(timed, 0 * HOUR) == []
    assert sum(any(not event.startswith(b"{") for event in batch) for batch in query.batches) <= 3, "as without a time"


def test_read_only_client_plans_equal_batches(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    as_split_and_merged(home.manager, "closed")

    async def refused(*_: object) -> int:
        raise PermissionDeniedError("no")

    monkeypatch.setattr(event_index._SegmentIndexer, "_add", refused)
    closed = Query(home, "closed", **LIMITS[0])
    closed.run()
    monkeypatch.undo()
    indexed = Query(home, "closed", **LIMITS[0])
    indexed.run()
    assert closed.offsets == indexed.offsets
    assert late_rows(closed.batches, 0 * HOUR) == []


def test_events_before_query_start_are_not_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    as_loaded(home.manager, "from-the-middle")
    cuts = home.manager.cuts("home", "from-the-middle")
    middle = cuts.after(cuts.head(), 12 * DAYS * METERS)
    read = dict[str, int]()
    whole = segment_range.read_segment_range

    def noted(stores: SegmentStores, name: str, start: int, *more: Any) -> Any:
        read[name] = min(start, read.get(name, start))
        return whole(stores, name, start, *more)

    monkeypatch.setattr(event_index, "read_segment_range", noted)
    query = Query(home, "from-the-middle", start_stream_cut=middle.as_text(), **LIMITS[0])
    assert len(query.run()) == 12 * DAYS * METERS
    assert late_rows(query.batches, 0 * HOUR) == []
    starts = {segment_name("home", "from-the-middle", number): at for number, at in middle.positions.items()}
    assert read
    assert all(start >= starts[name] > 0 for name, start in read.items())


def test_query_at_tail_sends_no_requests(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    as_loaded(home.manager, "tail")
    query = Query(home, "tail", start="tail", **LIMITS[0])

    async def asked(*_: object) -> None:
        raise AssertionError("a batch that leaves nothing behind has nothing to choose")

    monkeypatch.setattr(StreamView, "event_time", asked)
    for hour in range(3):
        load(home.manager, "tail", readings([24 * DAYS + hour]))
        assert query.trigger()
        assert not query.trigger()
    assert [len(batch) for batch in query.batches] == [METERS] * 3


def test_windows_over_loaded_history_close_in_order_with_all_rows(world: World, tmp_path: Path) -> None:
    stream = "windows"
    as_split_and_merged(world.manager, stream)
    found = list[tuple[int, int]]()
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    example = guide.partition("### Windows over history\n")[2].partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"spark": world.spark, "home": {"controller": world.uri, "scope": "home"}}
    exec(
        compile(example.replace('"meters"', repr(stream)).replace("1000000", "300000"), "docs/spark.md", "exec"), names
    )
    counts = names["days"].selectExpr("cast(window.start as long) day", "count")

    def keep(rows: Any, _: int) -> None:
        found.extend(sorted((row.day, row["count"]) for row in rows.collect()))

    query = counts.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    query = query.trigger(availableNow=True).start()
    query.awaitTermination(300)
    first = int(YEAR.timestamp())
    assert found == [(first + 86_400 * day, 24 * METERS) for day in range(DAYS - 1)], "the last day isn't over"
    late = [progress["stateOperators"][0]["numRowsDroppedByWatermark"] for progress in query.recentProgress]
    assert sum(late) == 0
    assert len(late) > 3


@pytest.mark.slow
def test_times_before_1970_need_a_shift(world: World) -> None:
    """Spark takes 1970 for the first watermark, whatever the delay (findings/pyspark-first-watermark-is-1970.sh)."""
    world.manager.create_stream("home", "old", 1, event_time="read_at")
    load(world.manager, "old", [(encoded(datetime(year, 7, 20, tzinfo=UTC), 1), "k") for year in (1869, 1969, 2025)])
    rows = (
        world.spark.readStream.format("nadi")
        .options(controller=world.uri, scope="home", stream="old")
        .options(value_format="json", value_schema="read_at timestamp")
        .load()
        .select("value.*")
    )

    def years(shift: str, name: str) -> list[int]:
        shifted = rows.selectExpr(f"read_at + {shift} as at").withWatermark("at", "100000 days")
        counts = shifted.groupBy(window("at", "1 day")).count().selectExpr(f"year(window.start - {shift}) as year")
        query = counts.writeStream.format("memory").queryName(name).outputMode("update").trigger(availableNow=True)
        query.start().awaitTermination(120)
        return sorted(row.year for row in world.spark.table(name).collect())

    assert years("interval 0 years", "dropped") == [2025]
    assert years("interval 400 years", "shifted") == [1869, 1969, 2025]
