"""The columns of a read, the cuts around its rows, and the ranges of its tasks."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nadi.client.manager.streams import stores_of
from nadi.client.scan.pieces import ScanRange, deal, groups_by_keys
from nadi.client.scan.positions import PositionTexts
from nadi.client.scan.rows import RowTimes
from nadi.errors import InvalidArgumentError, ProtocolError
from nadi.limits import TIME_INDEX_MOST_MS
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.spark.connections import client_of
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.plan import PiecesPartition
from nadi.spark.reading.streaming import StreamReader
from nadi.spark.source_requests import BatchReader
from nadi.wire import commands as wire
from nadi.wire.time_index import packed_moments
from pyspark_nadi import DefaultSource

from .queries import Home, served
from .scaled import ScaledStream

POSITIONS = "event, position, segment_id, offset, position_before"


def options_of(home: Home, stream: str, use: Use = Use.READ, **given: Any) -> ReadOptions:
    texts = {name: str(value) for name, value in given.items()}
    return ReadOptions.from_spark({"controller": home.uri, "scope": "home", "stream": stream, **texts}, use)


def rows_of(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for one in partitions for rows in reader.read(one) for row in rows.to_pylist()]


def batch(home: Home, stream: str, **given: Any) -> list[dict[str, Any]]:
    reader = BatchReader(options_of(home, stream, **given))
    return rows_of(reader, reader.partitions())


@pytest.mark.parametrize("others", [(), ((1, 40), ((7 << 32) + 3, 0)), tuple((n + 5, 10**9 + n) for n in range(400))])
def test_position_text_equals_cut_text(others: tuple[tuple[int, int], ...]) -> None:
    piece = ScanRange("meters", (2 << 32) + 1, 0, 100, others)
    offsets = [0, 7, 10, 99, 123_456_789_012]
    for offset, text in zip(offsets, PositionTexts("home", piece).of(offsets), strict=True):
        expected = StreamCut("home", "meters", {**dict(others), piece.segment_id: offset})
        assert StreamCut.from_text(text) == expected


@pytest.mark.parametrize("seed", range(6))
def test_positions_are_legal_cuts_and_slices_between_them_are_exact(home: Home, seed: int) -> None:
    stream = ScaledStream(home.manager, f"placed-{seed}", seed)
    stream.live(3)
    if seed % 2:  # the head is somewhere within
        cuts = home.manager.cuts("home", stream.stream)
        home.manager.truncate_stream(cuts.after(cuts.head(), 70))
        stream.live(1)
    by_segment = defaultdict(list)
    for row in batch(home, stream.stream, columns=POSITIONS):
        by_segment[row["segment_id"]].append(row)
    assert len(by_segment) > 3
    cuts = home.manager.cuts("home", stream.stream)
    chance = random.Random(seed)
    for segment, rows in by_segment.items():
        for one, other in pairwise(rows):
            assert one["position"] == other["position_before"]
            assert one["offset"] < other["offset"]
        first, last = sorted((chance.randrange(len(rows)), chance.randrange(len(rows))))
        start, end = StreamCut.from_text(rows[first]["position_before"]), StreamCut.from_text(rows[last]["position"])
        for cut in (start, end):
            cuts.check(cut)
            assert cut.positions[segment] >= rows[first]["offset"]
        found = [event.data for event in home.manager.read_events("home", stream.stream, start=start, end=end)]
        assert found == [row["event"] for row in rows[first : last + 1]]


def test_positions_of_a_query(home: Home) -> None:
    stream = ScaledStream(home.manager, "placed-query", 3)
    stream.live(2)
    reader = StreamReader(options_of(home, stream.stream, Use.READ_STREAM, columns="event,position,offset"))
    offset, events = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        for row in rows_of(reader, reader.partitions(offset, end)):
            events.append(row["event"])
            home.manager.cuts("home", stream.stream).check(StreamCut.from_text(row["position"]))
        offset = end
    assert len(events) == stream.written


def test_columns_follow_the_option_in_order(home: Home) -> None:
    home.manager.create_stream("home", "narrow")
    with home.manager.create_writer("home", "narrow") as writer:
        writer.write_event(b"first", "k")
    assert batch(home, "narrow", columns="offset, segment_id") == [{"offset": 0, "segment_id": 0}]
    given = {"controller": home.uri, "scope": "home", "stream": "narrow", "columns": "Offset,event"}
    assert DefaultSource(given).schema() == "offset long, event binary"
    for wrong, says in (("offset,colour", "'colour'"), ("event,event", "event,event")):
        with pytest.raises(InvalidArgumentError, match=says):
            options_of(home, "narrow", columns=wrong)
        with pytest.raises(InvalidArgumentError, match=says):
            DefaultSource(given | {"columns": wrong}).schema()
    with pytest.raises(InvalidArgumentError):
        options_of(home, "narrow", columns="event", metadata="StreamInfo")


# --- tasks --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(home: Home) -> list[bytes]:
    """Write three thousand events of very different sizes into one segment of the stream `large`."""
    home.manager.create_stream("home", "large")
    chance = random.Random(0)
    events = [b"%d:" % number + bytes(chance.choice([0, 10, 100, 5_000])) for number in range(3_000)]
    with home.manager.create_writer("home", "large") as writer:
        writer.write_batch(events, "key")
    return events


def test_large_segment_is_read_by_many_tasks(home: Home, large: list[bytes]) -> None:
    reader = BatchReader(options_of(home, "large", max_partitions=6, min_partition_bytes=1000))
    partitions = list(reader.partitions())
    assert len(partitions) == 6
    sizes = [sum(piece.size_bytes for piece in one.pieces) for one in partitions if isinstance(one, PiecesPartition)]
    assert max(sizes) < 1.1 * min(sizes)
    assert [row["event"] for row in rows_of(reader, partitions)] == large
    whole = BatchReader(options_of(home, "large", max_partitions=6, min_partition_bytes=1000, ordered="true"))
    assert len(list(whole.partitions())) == 1


def test_ordered_keeps_the_segments_of_a_key_in_one_task(home: Home) -> None:
    stream = ScaledStream(home.manager, "chained", 5)
    stream.live(4)
    reader = BatchReader(options_of(home, stream.stream, ordered="true", min_partition_bytes=1))
    by_key = defaultdict(list)
    for task, one in enumerate(reader.partitions()):
        for row in rows_of(reader, [one]):
            key, _, number = row["event"].partition(b":")
            by_key[key].append((task, int(number)))
    assert sum(map(len, by_key.values())) == stream.written
    for found in by_key.values():
        assert len({task for task, _ in found}) == 1
        assert found == sorted(found)


def test_unordered_query_divides_segments(home: Home, large: list[bytes]) -> None:
    for ordered, tasks in (("false", 6), ("true", 1), (None, 1)):
        given = {} if ordered is None else {"ordered": ordered}
        reader = StreamReader(
            options_of(home, "large", Use.READ_STREAM, max_partitions=6, min_partition_bytes=1000, **given)
        )
        start = reader.initialOffset()
        partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
        assert len(partitions) == tasks
        assert sorted(row["event"] for row in rows_of(reader, partitions)) == sorted(large)


def test_ranges_with_overlapping_keys_are_grouped() -> None:
    ranges = {
        1: SegmentRange(1, 0.0, 0.5),
        2: SegmentRange(2, 0.5, 1.0),
        3: SegmentRange(3, 0.5, 0.7),
        4: SegmentRange(4, 0.7, 1.0),
    }
    pieces = [ScanRange("s", number, 0, 10) for number in (4, 1, 3)]
    assert [[one.segment_id for one in chain] for chain in groups_by_keys(pieces, ranges)] == [[1], [3], [4]]
    pieces.append(ScanRange("s", 2, 0, 10))
    assert [[one.segment_id for one in chain] for chain in groups_by_keys(pieces, ranges)] == [[1], [2, 3, 4]]
    pieces.append(ScanRange("s", 9, 0, 10))  # forgotten
    assert len(groups_by_keys(pieces, ranges)) == 1
    assert deal(pieces, 16, 1, groups_by_keys(pieces, ranges)) == [tuple(sorted(pieces))]


# --- as Spark has it ----------------------------------------------------------------------------------


@pytest.mark.spark
def test_columns_in_spark(spark: Any, home: Home, large: list[bytes]) -> None:
    given = {"controller": home.uri, "scope": "home", "stream": "large"}
    rows = spark.read.format("nadi").options(**given, columns="event,segment_id,offset,position").load()
    assert rows.columns == ["event", "segment_id", "offset", "position"]
    first = rows.orderBy("offset").first()
    assert StreamCut.from_text(first.position).positions == {0: len(large[0]) + 8}
    assert rows.where("offset < 1").count() == 1
    assert rows.count() == len(large)
    assert spark.read.format("nadi").options(**given, columns="offset").load().count() == len(large)


@pytest.fixture(scope="module")
def exact_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A server that stores the time of each append, and returns three at a time."""
    with served(tmp_path_factory.mktemp("exact"), "time_index_ms=1,time_index_bytes=1,moments_at_once=3") as home:
        yield home


