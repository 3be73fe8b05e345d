"""nadi's client and Spark read all events written by the official package: once, and in order per key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nadi
from tests.compatibility.conftest import NADI, Official, Server
from tests.compatibility.events import by_key, numbered, texts
from tests.support.spark import spark_session

pytestmark = [pytest.mark.compatibility, pytest.mark.spark, pytest.mark.slow]  # starts a Spark session

STREAM = "meters"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


def spark_read(spark: Any, uri: str, scope: str) -> list[bytes]:
    """Return all events of the stream, each key's in order: a later segment of a key has a greater id."""
    options = {"controller": uri, "scope": scope, "stream": STREAM, "min_partition_bytes": "1"}
    rows = spark.read.format("nadi").options(**options).load()
    return [bytes(row.event) for row in rows.orderBy("segment_id", "offset").collect()]


def nadi_read(manager: nadi.StreamManager, scope: str) -> list[bytes]:
    tail = manager.stream_info(scope, STREAM).tail
    return [event.data for event in manager.read_events(scope, STREAM, end=tail)]


def test_events_and_transactions_through_a_split_and_a_merge(
    client: Official, server: Server, scope: str, spark: Any
) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    writer = client.manager.create_writer(scope, STREAM, max_inflight_events=50)
    transactions = client.manager.create_transaction_writer(scope, STREAM, 7)

    def write_part(part: int) -> list[str]:
        """Write events, a committed and an aborted transaction; return those that must be read."""
        events = numbered(part * 500, part * 500 + 500)
        kept = numbered(0, 100, label=f"transaction {part}")
        client.extras.write(writer, events)
        committed, aborted = transactions.begin_txn(), transactions.begin_txn()
        client.extras.write(committed, kept)
        client.extras.write(aborted, numbered(0, 20, label="dropped"))
        aborted.abort()
        committed.commit()
        return texts(events + kept)

    door = server(NADI)
    with nadi.StreamManager(door.controller_uri) as manager:
        written = write_part(0)
        first, _ = manager.current_segments(scope, STREAM)
        manager.scale_stream(scope, STREAM, [first.segment_id], [(0.0, 0.2), (0.2, 0.5)])
        written += write_part(1)
        low, middle, _ = sorted(manager.current_segments(scope, STREAM), key=lambda s: s.low)
        manager.scale_stream(scope, STREAM, [low.segment_id, middle.segment_id], [(0.0, 0.5)])
        written += write_part(2)
        client.manager.seal_stream(scope, STREAM)  # waits for the commits
        assert by_key(nadi_read(manager, scope)) == by_key(written)
    assert by_key(spark_read(spark, door.controller_uri, scope)) == by_key(written)


def test_large_events_and_an_empty_one(client: Official, server: Server, scope: str, spark: Any) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    writer = client.manager.create_writer(scope, STREAM)
    large = [bytes([n]) * (size << 20) for n, size in enumerate((8, 9, 15))]
    written = [b"before", large[0], b"", large[1], b"between", large[2], b"after"]
    client.extras.write(writer, [(event, "key") for event in written])
    door = server(NADI)
    with nadi.StreamManager(door.controller_uri) as manager:
        assert nadi_read(manager, scope) == written
    assert spark_read(spark, door.controller_uri, scope) == written
