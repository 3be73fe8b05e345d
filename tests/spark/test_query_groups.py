"""A query with a `groupId`: retention waits for its commits, and the group's lag is the query's."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from nadi.client import RetentionPolicy
from nadi.errors import (
    ConflictError,
    InvalidArgumentError,
    QueryTruncatedError,
    ReaderGroupNotFoundError,
    StreamNotFoundError,
    TransactionFailedError,
)
from nadi.spark.ledger import TABLE
from nadi.spark.options.parsed import WriteOptions
from nadi.spark.options.table import Use
from nadi.spark.sink import StreamWriter, TaskCommit
from tests.support.waiting import until

from .conftest import World
from .queries import Home, Query

pytestmark = pytest.mark.spark
SERVER_LIMITS = "retention_period_s=0.1,epochs_retained=3,epochs_forgotten_at_once=2"


def make(home: Home, name: str, events: int, retention: RetentionPolicy | None = None) -> None:
    home.manager.create_stream("home", name, 1, retention=retention)
    write(home, name, events)


def write(home: Home, name: str, events: int) -> None:
    with home.manager.create_writer("home", name) as writer:
        for _ in range(events):
            writer.write_event(bytes(92), "k")


def kept(home: Home, name: str) -> int:
    return home.manager.retained("home", name).size_bytes


def test_retention_waits_for_what_a_query_has_committed(home: Home) -> None:
    make(home, "held", 0, RetentionPolicy.by_size(1_000))
    write(home, "held", 5)
    query = Query(home, "held", groupId="billing", maxOffsetsPerTrigger="20")
    query.trigger()
    write(home, "held", 95)
    make(home, "free", 100, RetentionPolicy.by_size(1_000))
    until(lambda: kept(home, "free") == 1_000)  # a round has passed
    until(lambda: kept(home, "held") == 9_500)
    for left in (7_500, 5_500):
        assert query.trigger()
        until(lambda left=left: kept(home, "held") == left)  # type: ignore[misc]
        (lag,) = home.manager.reader_group_manager("home").lag("billing")
        assert (lag.stream, lag.lag_bytes) == ("home/held", left)
    (holder,) = home.manager.retained("home", "held").holders
    assert (holder.kind, holder.name) == ("subscriber", "home/billing")
    query.restart(len(query.batches))
    assert len(query.run()) == 100
    until(lambda: kept(home, "held") == 1_000)
    home.manager.reader_group_manager("home").delete_reader_group("billing")
    write(home, "held", 50)
    until(lambda: kept(home, "held") == 1_000)
    with pytest.raises(ReaderGroupNotFoundError, match="home/billing"):
        query.reader.commit(query.offsets[-2])


def test_second_query_of_a_group_raises_conflict(home: Home) -> None:
    make(home, "shared", 30)
    first, second = (Query(home, "shared", groupId="both", maxOffsetsPerTrigger="10") for _ in range(2))
    first.trigger()
    second.trigger()
    with pytest.raises(ConflictError, match="home/both"):
        first.trigger()
    assert second.trigger(), "the last query has the group"


def test_group_of_others_is_rejected(home: Home) -> None:
    for name in ("mine", "yours"):
        make(home, name, 1)
    groups = home.manager.reader_group_manager("home")
    groups.create_reader_group("readers", "mine")
    Query(home, "yours", groupId="of-yours").trigger()
    for group in ("readers", "of-yours"):
        with pytest.raises(InvalidArgumentError, match=group):
            Query(home, "mine", groupId=group).trigger()
    with pytest.raises(InvalidArgumentError, match="'groupId' and 'stream_tag'"):
        Query(home, stream_tag="x", groupId="g")


def test_query_without_checkpoint_starts_at_last_commit(home: Home) -> None:
    for name in ("lost-a", "lost-b"):
        make(home, name, 30)
    options = {"streams": "lost-a,lost-b", "groupId": "lost", "startAt": "last-committed", "maxOffsetsPerTrigger": "20"}
    query = Query(home, **options)
    query.trigger()
    query.trigger()
    again = Query(home, **options)
    assert again.offsets == [query.offsets[-1]]
    assert len(again.run()) == 20
    earlier = Query(home, streams="lost-a,lost-b", groupId="lost")  # from the head: released events stay released
    assert len(earlier.run()) == 60


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The current query and batch of tasks: the last in the list."""
    found: list[tuple[str, int]] = []
    monkeypatch.setattr("nadi.spark.reading.streaming.batch_of_task", lambda: found[-1])
    return found


def copied(home: Home, target: str, events: list[bytes], query: str, batch: int) -> None:
    """Write a batch like the sink of a query."""
    sink_of(home, target).commit([TaskCommit(begun(home, target, events), query)], batch)


