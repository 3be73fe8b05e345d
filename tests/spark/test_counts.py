"""Reads of columns without event bytes: the same rows, the same errors, and no event bytes are sent."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client.manager.streams import stores_of
from nadi.client.scan.pieces import ScanRange
from nadi.client.segments.byte_locations import locate_chunks
from nadi.client.segments.connection import SegmentStoreConnection
from nadi.errors import DamagedDataError, NadiError, NotFoundError
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.spark.connections import TaskClient, client_of
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.direct import read_pieces

from .queries import Home, Query

# small pages; 256 KiB go to tier 2 at once, less stays in the log
SERVER_LIMITS = (
    "event_sizes_scanned_bytes=100000,event_sizes_listed=900,chunk_flush_bytes=262144,chunk_flush_age_s=3600,"
    "run_least_bytes=1000000000"
)
PLACES = "offset,segment_id,position_before,position,stream"


@pytest.fixture(scope="module", autouse=True)
def every() -> Iterator[list[int]]:
    """Record the bytes received by each connection to a segment store made from now on."""
    sizes: list[int] = []
    handled = SegmentStoreConnection.buffer_updated

    def counted(connection: SegmentStoreConnection, size: int) -> None:
        sizes.append(size)
        handled(connection, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentStoreConnection, "buffer_updated", counted)
        yield sizes


@pytest.fixture
def received(every: list[int]) -> list[int]:
    every.clear()
    return every


def options_of(home: Home, stream: str, columns: str, **given: str) -> ReadOptions:
    texts = {"controller": home.uri, "scope": "home", "stream": stream, "columns": columns, "direct": "never"}
    return ReadOptions.from_spark({**texts, **given}, Use.READ)


def rows(home: Home, stream: str, piece: ScanRange, columns: str, **given: str) -> list[dict[str, Any]]:
    found = read_pieces(options_of(home, stream, columns, **given), [piece])
    return [row for batch in found for row in batch.to_pylist()]


def same(home: Home, stream: str, piece: ScanRange, **given: str) -> int:
    """Check that the rows equal those read with their events; return their number."""
    alone = rows(home, stream, piece, PLACES, **given)
    with_events = rows(home, stream, piece, f"event,{PLACES}", **given)
    assert alone == [{name: row[name] for name in alone[0]} for row in with_events] if alone else not with_events
    return len(alone)


def write(home: Home, stream: str, events: list[bytes]) -> int:
    """Write the events; return the segment's end."""
    with home.manager.create_writer("home", stream) as writer:
        for event in events:
            writer.write_event(event, "key")
    return tail(home, stream)


def tail(home: Home, stream: str) -> int:
    return home.manager.stream_info("home", stream).tail.positions[0]


def test_events_of_every_shape(home: Home, received: list[int]) -> None:
    chance, stream = random.Random(1), "shapes"
    home.manager.create_stream("home", stream)
    assert same(home, stream, ScanRange(stream, 0, 0, 0)) == 0
    ends = [0]
    for kind in (b"alike", b"others", b"empty", b"large", b"alike"):  # most of it goes to tier 2
        sizes = {b"alike": [92] * 3000, b"empty": [0] * 3000, b"large": [9_000_000, 5, 120_000, 99_999]}
        ends.append(write(home, stream, [bytes(size) for size in sizes.get(kind, range(700))]))
    with home.manager.create_transaction_writer("home", stream) as transactions:
        transaction = transactions.begin_txn()
        for number in range(300):
            transaction.write_event(chance.randbytes(number), "key")
        transaction.commit(wait=True)
    ends.append(tail(home, stream))
    end = ends[-1]
    assert same(home, stream, ScanRange(stream, 0, 0, end)) == 3000 + 700 + 3000 + 4 + 3000 + 300
    assert same(home, stream, ScanRange(stream, 0, ends[3], ends[5])) == 3004
    assert same(home, stream, ScanRange(stream, 0, ends[2], ends[2])) == 0
    received.clear()
    assert len(rows(home, stream, ScanRange(stream, 0, 0, end), "offset,append_time")) == 10_004
    assert sum(received) < end // 300
    for start, stop in ((ends[1], ends[2] - 3), (ends[1] + 3, ends[2]), (ends[1] + 1, ends[1] + 4)):
        assert error(home, ScanRange(stream, 0, start, stop), "offset") == error(
            home, ScanRange(stream, 0, start, stop), "event"
        )
    home.manager.truncate_stream(StreamCut("home", stream, {0: ends[1]}))
    assert same(home, stream, ScanRange(stream, 0, ends[1], end)) == 7004
    assert error(home, ScanRange(stream, 0, 0, end), "offset") == error(home, ScanRange(stream, 0, 0, end), "event")
    home.manager.seal_stream("home", stream)
    assert same(home, stream, ScanRange(stream, 0, ends[1], end)) == 7004
    missing = ScanRange(stream, 77, 0, 1000)
    assert error(home, missing, "offset") == error(home, missing, "event")


def error(home: Home, piece: ScanRange, columns: str) -> tuple[type[NadiError], str]:
    with pytest.raises(NadiError) as caught:
        rows(home, piece.stream, piece, columns)
    return type(caught.value), str(caught.value)


