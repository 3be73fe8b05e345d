"""One set of rows through both doors."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import TopicPartition

import nadi
from nadi.client.serializers.kafka import KIND, Record, batch_of, decoder, encoder, records_of
from tests.kafka.support import SCOPE, Door, consumed, written

AT = datetime(2026, 11, 30, 12, 0, 0, 123_000, tzinfo=UTC)


def rows_of(manager: nadi.StreamManager, stream: str) -> list[dict[str, Any]]:
    table = pa.table(nadi.scan(manager, SCOPE, stream, value_format="kafka"))
    return list(table.column("value").to_pylist())


def test_what_kafka_wrote_are_rows(manager: nadi.StreamManager, door: Door) -> None:
    door.create("rows", 3)
    stamp = round(AT.timestamp() * 1000)
    written(
        door.producer(compression_type="zstd", linger_ms=20),
        "rows",
        [b"%d" % number for number in range(100)],
        lambda number: b"k%d" % number,
        timestamp=stamp,
        headers=[("unit", b"W"), ("none", None)],
    )
    rows = rows_of(manager, "rows")
    assert sorted(int(str(row["value"], "ascii")) for row in rows) == list(range(100))
    assert rows[0]["timestamp"] == AT
    assert rows[0]["headers"] == [{"name": "unit", "value": b"W"}, {"name": "none", "value": None}]


def test_what_nadi_wrote_are_records(manager: nadi.StreamManager, door: Door) -> None:
    manager.create_stream(SCOPE, "plain", segments=2)
    with manager.create_writer(SCOPE, "plain") as writer:
        for number in range(50):
            writer.write_event(b"%d" % number, f"key {number}")
    with manager.create_writer(SCOPE, "plain") as writer:
        writer.write_event(batch_of([Record(0, 5, b"key", b"one"), Record(0, 6, None, b"two")]), "any")
    consumer = door.consumer("plain")
    partitions = len(door.admin().list_topics("plain", timeout=10).topics["plain"].partitions)
    consumer.assign([TopicPartition("plain", partition, 0) for partition in range(partitions)])
    values = [message.value() for message in consumed(consumer, 52)]
    assert sorted(values) == sorted([b"%d" % number for number in range(50)] + [b"one", b"two"])
    threading.Timer(0.3, lambda: _write(manager, b"live")).start()
    assert consumed(consumer, 1)[0].value() == b"live"
    consumer.close()


def _write(manager: nadi.StreamManager, event: bytes) -> None:
    with manager.create_writer(SCOPE, "plain") as writer:
        writer.write_event(event, "k")


def test_columns_and_batches_are_inverse() -> None:
    records = [
        Record(0, 1_700_000_000_123, b"k", None, [("h", b"v")]),
        Record(0, -1, None, b""),
        Record(0, -2_000, b"", b"x" * 300, [("h", None), ("h", b"")]),
    ]
    read = decoder(KIND, b"", b"")
    decoded = read([batch_of(records), b"no batch", batch_of(records[:1])])
    assert decoded.rows is not None
    assert decoded.rows.tolist() == [0, 0, 0, 1, 2]
    assert list(decoded.wrong) == [1]
    assert decoded.values[3].as_py() is None
    valid = pa.concat_arrays([decoded.values[:3], decoded.values[4:]])
    again = [record for event in encoder(KIND, b"")(valid) for record in records_of(event)]
    assert [record[1:] for record in again] == [
        (*record[1:4], list(record.headers)) for record in [*records, records[0]]
    ]
