"""The column `event_time` in Spark: the guide's example, in whose windows each noted row counts once."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nadi
from nadi.model.keyspace import equal_ranges

pytestmark = pytest.mark.spark
HOUR_MS = 3_600_000
BEGIN = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, nadi.StreamManager]]:
    """A server that makes watermarks often, and its scope `home` with the stream `meters`."""
    limits = {"NADI_LIMITS": "watermark_period_s=0.1"}
    with (
        nadi.embedded(tmp_path_factory.mktemp("noted"), environment=limits) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "meters", 2)
        yield server.controller_uri, manager


def write_hours(manager: nadi.StreamManager, hours: range) -> None:
    """Ten events behind the note of each hour, whose watermark is awaited."""
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


def test_the_guides_example(spark: Any, noted: tuple[str, nadi.StreamManager], tmp_path: Path) -> None:
    uri, manager = noted
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    section = guide.partition("### Event time")[2].partition("\n### ")[0]
    names: dict[str, Any] = {"spark": spark, "home": {"controller": uri, "scope": "home"}}
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
def loaded(noted: tuple[str, nadi.StreamManager]) -> dict[str, str]:
    """A stream with a year of two meters' hours, loaded at once; the options to read it."""
    uri, manager = noted
    manager.create_stream("home", "year", 2, event_time="read_at")
    hours = [BEGIN + datetime.timedelta(hours=hour) for hour in range(24 * 365)]
    with manager.create_writer("home", "year") as writer:
        for meter in range(2):
            events = [msgspec.json.encode({"read_at": hour, "meter": meter}) for hour in hours]
            for some in range(0, len(events), 24 * 30):
                writer.write_batch(events[some : some + 24 * 30], [f"{meter}"] * len(events[some : some + 24 * 30]))
    return {"controller": uri, "scope": "home", "stream": "year"}


WEEK = {"startingEventTime": "2027-03-01", "endingEventTime": "2027-03-08T00:00Z"}
WEEK_MS = {name: f"{1_803_859_200_000 + days * 86_400_000}" for name, days in zip(WEEK, (0, 7), strict=True)}


@pytest.mark.parametrize("times", [WEEK, WEEK_MS], ids=["text", "ms"])
def test_a_batch_between_event_times_has_what_plain_python_finds(
    spark: Any, loaded: dict[str, str], times: dict[str, str]
) -> None:
    rows = spark.read.format("nadi").options(**loaded, **times, value_format="json", value_schema="read_at timestamp")
    found = rows.load().selectExpr("cast(value.read_at as long) at").collect()
    begin = 1_803_859_200
    assert sorted(row.at for row in found) == sorted(2 * [begin + 3600 * hour for hour in range(24 * 7)])


def test_a_query_between_event_times_has_what_plain_python_finds(
    spark: Any, loaded: dict[str, str], tmp_path: Path
) -> None:
    found: list[bytes] = []
    read = spark.readStream.format("nadi").options(**loaded, **WEEK, maxBytesPerTrigger="4096").load()
    query = read.writeStream.foreachBatch(lambda rows, _: found.extend(bytes(row.event) for row in rows.collect()))
    query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(120)
    assert len(found) == len(set(found)) == 2 * 24 * 7
    assert all(b"2027-03-01" <= event[12:22] < b"2027-03-08" for event in found)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingEventTime": "soon"}, "startingEventTime"),
        ({"startingEventTime": "2027-03-01T00:00"}, "time zone"),
        ({"startingEventTime": "2027-03-01", "start": "head"}, "exclude each other"),
        ({"endingEventTime": "2027-03-01", "slice": "s"}, "exclude each other"),
    ],
)
def test_an_event_time_that_means_nothing_is_refused(
    spark: Any, loaded: dict[str, str], options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        spark.read.format("nadi").options(**loaded, **options).load().count()