def test_append_times_are_those_of_the_appends(exact_home: Home) -> None:
    home = exact_home
    home.manager.create_stream("home", "timed")
    begun, ended = list[float](), list[float]()
    with home.manager.create_writer("home", "timed") as writer:
        for number in range(20):
            begun.append(time.time())
            writer.write_event(b"%d" % number)
            if number % 3:  # the others come in one append, or two
                writer.flush()
                ended += [time.time()] * (len(begun) - len(ended))
            time.sleep(0.003)
        writer.flush()
        ended += [time.time()] * (len(begun) - len(ended))
    with home.manager.create_transaction_writer("home", "timed") as transactions:
        transaction = transactions.begin_txn()
        transaction.write_event(b"20")
        transaction.flush()
        time.sleep(0.05)
        begun.append(time.time())  # an event's time is that of the merge
        transaction.commit(wait=True)
        ended.append(time.time())
    rows = batch(home, "timed", columns="event, append_time, offset")
    assert [row["event"] for row in rows] == [b"%d" % number for number in range(21)]
    times = [row["append_time"].timestamp() for row in rows]
    assert times == sorted(times)
    for one, (earliest, latest) in zip(times, zip(begun, ended, strict=True), strict=True):
        assert earliest - 0.0015 <= one <= latest + 0.0015, "clocks are read to the millisecond"
    cuts = home.manager.cuts("home", "timed")
    home.manager.truncate_stream(cuts.after(cuts.head(), 7))
    assert [row["append_time"].timestamp() for row in batch(home, "timed", columns="append_time")] == times[7:]
    client, offsets = client_of(options_of(home, "timed").controller), np.array([row["offset"] for row in rows])
    assert RowTimes(client, "home", ScanRange("timed", 0, 0, 1 << 40)).of(offsets).null_count == 7, (
        "truncated rows have no times"
    )


