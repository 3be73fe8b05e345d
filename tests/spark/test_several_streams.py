"""Several streams in one source: by name, by pattern, by tag; in a batch and a query, while they are created and
deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

import nadi
from nadi.errors import InvalidArgumentError, InvalidStreamCutError, StreamNotFoundError, StreamRecreatedError
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading import streams as query_streams
from nadi.spark.reading.streaming import StreamReader
from nadi.spark.source_requests import BatchReader

from .conftest import World
from .queries import Home, Query
from .scaled import ScaledStream, check_once_in_order

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for new streams each time."""
    monkeypatch.setattr(query_streams, "SPARK_STREAM_POLL_S", 0.0)


def make(home: Home, name: str, events: int = 0, tags: Iterable[str] = ()) -> None:
    home.manager.create_stream("home", name, 2, tags=tags)
    write(home, name, events)


def write(home: Home, name: str, events: int, size: int = 0) -> None:
    with home.manager.create_writer("home", name) as writer:
        for number in range(events):
            writer.write_event(f"{name}:{number}".encode().ljust(size, b"."), f"k{number % 5}")


def delete(home: Home, name: str) -> None:
    home.manager.seal_stream("home", name)
    home.manager.delete_stream("home", name)


def batch(home: Home, **options: str) -> list[tuple[str, str]]:
    """Return the stream named by each row, and the one named by its event."""
    reader = BatchReader(ReadOptions.from_spark({"controller": home.uri, "scope": "home", **options}))
    found = []
    for one in reader.partitions():
        for rows in reader.read(one):
            for row in rows.to_pylist():
                assert row["scope"] == "home"
                found.append((row["stream"], row["event"].partition(b":")[0].decode()))
    return found


def test_batch_of_several_streams_names_the_stream_of_each_row(home: Home) -> None:
    for number, name in enumerate(("batch-a", "batch-b", "batch-c")):
        make(home, name, 10 * (number + 1), tags=["odd"] if number != 1 else [])
    make(home, "batch", 5)
    for options, counts in (
        ({"streams": "batch-a, batch-c"}, (10, 0, 30)),
        ({"streams": '["batch-b"]'}, (0, 20, 0)),
        ({"stream_pattern": "batch-[ab]"}, (10, 20, 0)),
        ({"stream_pattern": "batch-."}, (10, 20, 30)),  # the whole name: not batch
        ({"stream_tag": "odd"}, (10, 0, 30)),
        ({"streams": "batch-a,batch-b", "start": "tail"}, (0, 0, 0)),
        ({"streams": "batch-a,batch-b", "start": json.dumps({"batch-a": "tail"})}, (0, 20, 0)),
    ):
        rows = batch(home, **options)
        assert all(stream == written for stream, written in rows)
        assert tuple(sum(stream == f"batch-{letter}" for stream, _ in rows) for letter in "abc") == counts, options
    cut = home.manager.cuts("home", "batch-b").after(home.manager.cuts("home", "batch-b").head(), 8)
    for name in ("end", "end_stream_cut"):
        rows = batch(home, streams="batch-a,batch-b", **{name: json.dumps({"batch-b": cut.as_text()})})
        assert len(rows) == 10 + 8
    with pytest.raises(InvalidArgumentError, match=r"'stream_pattern' = nothing-"):
        batch(home, stream_pattern="nothing-.*")
    with pytest.raises(StreamNotFoundError, match="home/batch-z"):
        batch(home, streams="batch-a,batch-z")


