"""The lag of a query, in the latest offset that it reports, and in Spark's progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.errors import QueryTruncatedError, UnavailableError
from nadi.spark import QueryLag, lag
from nadi.spark.reading.streams import Lag

from .conftest import World
from .queries import Home, Query
from .scaled import ScaledStream

pytestmark = pytest.mark.spark
NOTHING = {"bytes": 0, "events": 0, "seconds": 0.0}


def write(home: Home | World, name: str, events: int) -> None:
    with home.manager.create_writer("home", name) as writer:
        for number in range(events):
            writer.write_event(bytes(92), f"k{number}")


def reported(query: Query) -> Any:
    """Return the report after a trigger."""
    query.trigger()
    return query.reader.reportLatestOffset()


def test_query_at_tail_has_no_lag_and_sends_no_requests(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.manager.create_stream("home", "up", 2)
    write(home, "up", 10)
    query = Query(home, "up")
    assert query.reader.reportLatestOffset() is None, "nothing is known before the first trigger"

    def never(*_: object) -> Any:
        raise AssertionError("a query that keeps up asks for its lag")

    monkeypatch.setattr(Lag, "_lag_of", never)
    for _ in range(2):
        latest = reported(query)
        assert latest == {**query.offsets[-1], "lag": NOTHING}


def test_limited_query_reports_its_lag(home: Home) -> None:
    home.manager.create_stream("home", "left", 2)
    began = time.monotonic()
    write(home, "left", 100)
    query = Query(home, "left", maxOffsetsPerTrigger="30")
    tail = home.manager.cuts("home", "left").tail().as_text()
    for left in (70, 40, 10):
        latest = reported(query)
        assert latest["cut"] == tail
        assert latest["lag"]["bytes"] == 100 * left
        assert latest["lag"]["events"] in (None, *range(left - 5, left + 6))
        assert 0 <= latest["lag"]["seconds"] < time.monotonic() - began + 15
    assert reported(query)["lag"] == NOTHING
    assert "lag" not in str(query.offsets), "offsets are what they always were"


def test_lag_counts_all_segments_of_a_scaled_stream(home: Home) -> None:
    stream = ScaledStream(home.manager, "lag-scaled", 3)
    stream.live(3)
    query = Query(home, stream.stream)
    cuts = home.manager.cuts("home", stream.stream)
    while True:
        latest = reported(query)
        at = nadi.StreamCut.from_text(query.offsets[-1]["cut"])
        assert latest["lag"]["bytes"] == cuts.bytes_between(at, cuts.tail())
        if not query.trigger():
            break
    assert latest["lag"] == NOTHING


def test_lag_of_several_streams_is_reported_each_and_in_total(home: Home) -> None:
    for name in ("lags-a", "lags-b"):
        home.manager.create_stream("home", name, 1)
        write(home, name, 50)
    latest = reported(Query(home, streams="lags-a,lags-b", maxOffsetsPerTrigger="60"))
    assert [one["lag"]["bytes"] for one in latest["streams"].values()] == [2000, 2000]
    assert latest["lag"]["bytes"] == 4000


def test_unavailable_lag_doesnt_fail_the_query(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.manager.create_stream("home", "untold", 1)
    write(home, "untold", 5)
    query = Query(home, "untold", maxOffsetsPerTrigger="1")

    async def fails(*_: object) -> Any:
        raise UnavailableError("the server is gone: try again")

    monkeypatch.setattr(Lag, "_lag_of", fails)
    assert reported(query) is None
    assert query.trigger()


def test_gap_has_both_ends_and_skipped_bytes_are_counted(home: Home) -> None:
    home.manager.create_stream("home", "gap", 1)
    write(home, "gap", 10)
    strict, lenient = Query(home, "gap"), Query(home, "gap", failOnDataLoss="false")
    for query in (strict, lenient):
        query.trigger()
    cuts = home.manager.cuts("home", "gap")
    before = cuts.tail()
    write(home, "gap", 20)
    head = cuts.after(before, 15)
    home.manager.truncate_stream(head)
    with pytest.raises(QueryTruncatedError) as caught:
        strict.trigger()
    assert caught.value.cuts == (before, head)
    assert reported(lenient)["skipped_bytes"] == 1500
    assert lenient.offsets[-1]["skipped_to"] == head.as_text()
    assert len(lenient.batches[-1]) == 5


def test_batch_truncated_before_restart_fails_when_planned(home: Home) -> None:
    home.manager.create_stream("home", "went", 2)
    write(home, "went", 50)
    query = Query(home, "went")
    query.trigger()
    start, end = query.offsets
    home.manager.truncate_stream(home.manager.cuts("home", "went").after(nadi.StreamCut.from_text(start["cut"]), 20))
    query.restart(1)
    with pytest.raises(QueryTruncatedError):
        query.reader.partitions(start, end)
    lenient = Query(home, "went", failOnDataLoss="false")
    assert len(lenient.read(start, end)) == 30


def test_the_lag_of_other_sources_is_none() -> None:
    assert lag({"sources": [{"latestOffset": 5}, {"latestOffset": "x"}, {"latestOffset": None}]}) is None
    one = {"latestOffset": '{"lag": {"bytes": 1, "events": null, "seconds": 2.0}, "skipped_bytes": 7}'}
    other = {"latestOffset": {"lag": {"bytes": 2, "events": 3, "seconds": 0.5}}}
    assert lag({"sources": [one, {"latestOffset": 5}, other]}) == QueryLag(3, None, 2.0, 7)


def test_spark_progress_contains_the_lag(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "spark-lag", 1)
    write(world, "spark-lag", 100)
    query = (
        world.read_stream("spark-lag", maxOffsetsPerTrigger=40)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert lag(query) is None or query.recentProgress
    query.awaitTermination()
    found = [one for progress in query.recentProgress if (one := lag(progress)) is not None]
    assert [one.size_bytes for one in found][:3] == [6000, 2000, 0]
    assert all(one.seconds is not None and one.seconds >= 0 for one in found)
    last = lag(query)
    assert last is not None
    assert (last.size_bytes, last.events, last.seconds) == (0, 0, 0.0)
