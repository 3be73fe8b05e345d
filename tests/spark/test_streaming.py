"""Streaming queries driven like Spark, and in Spark, over streams that a real server splits and merges."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import nadi
from nadi.client.scan.pieces import ScanRange
from nadi.errors import (
    InvalidArgumentError,
    InvalidStreamCutError,
    QueryTruncatedError,
    StreamNotFoundError,
    StreamRecreatedError,
)
from nadi.naming import segment_id
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.reading.plan import PiecesPartition
from nadi.spark.reading.streaming import StreamReader
from nadi.spark.source_requests import BatchReader
from pyspark_nadi import DefaultSource

from .conftest import World
from .queries import Home, Query
from .scaled import ScaledStream, check_once_in_order, scaled_as_it_went_wrong

pytestmark = pytest.mark.spark


LIMITS: list[dict[str, str]] = [
    {},
    {"max_bytes_per_trigger": "500"},
    {"max_bytes_per_trigger": "3000"},
    {"maxOffsetsPerTrigger": "7"},
    {"maxBytesPerSegment": "100"},
]


@pytest.mark.parametrize("seed", range(15))
def test_query_of_a_scaled_stream_reads_each_event_once_in_order(home: Home, seed: int) -> None:
    chance = random.Random(seed)
    stream = ScaledStream(home.manager, f"scaled-{seed}", seed)
    stream.live(chance.randint(2, 5))
    query = Query(home, stream.stream, **LIMITS[seed % len(LIMITS)])
    for _ in range(chance.randint(0, 3)):
        query.trigger()
    stream.scale()
    stream.live(1, 20)
    query.run()
    query.restart(chance.randrange(len(query.offsets)))
    check_once_in_order(query.run(), stream.written)
    for offset in query.offsets:
        home.manager.cuts("home", stream.stream).check(nadi.StreamCut.from_text(offset["cut"]))
    check_once_in_order((event.data for event in home.events(stream.stream)), stream.written)


@pytest.mark.parametrize("seed", [4, 19])
@pytest.mark.parametrize("limit", ["1000", "1000000"])
def test_streams_of_earlier_failures(home: Home, seed: int, limit: str) -> None:
    name = f"wrong-{seed}-{limit}"
    written = scaled_as_it_went_wrong(home.manager, name, seed)
    check_once_in_order(Query(home, name, max_bytes_per_trigger=limit).run(), written)


def test_idle_query_sends_few_requests(home: Home) -> None:
    stream = ScaledStream(home.manager, "idle", 1)
    stream.live(3)
    query = Query(home, "idle")
    query.run()
    stream.scale()
    assert query.trigger(), "what follows is in the cut before it has an event: the old segments may be truncated"
    assert query.batches[-1] == []
    for _ in range(3):
        assert not query.trigger()
    home.manager.truncate_stream(nadi.StreamCut.from_text(query.offsets[-1]["cut"]))
    query.restart(len(query.batches))
    assert not query.trigger()


# --- truncated under the checkpoint -----------------------------------------------------------------


def truncated(home: Home, name: str, **options: str) -> tuple[ScaledStream, Query, nadi.StreamCut]:
    """Return a query that has read one batch of a stream that was then scaled and truncated, and the head."""
    stream = ScaledStream(home.manager, name, 5)
    stream.write(100)
    query = Query(home, name, **options)
    query.trigger()
    stream.write(50)
    stream.scale()
    stream.write(30)
    head = home.manager.cuts("home", name).tail()
    home.manager.truncate_stream(head)
    stream.write(20)
    return stream, query, head


@pytest.mark.parametrize("is_new", [False, True])
def test_truncation_after_checkpoint_raises_error_with_remedy(home: Home, is_new: bool) -> None:
    _, query, _ = truncated(home, f"checked-{is_new}")
    if is_new:
        query.restart(1)
    for _ in range(2):
        with pytest.raises(QueryTruncatedError, match="skip_truncated"):
            query.trigger()


def test_truncated_events_are_skipped_and_logged_on_request(home: Home) -> None:
    stream, query, head = truncated(home, "skipped", skip_truncated="true")
    before, since = query.batches[0], nadi.StreamCut.from_text(query.offsets[-1]["cut"])
    query.run()
    at = next(number for number, offset in enumerate(query.offsets) if "skipped_to" in offset)
    assert nadi.StreamCut.from_text(query.offsets[at]["skipped_to"]) == head
    assert [number for number, offset in enumerate(query.offsets) if "skipped_to" in offset] == [2]
    given = [event for batch in query.batches for event in batch]
    left = [event.data for event in home.events("skipped")]
    assert sorted(given) == sorted(before + left)
    assert len(given) == 100 + 20
    assert since != head
    query.restart(1)
    assert sorted(query.run()) == sorted(given), "a batch that skips is planned and read alike again"
    assert stream.written == 200


def test_truncation_between_planning_and_reading_raises_error(home: Home) -> None:
    for skips in ("false", "true"):
        stream = ScaledStream(home.manager, f"between-{skips}", 6)
        stream.write(100)
        query = Query(home, stream.stream, skip_truncated=skips)
        start, limit = query.offsets[0], query.reader.getDefaultReadLimit()
        end = query.reader.latestOffset(start, limit)
        planned = query.reader.partitions(start, end)
        home.manager.truncate_stream(
            home.manager.cuts("home", stream.stream).after(nadi.StreamCut.from_text(start["cut"]), 40)
        )
        remedy = "restart it" if skips == "true" else "skip_truncated"
        with pytest.raises(QueryTruncatedError, match=remedy):
            [list(query.reader.read(one)) for one in planned]
        if skips == "true":
            assert len(query.read(start, end)) == 60


# --- what old checkpoints hold ----------------------------------------------------------------------


def test_offsets_of_earlier_nadi_are_accepted_at_boundaries(home: Home) -> None:
    """Future segments are at -1, as in earlier versions; one that started too early is rejected."""
    home.manager.create_stream("home", "old", 2)
    with home.manager.create_writer("home", "old") as writer:
        for number in range(100):
            writer.write_event(b"k%d:%d" % (number % 20, number), f"k{number % 20}")
    tail = home.manager.cuts("home", "old").tail().positions
    home.manager.scale_stream("home", "old", [0, 1], [(0.0, 0.3), (0.3, 0.7), (0.7, 1.0)])
    first, second, third = (segment_id(number, 1) for number in (2, 3, 4))
    home.manager.scale_stream("home", "old", [first, second], [(0.0, 0.7)])
    query = Query(home, "old")
    wanted = sorted(event.data for event in home.events("old") if event.segment_id == 1)

    def at(positions: dict[int, int]) -> dict[str, Any]:
        return {"cut": nadi.StreamCut("home", "old", positions).as_text()}

    for legal in ({1: 0, first: 0, second: -1}, {1: 0, second: -1, segment_id(5, 2): -1}, {0: tail[0], 1: 0}):
        query.reader = StreamReader(query.options)
        query.offsets, query.batches = [at(legal)], []
        assert sorted(query.run()) == wanted
    for illegal in ({1: 0, second: 0, segment_id(5, 2): -1}, {1: 5, third: 0, first: 0, second: 0}, {0: 5}):
        query.reader = StreamReader(query.options)
        with pytest.raises(InvalidStreamCutError):
            query.reader.latestOffset(at(illegal), query.reader.getDefaultReadLimit())
    for wrong in ({"cut": 5}, {"other": "x"}, {"cut": query.offsets[0]["cut"], "skipped_to": 7}):
        with pytest.raises(InvalidStreamCutError):
            query.reader.latestOffset(wrong, query.reader.getDefaultReadLimit())


# --- options ----------------------------------------------------------------------------------------

HOME = {"scope": "home", "stream": "meters"}


def test_end_time_is_rejected_in_streaming_queries() -> None:
    source = DefaultSource({**HOME, "end": "2026-11-14T00:00Z"})
    refused = source.streamReader(schema_of(source))
    start = {"cut": nadi.StreamCut("home", "meters", {0: 0}).as_text()}
    for ask in (  # whatever Spark asks first
        refused.initialOffset,
        refused.getDefaultReadLimit,
        refused.prepareForTriggerAvailableNow,
        lambda: refused.latestOffset(start, ReadAllAvailable()),
        lambda: refused.partitions(start, start),
        lambda: refused.read(PiecesPartition(())),
    ):
        with pytest.raises(InvalidArgumentError, match="'end'"):
            ask()


def test_start_after_end_is_rejected(home: Home) -> None:
    home.manager.create_stream("home", "swapped", 1)
    cuts = home.manager.cuts("home", "swapped")
    places = [cuts.head()]
    with home.manager.create_writer("home", "swapped") as writer:
        for is_scaled in (False, True):
            for number in range(20):
                writer.write_event(b"k%d:%d" % (number, number), f"k{number}")
            writer.flush()
            places.append(cuts.tail())
            if not is_scaled:
                home.manager.scale_stream("home", "swapped", [0], [(0.0, 0.5), (0.5, 1.0)])
    bookmark = home.manager.bookmarks("home").create("swapped-noon", places[1])
    texts = [place.as_text() for place in places]
    behind = [
        {"start_stream_cut": texts[1], "end_stream_cut": texts[0]},
        {"start_stream_cut": texts[2], "end_stream_cut": texts[1]},  # the stream was scaled between
        {"start": "tail", "end": bookmark.name},
        {"start": "tail", "end": "head"},
        {"startingTimestamp": str(1 << 42), "end_stream_cut": texts[1]},  # a moment to come is the tail
    ]
    for options in behind:
        given = ReadOptions.from_spark({"controller": home.uri, "scope": "home", "stream": "swapped", **options})
        for plan in (StreamReader(given).initialOffset, BatchReader(given).partitions):
            with pytest.raises(InvalidStreamCutError):
                plan()
    for start, end, events in ((0, 1, 20), (1, 1, 0), (0, 2, 40), (1, 2, 20), (2, 2, 0)):
        query = Query(home, "swapped", start_stream_cut=texts[start], end_stream_cut=texts[end])
        assert len(query.run()) == events
        query.restart(len(query.batches))
        assert len(query.run()) == events, "at its end it begins again"


def schema_of(source: DefaultSource) -> Any:
    return to_struct(source.schema())


def to_struct(columns: Any) -> Any:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField

    kinds = {"binary": BinaryType, "string": StringType, "long": LongType}
    pairs = [field.split() for field in columns.split(", ")]
    return StructType([StructField(name, kinds[kind]()) for name, kind in pairs])


@pytest.mark.parametrize("make", ["writer", "streamWriter"])
def test_sink_with_deleted_stream_fails_or_creates_it(home: Home, make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.spark.source_requests._SEEN_S", 0.0)  # a moment later
    name = f"gone-{make}"
    source = DefaultSource({"controller": home.uri, "scope": "home", "stream": name})
    rows = pa.record_batch({"event": pa.array([b"x"]), "routing_key": pa.array(["k"])})
    schema = to_struct("event binary, routing_key string")
    for _ in range(2):  # and it is made again
        home.manager.create_stream("home", name, 1)
        getattr(source, make)(schema, False)
        writer = source.writer(schema, False)
        writer.commit([writer.write(iter([rows]))])
        assert [event.data for event in home.events(name)] == [b"x"]
        home.manager.seal_stream("home", name)
        home.manager.delete_stream("home", name)
        with pytest.raises(StreamNotFoundError):
            getattr(source, make)(schema, False)


# --- in Spark ---------------------------------------------------------------------------------------


def test_spark_query_fails_or_reports_truncation(world: World, tmp_path: Path) -> None:
    stream = ScaledStream(world.manager, "spark-truncated", 3)
    stream.write(200)

    def run(**options: Any) -> Any:
        query = (
            world.read_stream("spark-truncated", **options)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    run()
    stream.write(100)
    stream.scale()
    stream.write(50)
    world.manager.truncate_stream(world.manager.cuts("home", "spark-truncated").tail())
    stream.write(30)
    with pytest.raises(Exception, match="skip_truncated"):
        run()
    progress = run(skip_truncated="true").recentProgress
    assert sum(one["numInputRows"] for one in progress) == 30
    assert any("skipped_to" in str(source["endOffset"]) for one in progress for source in one["sources"])


def test_spark_sink_without_stream_fails(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "spark-in", 1)
    with world.manager.create_writer("home", "spark-in") as writer:
        writer.write_event(b"x", "k")
    with pytest.raises(Exception, match="home/spark-nothing") as caught:
        world.read("spark-in").write.format("nadi").options(**world.options("spark-nothing")).mode("append").save()
    assert "Task" not in str(caught.value)
    query = (
        world.read_stream("spark-in")
        .writeStream.format("nadi")
        .options(**world.options("spark-nothing"))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(Exception, match="home/spark-nothing"):
        query.awaitTermination(60)


@pytest.mark.parametrize("skips", ["false", "true"])
def test_query_of_recreated_stream_raises_error(home: Home, skips: str) -> None:
    stream = f"remade-{skips}"
    home.manager.create_stream("home", stream)
    with home.manager.create_writer("home", stream) as writer:
        writer.write_event(b"old")
    query = Query(home, stream, skip_truncated=skips)
    assert query.trigger()
    home.manager.seal_stream("home", stream)
    home.manager.delete_stream("home", stream)
    home.manager.create_stream("home", stream)
    with pytest.raises(StreamRecreatedError):
        query.trigger()
    partition = PiecesPartition((ScanRange(stream, 0, 0, 11),))
    with pytest.raises(StreamRecreatedError):  # a task of a batch that was planned before
        list(query.reader.read(partition))
    query.reader = StreamReader(query.options)
    with pytest.raises(InvalidStreamCutError, match="recreated"):
        query.trigger()