def test_query_of_scaled_streams_reads_each_event_once_in_order(home: Home) -> None:
    streams = [ScaledStream(home.manager, f"many-{number}", number) for number in range(3)]
    for stream in streams:
        stream.live(2)
    query = Query(home, stream_pattern="many-.*", max_bytes_per_trigger="3000")
    for _ in range(3):
        query.trigger()
    for stream in streams:
        stream.scale()
        stream.live(1, 20)
    query.run()
    query.restart(len(query.batches) // 2)
    query.run()
    by_stream = rows_by_stream(query)
    for stream in streams:
        check_once_in_order(by_stream[stream.stream], stream.written)


def rows_by_stream(query: Query) -> dict[str, list[bytes]]:
    """Return all rows of the query's batches, planned again."""
    found: dict[str, list[bytes]] = {}
    for start, end in zip(query.offsets, query.offsets[1:], strict=False):
        for one in query.reader.partitions(start, end):
            for rows in query.reader.read(one):
                for name, event in zip(rows.column(2).to_pylist(), rows.column(0).to_pylist(), strict=True):
                    found.setdefault(name, []).append(event)
    return found


def test_new_streams_are_read_from_their_heads(home: Home) -> None:
    make(home, "new-a", 10, tags=["new"])
    query = Query(home, stream_tag="new", start="tail")
    assert query.run() == []
    make(home, "new-b", 20, tags=["new"])
    make(home, "other-c", 7)
    assert len(query.run()) == 20
    assert set(query.offsets[-1]["streams"]) == {"new-a", "new-b"}
    query.restart(1)
    assert len(query.run()) == 20
    write(home, "new-a", 5)
    assert len(query.run()) == 25


def test_available_now_query_reads_current_streams(home: Home) -> None:
    for name in ("now-a", "now-b"):
        make(home, name, 10)
    query = Query(home, stream_pattern="now-.*")
    query.reader.prepareForTriggerAvailableNow()
    write(home, "now-a", 5)
    make(home, "now-c", 5)
    assert len(query.run()) == 20
    query.restart(len(query.batches))
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.run()) == 30


@pytest.mark.parametrize("way", ["streams", "stream_pattern"])
def test_deleted_stream_fails_or_is_dropped(home: Home, way: str) -> None:
    names = [f"left-{len(way)}-{letter}" for letter in "ab"]
    for name in names:
        make(home, name, 10)
    which = {"streams": ",".join(names)} if way == "streams" else {"stream_pattern": f"left-{len(way)}-."}
    strict, lenient = Query(home, **which), Query(home, **which, failOnDataLoss="false")
    for query in (strict, lenient):
        assert len(query.run()) == 20
    delete(home, names[1])
    write(home, names[0], 5)
    for _ in range(2):
        with pytest.raises(StreamNotFoundError, match=f"home/{names[1]}.*failOnDataLoss"):
            strict.trigger()
        strict.restart(len(strict.batches))
    assert len(lenient.run()) == 25
    assert [offset["left"] for offset in lenient.offsets if "left" in offset] == [[names[1]]]
    lenient.restart(len(lenient.batches) - 1)
    assert len(lenient.run()) == 25
    make(home, names[1], 3)  # recreated, so it has a head
    lenient.restart(len(lenient.batches))
    assert len(lenient.run()) == 28


def test_stream_sealed_and_deleted_during_query(home: Home) -> None:
    make(home, "gone-one", 10)
    query = Query(home, "gone-one", failOnDataLoss="false")
    query.trigger()
    write(home, "gone-one", 5)
    home.manager.seal_stream("home", "gone-one")
    assert len(query.run()) == 15, "a sealed stream is read to its end"
    assert not query.trigger()
    home.manager.delete_stream("home", "gone-one")
    for _ in range(2):
        with pytest.raises(StreamNotFoundError, match="home/gone-one"):
            query.trigger()
        query.reader = StreamReader(query.options)


def test_recreated_stream_of_several_raises_error(home: Home) -> None:
    for name in ("recreated-a", "recreated-b"):
        make(home, name, 10)
    query = Query(home, streams="recreated-a,recreated-b", failOnDataLoss="false")
    query.run()
    delete(home, "recreated-b")
    make(home, "recreated-b", 3)
    with pytest.raises(StreamRecreatedError, match="home/recreated-b"):
        query.trigger()