def begun(home: Home, target: str, events: list[bytes]) -> UUID:
    with home.manager.create_transaction_writer("home", target) as writer:
        txn = writer.begin_txn(600_000)
        txn.write_batch(events, ["k"] * len(events))
        txn.flush()
        return txn.txn_id


def sink_of(home: Home, target: str) -> StreamWriter:
    options = WriteOptions.from_spark({"controller": home.uri, "scope": "home", "stream": target}, Use.WRITE_STREAM)
    return StreamWriter(options, StructType([StructField("event", BinaryType())]))


def exact(source: str) -> dict[str, str]:
    return {
        "stream": source, "groupId": source, "output": f"{source}-out", "startAt": "last-committed",
        "maxOffsetsPerTrigger": "10",
    }  # fmt: skip


def stream_of_numbers(home: Home, name: str) -> list[bytes]:
    numbers = [b"%d" % number for number in range(50)]
    for stream in (name, f"{name}-out"):
        home.manager.create_stream("home", stream, 1)
    with home.manager.create_writer("home", name) as writer:
        writer.write_batch(numbers, ["k"] * len(numbers))
    return numbers


def finish(home: Home, batch: list[tuple[str, int]], query: Query, target: str, name: str) -> list[bytes]:
    """Run a query to the end; return its output."""
    for number in range(10):
        batch.append((name, number))
        if not query.trigger():
            break
        copied(home, target, query.batches[-1], name, number)
    return [event.data for event in home.events(target)]


@pytest.mark.parametrize("died", ["before the commit", "after it", "after the record", "lost its transactions"])
def test_query_without_checkpoint_continues_at_end_of_output(
    home: Home, batch: list[tuple[str, int]], died: str
) -> None:
    name = f"exact-{died.replace(' ', '-')}"
    numbers = stream_of_numbers(home, name)
    first = Query(home, **exact(name))
    for number in range(3):
        batch.append(("first", number))
        first.trigger()
        if number < 2 or died == "after it":
            copied(home, f"{name}-out", first.batches[-1], "first", number)
    txn_id = begun(home, f"{name}-out", first.batches[-1])
    if died in ("after the record", "lost its transactions"):
        table = home.manager.table("home", TABLE)
        held = table.get(f"sink/first/{name}-out".encode())
        assert held is not None
        intent = f'{{"batch":2,"transactions":["{txn_id}"],"done":false}}'
        table.put(f"sink/first/{name}-out".encode(), intent.encode(), held.version)
    if died == "lost its transactions":
        with home.manager.create_transaction_writer("home", f"{name}-out") as writer:
            writer.get_txn(txn_id).abort(wait=True)
    second = Query(home, **exact(name))
    third = Query(home, **exact(name))  # the second died before it planned anything
    assert second.offsets == third.offsets
    assert finish(home, batch, third, f"{name}-out", "third") == numbers
    with pytest.raises(ConflictError):
        copied(home, f"{name}-out", [b"late"], "first", 3)
    batch.append(("first", 3))
    with pytest.raises(ConflictError, match="query first"):
        first.read(first.offsets[-2], first.offsets[-1])
    assert finish(home, batch, Query(home, **exact(name)), f"{name}-out", "fourth") == numbers


def test_repeated_first_batch_is_not_another_query(home: Home, batch: list[tuple[str, int]]) -> None:
    """Spark then requests the start again."""
    numbers = stream_of_numbers(home, "first-again")
    batch.append(("first", 0))
    first = Query(home, **exact("first-again"))
    first.trigger()
    again = Query(home, **exact("first-again"))
    assert again.offsets == first.offsets[:1]
    assert again.read(*first.offsets) == first.batches[0]
    copied(home, "first-again-out", first.batches[0], "first", 0)
    (start,) = Query(home, **exact("first-again")).offsets
    assert start == first.offsets[1], "the commit was not in Spark's log"
    assert first.read(start, first.offsets[1]) == []
    assert finish(home, batch, Query(home, **exact("first-again")), "first-again-out", "second") == numbers


def test_written_first_batch_is_read_again_completely(home: Home, batch: list[tuple[str, int]]) -> None:
    """The sink skips it, but operators need its rows for their state."""
    stream_of_numbers(home, "state")
    batch.append(("first", 0))
    first = Query(home, **exact("state"))
    first.trigger()
    copied(home, "state-out", first.batches[0], "first", 0)
    again = Query(home, **exact("state"))
    assert again.offsets == first.offsets[1:], "Spark asks for the start again"
    assert again.read(again.offsets[0], first.offsets[1]) == first.batches[0]
    other = Query(home, **exact("state"))
    batch.append(("second", 0))
    with pytest.raises(ConflictError, match=r"query first wrote to home/state-out.*second"):
        other.read(other.offsets[0], first.offsets[1])  # that it had planned from the same start


