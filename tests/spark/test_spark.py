"""The data source in a real local Spark against a real server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import nadi
from nadi.client import ABSENT
from nadi.client.scan.connection import ConnectionSettings
from nadi.spark.connections import client_of
from nadi.spark.intents import SinkRecord
from nadi.spark.ledger import TABLE
from nadi.spark.options.parsed import WriteOptions
from nadi.spark.sink import StreamWriter, TaskCommit
from tests.client.damaged_server import LEFT, damaged_server
from tests.client.test_moments import a_moment_after

from .conftest import World
from .scaled import check_once_in_order

pytestmark = pytest.mark.spark


def write(world: World, stream: str, numbers: range, keys: int = 10) -> None:
    """Write events `<key>:<number>`, each under its key."""
    with world.manager.create_writer("home", stream) as writer:
        for number in numbers:
            writer.write_event(b"k%d:%d" % (number % keys, number), f"k{number % keys}")


def scale(world: World, stream: str, count: int) -> None:
    current = world.manager.current_segments("home", stream)
    borders = [number / count for number in range(count + 1)]
    world.manager.scale_stream(
        "home", stream, [piece.segment_id for piece in current], [(borders[i], borders[i + 1]) for i in range(count)]
    )


def events_by_client(world: World, stream: str, **cuts: Any) -> list[tuple[bytes, int, int]]:
    cuts.setdefault("end", world.manager.stream_info("home", stream).tail)
    return [(e.data, e.segment_id, e.offset) for e in world.manager.read_events("home", stream, **cuts)]


def copy(world: World, source: str, target: str, checkpoint: Path, change: str = "event", **options: Any) -> list[int]:
    """Run a stream-to-stream job until it has caught up; return the rows of each batch."""
    rows = world.read_stream(source, **options).selectExpr(
        f"{change} AS event", "split(CAST(event AS string), ':')[0] AS routing_key"
    )
    query = (
        rows.writeStream.format("nadi")
        .options(**world.options(target))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def test_batch_read_matches_the_client(world: World) -> None:
    world.manager.create_stream("home", "slices", 1)
    scale(world, "slices", 3)
    write(world, "slices", range(1000))
    start = world.manager.stream_info("home", "slices").tail
    write(world, "slices", range(1000, 30_000))
    scale(world, "slices", 2)
    write(world, "slices", range(30_000, 40_000))
    end = world.manager.stream_info("home", "slices").tail
    write(world, "slices", range(40_000, 40_500))

    frame = world.read("slices", Start_Stream_Cut=start.as_text(), end_stream_cut=end.as_text())
    assert frame.columns == ["event", "scope", "stream", "segment_id", "offset"]
    rows = frame.collect()
    assert {(row.scope, row.stream) for row in rows} == {("home", "slices")}
    expected = events_by_client(world, "slices", start=start, end=end)
    found = [(bytes(row.event), row.segment_id, row.offset) for row in rows]
    assert len(found) == 39_000
    assert sorted(found) == sorted(expected)
    for wanted in {segment for _, segment, _ in found}:  # within a segment, in order
        assert [row for row in found if row[1] == wanted] == [row for row in expected if row[1] == wanted]
    assert world.read("slices").count() == 40_500
    assert world.read("slices", start_stream_cut="tail").count() == 0
    assert world.read("slices", max_partitions=1).rdd.getNumPartitions() == 1


def test_slices_and_bookmarks_by_name_and_narrowed_to_keys(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "named", 4)
    write(world, "named", range(1000))
    bookmarks, cuts = world.manager.bookmarks("home"), world.manager.cuts("home", "named")
    start = bookmarks.create("spark-start", cuts.tail()).cut
    write(world, "named", range(1000, 3000))
    end = bookmarks.create("spark-end", cuts.tail()).cut
    write(world, "named", range(3000, 3500))
    world.manager.slices("home").create("spark-slice", start, end)
    expected = sorted(events_by_client(world, "named", start=start, end=end))
    for options in ({"slice": "spark-slice"}, {"start": "spark-start", "end": "spark-end"}):
        rows = world.read("named", **options).collect()
        assert sorted((bytes(row.event), row.segment_id, row.offset) for row in rows) == expected
    key = expected[0][0].partition(b":")[0]
    rows = world.read("named", slice="spark-slice", routing_keys=json.dumps([key.decode()])).collect()
    segments = {segment for _, segment, _ in expected if _ is not None}
    assert len({row.segment_id for row in rows}) == 1 < len(segments)
    wanted = [event for event, _, _ in expected if event.startswith(key + b":")]
    assert sorted(bytes(row.event) for row in rows if bytes(row.event).startswith(key + b":")) == sorted(wanted)
    world.manager.create_stream("home", "named-out", 1)
    copy(world, "named", "named-out", tmp_path, slice="spark-slice", routing_keys=json.dumps([key.decode()]))
    copied = [event for event, _, _ in events_by_client(world, "named-out")]
    assert sorted(copied) == sorted(bytes(row.event) for row in rows)


def test_slice_between_times(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "moments", 2)
    times = []
    for begin in (0, 1000, 2000):
        write(world, "moments", range(begin, begin + 1000))
        times.append(a_moment_after())
        if begin == 1000:
            scale(world, "moments", 3)

    def numbers(rows: Any) -> list[int]:
        return sorted(int(bytes(row.event).partition(b":")[2]) for row in rows.collect())

    between = {"startingTimestamp": str(times[0]), "endingTimestamp": str(times[1])}
    assert numbers(world.read("moments", **between)) == list(range(1000, 2000))
    iso = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    assert numbers(world.read("moments", STARTINGTIMESTAMP=iso)) == list(range(2000, 3000))
    assert numbers(world.read("moments", start="head", end=iso)) == list(range(2000))
    assert numbers(world.read("moments", startingTimestamp="0")) == list(range(3000))
    world.manager.create_stream("home", "moments-out", 1)
    copy(world, "moments", "moments-out", tmp_path, startingTimestamp=times[1])
    copied = [int(data.partition(b":")[2]) for data, _, _ in events_by_client(world, "moments-out")]
    assert sorted(copied) == list(range(2000, 3000))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": "nothing"}, "home/nothing"),
        ({"end_stream_cut": nadi.StreamCut("home", "errors", {77: 0}).as_text()}, "77"),
        ({"start": "yesterday"}, "'yesterday'"),
        ({"slice": "week-0"}, "'week-0'"),
        ({"start_streamcut": "head"}, "'start_stream_cut'"),
    ],
)
def test_error_message_reaches_the_user(world: World, options: dict[str, str], text: str) -> None:
    world.manager.create_stream("home", "errors", 1)
    with pytest.raises(Exception, match=text):
        world.spark.read.format("nadi").options(**world.options("errors") | options).load().count()


def test_streaming_error_is_raised_without_spark_errors(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "errors", 1)
    for number, (options, text) in enumerate(
        [
            ({"endingTimestamp": "1"}, "'endingtimestamp'"),
            (
                {"start": "tail", "end_stream_cut": world.manager.cuts("home", "errors").head().as_text()},
                "InvalidStreamCutError",
            ),
        ]
    ):
        write(world, "errors", range(3))
        with pytest.raises(Exception, match=text) as refused:
            copy(world, "errors", "errors", tmp_path / str(number), **options)
        message = str(refused.value)
        assert "UnboundLocalError" not in message, message
        assert "During handling" not in message, message


def test_stream_to_stream_over_scales_and_restarts(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "in", 1)
    scale(world, "in", 2)
    world.manager.create_stream("home", "out", 2)
    write(world, "in", range(1000))
    scale(world, "in", 3)
    write(world, "in", range(1000, 2000))
    batches = copy(world, "in", "out", tmp_path, max_bytes_per_trigger=6000)
    assert len([rows for rows in batches if rows]) > 4
    assert max(batches) < 600
    scale(world, "in", 1)
    scale(world, "out", 4)
    write(world, "in", range(2000, 3000))
    copy(world, "in", "out", tmp_path)
    copy(world, "in", "out", tmp_path)  # nothing to do
    scale(world, "in", 2)
    world.manager.seal_stream("home", "in")
    copy(world, "in", "out", tmp_path)
    check_once_in_order((data for data, _, _ in events_by_client(world, "out")), 3000)


def test_failed_task_is_retried(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "shaky", 1)
    world.manager.create_stream("home", "shaky-out", 1)
    write(world, "shaky", range(500))
    mark = str(tmp_path / "failed")

    def fail_once(batches: Any) -> Any:
        yield from batches
        if not Path(mark).exists():
            Path(mark).touch()
            raise RuntimeError("on purpose")

    rows = world.read("shaky").select("event").mapInArrow(fail_once, "event binary")
    rows.write.format("nadi").options(**world.options("shaky-out")).mode("append").save()
    assert Path(mark).exists()
    check_once_in_order((data for data, _, _ in events_by_client(world, "shaky-out")), 500)


# --- the sink's record, without Spark ---------------------------------------------------------------


def begun(world: World, stream: str, *events: bytes) -> UUID:
    with world.manager.create_transaction_writer("home", stream) as writer:
        txn = writer.begin_txn()
        txn.write_batch(events, "key")
        txn.flush()
        return txn.txn_id


def sink(world: World, stream: str) -> StreamWriter:
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("event", BinaryType())])
    return StreamWriter(WriteOptions.from_spark({"controller": world.uri, "scope": "home", "stream": stream}), schema)


def test_batch_committed_twice_counts_once(world: World) -> None:
    world.manager.create_stream("home", "twice", 1)
    writer = sink(world, "twice")
    first = [TaskCommit(begun(world, "twice", b"a"), "query"), TaskCommit(begun(world, "twice", b"b"), "query")]
    again = [TaskCommit(begun(world, "twice", b"a"), "query"), TaskCommit(begun(world, "twice", b"b"), "query")]
    writer.commit(list(first), 0)
    writer.commit(list(again), 0)
    writer.commit(list(first), 0)
    writer.commit([], 1)
    writer.commit([TaskCommit(begun(world, "twice", b"c"), "query"), None], 2)
    assert [data for data, _, _ in events_by_client(world, "twice")] == [b"a", b"b", b"c"]
    with pytest.raises(nadi.errors.ConflictError):
        writer.commit([TaskCommit(begun(world, "twice", b"d"), "query")], 1)
    with world.manager.create_transaction_writer("home", "twice") as transactions:
        assert again[0].transaction is not None
        assert transactions.get_txn(again[0].transaction).status() in ("ABORTING", "ABORTED")


def test_a_recorded_batch_is_rolled_forward(world: World) -> None:
    """The driver died after its record, before or between its commits."""
    world.manager.create_stream("home", "forward", 1)
    recorded = [begun(world, "forward", b"a"), begun(world, "forward", b"b")]
    table = world.manager.table("home", TABLE)
    table.create()
    text = f'{{"batch":7,"transactions":["{recorded[0]}","{recorded[1]}"],"done":false}}'
    table.put(b"sink/query/forward", text.encode(), ABSENT)
    writer = sink(world, "forward")
    writer.abort([TaskCommit(recorded[0], "query")], 7)  # touches nothing that is recorded
    writer.commit([TaskCommit(begun(world, "forward", b"other a"), "query")], 7)
    assert [data for data, _, _ in events_by_client(world, "forward")] == [b"a", b"b"]


def test_concurrent_commits_of_two_drivers_count_once(world: World) -> None:
    import asyncio

    world.manager.create_stream("home", "rivals", 1)
    ids = [[begun(world, "rivals", b"x")] for _ in range(4)]
    client = client_of(ConnectionSettings(world.uri))
    options = WriteOptions.from_spark(world.options("rivals"))

    async def all_at_once() -> None:
        records = [SinkRecord(client.manager, options, "q") for _ in ids]
        await asyncio.gather(*(record.commit(0, mine) for record, mine in zip(records, ids, strict=True)))

    client.run(all_at_once())
    assert [data for data, _, _ in events_by_client(world, "rivals")] == [b"x"]


def test_batch_with_damage_fails_or_skips_it(spark: Any, tmp_path: Path) -> None:
    with damaged_server(tmp_path / "data") as uri:
        options = {"controller": uri, "scope": "sc", "stream": "events"}
        with pytest.raises(Exception, match=r"DamagedDataError: .* sc/events/0\.#epoch\.0"):
            spark.read.format("nadi").options(**options).load().collect()
        rows = spark.read.format("nadi").options(**options, on_damage="skip").load().orderBy("offset").collect()
        assert [bytes(row.event) for row in rows] == LEFT