def test_limits_are_shared_by_all_streams(home: Home) -> None:
    for name, events in (("fair-a", 1000), ("fair-b", 1000), ("fair-c", 3)):
        make(home, name)
        write(home, name, events, size=92)
    query = Query(home, streams="fair-a,fair-b,fair-c", max_bytes_per_trigger="20000")
    query.trigger()
    counts = {name: len(events) for name, events in rows_by_stream(query).items()}
    assert counts["fair-c"] == 3
    assert abs(counts["fair-a"] - counts["fair-b"]) < 10
    assert 18_000 < 100 * sum(counts.values()) < 22_000
    assert len(query.run()) == 2003


def test_checkpoints_of_one_stream_and_of_several(home: Home) -> None:
    for name in ("check-a", "check-b", "check-c"):
        make(home, name, 10)
    one, several = Query(home, "check-a"), Query(home, streams="check-a,check-b")
    assert len(one.run()) == 10
    assert set(one.offsets[-1]) == {"cut"}, "as ever"
    several.offsets = [one.offsets[-1]]  # the query of one stream got another
    assert len(several.run()) == 10

    def refused(query: Query, offset: dict[str, Any], named: str | None) -> None:
        for ask in (
            lambda: query.reader.latestOffset(offset, query.reader.getDefaultReadLimit()),
            lambda: query.reader.partitions(offset, offset),
        ):
            with pytest.raises(InvalidStreamCutError, match=named):
                ask()

    refused(one, several.offsets[-1], "check-a, check-b.*home/check-a")
    refused(one, Query(home, "check-b").offsets[0], "check-b.*home/check-a")
    fewer = Query(home, streams="check-a,check-c")
    with pytest.raises(StreamNotFoundError, match="home/check-b"):
        fewer.reader.latestOffset(several.offsets[-1], fewer.reader.getDefaultReadLimit())
    for wrong in ({"streams": 5}, {"streams": {"check-a": 5}}, {"streams": {}, "left": 5}):
        refused(several, wrong, None)
    stranger = nadi.StreamCut("work", "check-a", {0: 0})
    refused(several, {"streams": {"check-a": {"cut": stranger.as_text()}}}, "work/check-a")


def test_missing_named_stream_is_rejected(home: Home) -> None:
    make(home, "there-a", 1)
    given = {"controller": home.uri, "scope": "home", "streams": "there-a,there-b"}
    with pytest.raises(StreamNotFoundError, match="home/there-b"):
        StreamReader(ReadOptions.from_spark(given, Use.READ_STREAM)).initialOffset()
    empty = Query(home, stream_pattern="not-yet-.*")
    assert empty.run() == []
    make(home, "not-yet-1", 4)
    assert len(empty.run()) == 4


def test_spark_query_of_several_streams(world: World, tmp_path: Any) -> None:
    manager = world.manager
    for name in ("spark-many-a", "spark-many-b"):
        manager.create_stream("home", name, 1)
    manager.create_stream("home", "spark-out", 1)

    def run(events: int) -> None:
        for name in ("spark-many-a", "spark-many-b"):
            with manager.create_writer("home", name) as writer:
                for number in range(events):
                    writer.write_event(f"{name}:{number}".encode(), "k")
        rows = world.spark.readStream.format("nadi").options(controller=world.uri, scope="home")
        (
            rows.option("stream_pattern", "spark-many-.*")
            .load()
            .selectExpr("concat(stream, '/', CAST(event AS string)) AS event")
            .writeStream.format("nadi")
            .options(**world.options("spark-out"))
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    run(3)
    run(2)
    end = manager.cuts("home", "spark-out").tail()
    written = [event.data.decode() for event in manager.read_events("home", "spark-out", end=end)]
    assert sorted(written) == sorted(
        f"{name}/{name}:{number}" for name in ("spark-many-a", "spark-many-b") for number in (0, 1, 2, 0, 1)
    )