def test_older_server_sends_events(home: Home, received: list[int]) -> None:
    home.manager.create_stream("home", "older")
    end = write(home, "older", [bytes(1000)] * 500)
    client = client_of(options_of(home, "older", "offset").controller)
    connection = client.run(stores_of(client.manager).connection(segment_name("home", "older", 0)))
    connection.lists_event_sizes = False
    try:
        assert same(home, "older", ScanRange("older", 0, 0, end)) == 500
        received.clear()
        assert len(rows(home, "older", ScanRange("older", 0, 0, end), "offset")) == 500
        assert sum(received) > end
    finally:
        connection.lists_event_sizes = True
    received.clear()
    assert len(rows(home, "older", ScanRange("older", 0, 0, end), "offset")) == 500
    assert 0 < sum(received) < 2_000


def test_limited_batch_is_counted_without_event_bytes(home: Home, received: list[int]) -> None:
    home.manager.create_stream("home", "counted")
    size = write(home, "counted", [bytes(1000 + number % 7) for number in range(2000)])
    query = Query(home, "counted", maxOffsetsPerTrigger="300")
    received.clear()
    end = query.reader.latestOffset(query.offsets[-1], query.reader.getDefaultReadLimit())
    assert 0 < sum(received) < size // 100
    received.clear()
    assert len(query.read(query.offsets[-1], end)) == 300
    assert sum(received) > 300_000
    assert [len(event) for event in query.run()] == [1000 + number % 7 for number in range(2000)]
    assert [len(batch) for batch in query.batches] == [300] * 6 + [200]


def located(client: TaskClient, stream: str, end: int) -> int:
    """Return how many of the segment's bytes are in tier 2."""
    name = segment_name("home", stream, 0)
    found = client.run(locate_chunks(stores_of(client.manager), name, 0, end))
    return sum(part.length for part in found.parts)


def in_tier2(client: TaskClient, stream: str, end: int, least: int) -> None:
    limit = time.monotonic() + 60
    while located(client, stream, end) < least:
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_accessible_chunks_are_scanned_by_tasks(
    home: Home, received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.manager.create_stream("home", "chunks")
    end = write(home, "chunks", [bytes(1000 + number % 7) for number in range(2000)])
    client = client_of(options_of(home, "chunks", "offset").controller)
    in_tier2(client, "chunks", end, end // 2)
    end = write(home, "chunks", [bytes(1000 + number % 7) for number in range(100)])  # in the log
    piece = ScanRange("chunks", 0, 0, end)
    assert same(home, "chunks", piece, direct="always") == 2100
    chunks: list[str] = []
    read = ChunkStore.read_checked

    async def noted(store: Any, name: str, *given: Any) -> Any:
        chunks.append(name)
        return await read(store, name, *given)

    monkeypatch.setattr(ChunkStore, "read_checked", noted)
    for direct, is_here in (("always", True), ("auto", True), ("never", False)):
        monkeypatch.setattr("nadi.spark.reading.direct.LEAST_BYTES", 1)
        received.clear()
        chunks.clear()
        assert len(rows(home, "chunks", piece, "offset", direct=direct)) == 2100
        assert sum(received) < 10_000
        assert bool(chunks) == is_here
    monkeypatch.setattr("nadi.spark.reading.direct.LEAST_BYTES", end + 1)
    chunks.clear()
    assert len(rows(home, "chunks", piece, "offset", direct="auto")) == 2100
    assert not chunks, "a small piece is the server's"
    monkeypatch.setattr("nadi.spark.reading.direct.LEAST_BYTES", 1)

    async def gone(*_: Any) -> Any:
        raise NotFoundError("it is gone")

    monkeypatch.setattr(ChunkStore, "read_checked", gone)
    received.clear()
    assert len(rows(home, "chunks", piece, "offset", direct="always")) == 2100
    assert sum(received) < 10_000, "the server has all"


def test_damage_is_reported_or_skipped_as_in_reads(tmp_path: Path) -> None:
    limits = {"NADI_LIMITS": SERVER_LIMITS.replace("262144", "4194304")}
    with (
        nadi.embedded(tmp_path / "data", environment=limits) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "damaged")
        home = Home(server.controller_uri, manager)
        end = write(home, "damaged", [bytes([n % 251]) * 1000 for n in range(9000)])
        in_tier2(client_of(options_of(home, "damaged", "offset").controller), "damaged", end, 4_194_304)
        folder = Path(server.folder)
    name = max((folder / "tier2").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
    data = bytearray(name.read_bytes())
    data[1_500_000] ^= 1
    name.write_bytes(data)
    with (
        nadi.embedded(tmp_path / "data", environment=limits) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        home, piece = Home(server.controller_uri, manager), ScanRange("damaged", 0, 0, end)
        errors, left = [], []
        for direct in ("never", "always"):
            for columns in ("offset", "event"):
                with pytest.raises(DamagedDataError) as caught:
                    rows(home, "damaged", piece, columns, direct=direct)
                errors.append((caught.value.segment, caught.value.offset, caught.value.end_offset, caught.value.reason))
            assert 1000 < same(home, "damaged", piece, on_damage="skip", direct=direct) < 9000
            left.append(rows(home, "damaged", piece, "event", on_damage="skip", direct=direct))
        assert errors == errors[:1] * 4
        assert left[0] == left[1]