def test_first_batch_passed_by_another_query_is_rejected(home: Home, batch: list[tuple[str, int]]) -> None:
    numbers = stream_of_numbers(home, "passed")
    slow = Query(home, **exact("passed"))
    end = slow.reader.latestOffset(slow.offsets[0], slow.reader.getDefaultReadLimit())  # then it was killed
    fast = Query(home, **exact("passed"))
    for number in range(2):
        batch.append(("fast", number))
        fast.trigger()
        copied(home, "passed-out", fast.batches[-1], "fast", number)
    again = Query(home, **exact("passed"))
    with pytest.raises(ConflictError, match="home/passed: 0="):
        again.read(again.offsets[0], end)
    assert finish(home, batch, Query(home, **exact("passed")), "passed-out", "third") == numbers


def test_first_batch_from_tail_releases_no_unread_events(home: Home) -> None:
    make(home, "from-tail", 10, RetentionPolicy.by_size(1_000))
    query = Query(home, "from-tail", groupId="from-tail", start="tail")
    write(home, "from-tail", 10)
    end = query.reader.latestOffset(query.offsets[0], query.reader.getDefaultReadLimit())
    write(home, "from-tail", 50)  # while it was down
    again = Query(home, "from-tail", groupId="from-tail", start="tail")
    assert again.read(again.offsets[0], end) == [], "where it had started is not known"
    again.offsets.append(end)
    (lag,) = home.manager.reader_group_manager("home").lag("from-tail")
    assert lag.lag_bytes == 5_000
    assert len(again.run()) == 50


def test_concurrently_started_queries_write_each_event_once(home: Home, batch: list[tuple[str, int]]) -> None:
    numbers = stream_of_numbers(home, "at-once")
    batch.append(("lost", 0))
    lost = Query(home, **exact("at-once"))
    lost.trigger()
    copied(home, "at-once-out", lost.batches[0], "lost", 0)
    first, second, third = (Query(home, **exact("at-once")) for _ in range(3))
    for query, name in ((first, "first"), (second, "second")):
        batch.append((name, 0))
        query.offsets.append(query.reader.latestOffset(query.offsets[0], query.reader.getDefaultReadLimit()))
        query.batches.append(query.read(*query.offsets))
    with pytest.raises(ConflictError):
        copied(home, "at-once-out", first.batches[0], "first", 0)
    copied(home, "at-once-out", second.batches[0], "second", 0)
    batch.append(("third", 0))
    end = third.reader.latestOffset(third.offsets[0], third.reader.getDefaultReadLimit())
    with pytest.raises(ConflictError, match=r"query second wrote to home/at-once-out.*third"):
        third.read(third.offsets[0], end)
    assert finish(home, batch, Query(home, **exact("at-once")), "at-once-out", "fourth") == numbers


def test_forgotten_commit_raises_transaction_failed(home: Home, batch: list[tuple[str, int]]) -> None:
    """Its transactions may or may not be in the output: so the batch is neither repeated nor skipped."""
    stream_of_numbers(home, "forgotten")
    batch.append(("first", 0))
    first = Query(home, **exact("forgotten"))
    first.trigger()
    home.manager.table("home", TABLE).create()
    intent = f'{{"batch":0,"transactions":["{UUID(int=99)}"],"done":false}}'
    home.manager.table("home", TABLE).put(b"sink/first/forgotten-out", intent.encode())
    with pytest.raises(TransactionFailedError, match=r"batch 0 of query first .*home/forgotten-out"):
        Query(home, **exact("forgotten"))
    with pytest.raises(TransactionFailedError, match="home/forgotten-out"):
        copied(home, "forgotten-out", first.batches[0], "first", 0)
    assert home.events("forgotten-out") == []


def test_query_with_deleted_group_starts_afresh(home: Home, batch: list[tuple[str, int]]) -> None:
    numbers = stream_of_numbers(home, "deleted")
    batch.append(("first", 0))
    first = Query(home, **exact("deleted"))
    first.trigger()
    copied(home, "deleted-out", first.batches[0], "first", 0)
    home.manager.reader_group_manager("home").delete_reader_group("deleted")
    assert finish(home, batch, Query(home, **exact("deleted")), "deleted-out", "second") == numbers[:10] + numbers


def test_note_of_another_output_is_rejected(home: Home, batch: list[tuple[str, int]]) -> None:
    stream_of_numbers(home, "noted")
    batch.append(("first", 0))
    Query(home, **exact("noted")).trigger()
    with pytest.raises(InvalidArgumentError, match=r"home/other.* home/noted-out"):
        Query(home, **(exact("noted") | {"output": "other"}))
    with pytest.raises(InvalidArgumentError, match=r"'output'.*'groupId'"):
        Query(home, "noted", output="noted-out")