def test_inconsistent_time_index_raises_protocol_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.manager.create_stream("home", "nowhere")
    with home.manager.create_writer("home", "nowhere") as writer:
        writer.write_event(bytes(100), "key")

    async def inconsistent(*_: Any) -> wire.MomentsListed:
        return wire.MomentsListed(1, "home/nowhere/0.#epoch.0", packed_moments([(1000, 8)]), False, 2000, 0)

    client = client_of(
        ReadOptions.from_spark({"controller": home.uri, "scope": "home", "stream": "nowhere"}).controller
    )
    monkeypatch.setattr(stores_of(client.manager), "ask", inconsistent)
    row_times = RowTimes(client, "home", ScanRange("nowhere", 0, 0, 108))
    with pytest.raises(ProtocolError):
        row_times.of(np.array([0, 50]))


def test_append_times_follow_a_stream_through_its_scalings(exact_home: Home) -> None:
    stream = ScaledStream(exact_home.manager, "timed-and-scaled", 3)
    ends = list[float]()
    for _ in range(3):
        stream.live(1)
        ends.append(time.time())
        time.sleep(0.01)
    rows = batch(exact_home, stream.stream, columns="event, segment_id, append_time")
    assert len(rows) == stream.written
    for segment in {row["segment_id"] for row in rows}:
        times = [row["append_time"] for row in rows if row["segment_id"] == segment]
        assert times == sorted(times)
    for row in rows:
        number, at = int(row["event"].split(b":")[1]), row["append_time"].timestamp()
        part = number * 3 // stream.written
        assert at <= ends[part] + 0.0015
        assert part == 0 or at >= ends[part - 1] - 0.0015


def test_append_times_are_approximate_by_default(home: Home) -> None:
    home.manager.create_stream("home", "near", 3)
    began = time.time()
    with home.manager.create_writer("home", "near") as writer:
        for number in range(500):
            writer.write_event(b"%d" % number, str(number))
    ended = time.time()
    rows = batch(home, "near", columns="segment_id,append_time")
    assert len({row["segment_id"] for row in rows}) == 3
    assert len(rows) == 500
    assert all(began - 0.0015 <= row["append_time"].timestamp() <= ended + TIME_INDEX_MOST_MS / 1000 for row in rows)


def test_older_server_gets_no_unknown_request(home: Home) -> None:
    home.manager.create_stream("home", "older")
    with home.manager.create_writer("home", "older") as writer:
        writer.write_event(b"x")
    client = client_of(options_of(home, "older").controller)
    connection = client.run(stores_of(client.manager).connection("home/older/0.#epoch.0"))
    connection.lists_moments = False
    with pytest.raises(InvalidArgumentError, match="'append_time'"):
        batch(home, "older", columns="append_time")
    connection.lists_moments = True
    assert len(batch(home, "older", columns="append_time")) == 1