def test_replanned_batch_is_noted_again(home: Home, batch: list[tuple[str, int]]) -> None:
    """Its offsets were removed from the checkpoint by hand."""
    numbers = stream_of_numbers(home, "replanned")
    batch.append(("first", 0))
    Query(home, **exact("replanned")).trigger()
    again = Query(home, "replanned", groupId="replanned", output="replanned-out", maxOffsetsPerTrigger="30")
    again.trigger()
    copied(home, "replanned-out", again.batches[-1], "first", 0)
    assert finish(home, batch, Query(home, **exact("replanned")), "replanned-out", "second") == numbers


# --- streams deleted, recreated or truncated while the query was down -----------------------------


def delete(home: Home, stream: str) -> None:
    home.manager.seal_stream("home", stream)
    home.manager.delete_stream("home", stream)


def test_query_continues_without_stream_deleted_meanwhile(home: Home) -> None:
    for stream in ("left", "lost"):
        home.manager.create_stream("home", stream, 1)
        write(home, stream, 20)
    options = {"streams": "left,lost", "groupId": "left", "maxOffsetsPerTrigger": "10"}
    queries = [Query(home, **options, failOnDataLoss=fails) for fails in ("true", "false")]
    queries[1].trigger()
    delete(home, "lost")
    for query in queries:
        query.restart(len(query.batches))
    with pytest.raises(StreamNotFoundError):
        queries[0].trigger()
    assert len(queries[1].run()) == 25, "5 had been read of the other one"


def test_group_of_recreated_stream_is_rejected(home: Home) -> None:
    home.manager.create_stream("home", "remade", 1)
    write(home, "remade", 20)
    Query(home, "remade", groupId="remade").trigger()
    delete(home, "remade")
    home.manager.create_stream("home", "remade", 1)
    write(home, "remade", 20)
    for more in ({}, {"startAt": "last-committed"}):
        with pytest.raises(InvalidArgumentError, match="remade"):
            Query(home, "remade", groupId="remade", **more).trigger()
    home.manager.reader_group_manager("home").delete_reader_group("remade")
    assert len(Query(home, "remade", groupId="remade", startAt="last-committed").run()) == 20


def test_query_with_group_continues_after_forgotten_epochs(home: Home) -> None:
    home.manager.create_stream("home", "old", 1)
    write(home, "old", 20)
    query = Query(home, "old", groupId="old", maxOffsetsPerTrigger="5")
    query.trigger()
    for _ in range(14):
        pieces = home.manager.current_segments("home", "old")
        ranges = [(0.0, 1.0)] if len(pieces) > 1 else [(0.0, 0.5), (0.5, 1.0)]
        home.manager.scale_stream("home", "old", [piece.segment_id for piece in pieces], ranges)
    home.manager.truncate_stream(home.manager.stream_info("home", "old").tail)
    write(home, "old", 20)
    query.restart(1)
    with pytest.raises(QueryTruncatedError, match="home/old: 0=500"):
        query.trigger()
    skipping = Query(home, "old", groupId="old", failOnDataLoss="false")
    skipping.offsets = query.offsets[1:]
    assert len(skipping.run()) == 20


# --- as Spark has it ----------------------------------------------------------------------------------


def test_spark_query_survives_lost_checkpoint(world: World, tmp_path: Path) -> None:
    numbers = [b"%d" % number for number in range(100)]
    for stream in ("in-spark", "in-spark-out"):
        world.manager.create_stream("home", stream, 2)
    for number in range(3):
        with world.manager.create_writer("home", "in-spark") as writer:
            writer.write_batch(numbers, [event.decode() for event in numbers])
        rows = world.read_stream(**exact("in-spark"))
        query = (
            rows.select("event")
            .writeStream.format("nadi")
            .options(**world.options("in-spark-out"), checkpointLocation=str(tmp_path / str(number)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        end = world.manager.cuts("home", "in-spark-out").tail()
        found = [event.data for event in world.manager.read_events("home", "in-spark-out", end=end)]
        assert sorted(found) == sorted(numbers * (number + 1))


def test_spark_commits_move_the_group(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "spark-group", 1)
    with world.manager.create_writer("home", "spark-group") as writer:
        for _ in range(100):
            writer.write_event(bytes(92), "k")
    (
        world.read_stream("spark-group", maxOffsetsPerTrigger=40, groupId="spark-group")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    (lag,) = world.manager.reader_group_manager("home").lag("spark-group")
    assert lag.lag_bytes in (2_000, 0), "Spark commits a batch when it begins the next"
