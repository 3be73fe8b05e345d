"""Scans: the events between two cuts as Arrow, whole and in splits read by other processes."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import nadi
from nadi.client import StreamManager
from nadi.client.serializers import Arrow, Avro, Json
from nadi.errors import (
    InvalidArgumentError,
    InvalidStreamCutError,
    SerializationError,
    SliceNotFoundError,
    StreamNotFoundError,
)

EVENTS, KEYS = 20_000, 50
SCHEMA = "meter string, wh long"


def reading(number: int) -> bytes:
    return b'{"meter": "m%d", "wh": %d, "pad": "%s"}' % (number % KEYS, number, b"x" * 200)


@pytest.fixture(scope="module")
def meters(uri: str) -> Iterator[StreamManager]:
    """Stream sc/meters, split and merged while events were written; slice "middle" is a part of it."""
    with StreamManager(uri) as manager:
        manager.create_stream("sc", "meters", 2)
        cuts = manager.cuts("sc", "meters")
        with manager.create_writer("sc", "meters") as writer:
            for number in range(EVENTS):
                writer.write_event(reading(number), f"m{number % KEYS}")
                if number in (EVENTS // 4, EVENTS // 2, EVENTS * 3 // 4):
                    writer.flush(60)
                    manager.bookmarks("sc").create(f"at-{number}", cuts.tail())
                if number == EVENTS // 4:
                    manager.scale_stream("sc", "meters", [0], [(0.0, 0.2), (0.2, 0.35), (0.35, 0.5)])
                if number == EVENTS // 2:
                    first, second, *_ = sorted(cuts.tail().positions)[1:]
                    manager.scale_stream("sc", "meters", [first, second], [(0.0, 0.35)])
        start, end = cuts.named(f"at-{EVENTS // 4}"), cuts.named(f"at-{EVENTS // 2}")
        manager.slices("sc").create("middle", start, end)
        yield manager


def numbers(table: pa.Table) -> list[int]:
    return [json.loads(event)["wh"] for event in table["event"].to_pylist()]


def check_order(found: list[int]) -> None:
    """Check that each key's rows are in order."""
    for key in range(KEYS):
        mine = [number for number in found if number % KEYS == key]
        assert mine == sorted(mine)


def test_scan_has_every_event_once_in_key_order(meters: StreamManager) -> None:
    scan = nadi.scan(meters, "sc", "meters")
    found = pa.table(scan)
    assert found.schema.names == ["event", "segment_id", "offset"]
    assert sorted(numbers(found)) == list(range(EVENTS))
    check_order(numbers(found))
    assert pa.table(scan).equals(found), "a second read"
    assert scan.size_bytes == sum(len(reading(number)) + 8 for number in range(EVENTS))


def test_scan_is_fixed_at_creation(meters: StreamManager) -> None:
    meters.create_stream("sc", "grows")
    with meters.create_writer("sc", "grows") as writer:
        writer.write_event(b"one")
        writer.flush()
        scan = nadi.scan(meters, "sc", "grows")
        writer.write_event(b"two")
    assert pa.table(scan)["event"].to_pylist() == [b"one"]
    assert scan.end != meters.cuts("sc", "grows").tail()


@pytest.mark.parametrize("by", ["slice", "named", "cuts", "bookmarks"])
def test_a_slice(meters: StreamManager, by: str) -> None:
    named = meters.slices("sc").get("middle")
    scan = {
        "slice": lambda: nadi.scan(meters, "sc", slice="middle"),
        "named": lambda: nadi.scan(meters, "sc", slice=named),
        "cuts": lambda: nadi.scan(meters, "sc", "meters", start=named.start, end=named.end),
        "bookmarks": lambda: nadi.scan(meters, "sc", "meters", start=f"at-{EVENTS // 4}", end=f"at-{EVENTS // 2}"),
    }[by]()
    assert sorted(numbers(pa.table(scan))) == list(range(EVENTS // 4 + 1, EVENTS // 2 + 1))
    assert (scan.start, scan.end) == (named.start, named.end)


def test_scan_starts_and_ends_at_times(meters: StreamManager) -> None:
    now = datetime.now(UTC)
    assert len(pa.table(nadi.scan(meters, "sc", "meters", start=now + timedelta(days=1)))) == 0
    everything = nadi.scan(meters, "sc", "meters", start=now - timedelta(days=1), end=now + timedelta(days=1))
    assert len(pa.table(everything)) == EVENTS


def test_columns(meters: StreamManager) -> None:
    names = ["stream", "position", "append_time", "event_time", "offset"]
    found = pa.table(nadi.scan(meters, "sc", slice="middle", columns=names))
    assert found.schema.names == names
    assert set(found["stream"].to_pylist()) == {"meters"}
    taken = found["append_time"].to_pylist()
    assert all(abs(datetime.now(UTC) - one) < timedelta(minutes=10) for one in taken)
    last = nadi.StreamCut.from_text(found["position"][-1].as_py())
    meters.cuts("sc", "meters").check(last)


def test_routing_keys_exclude_segments(meters: StreamManager) -> None:
    found = numbers(pa.table(nadi.scan(meters, "sc", "meters", routing_keys=["m7"])))
    assert {number for number in range(EVENTS) if number % KEYS == 7} <= set(found)
    assert len(found) < EVENTS


# --- values --------------------------------------------------------------------------------------------------------


def test_values_are_typed_columns(meters: StreamManager) -> None:
    given: dict[str, Any] = {"value_format": "json", "value_schema": SCHEMA}
    nested = pa.table(nadi.scan(meters, "sc", "meters", **given))
    assert nested.schema.names == ["value", "segment_id", "offset"]
    assert sum(one["wh"] for one in nested["value"].to_pylist()) == sum(range(EVENTS))
    flat = pa.table(nadi.scan(meters, "sc", "meters", columns=["value", "append_time"], unnest=True, **given))
    assert flat.schema.names == ["meter", "wh", "append_time"]
    assert flat.schema.field("wh").type == pa.int64()
    assert flat["wh"].to_pylist() == [one["wh"] for one in nested["value"].to_pylist()]


def test_older_avro_event_has_newer_schema_defaults(meters: StreamManager) -> None:
    def version(*more: dict[str, Any]) -> Avro:
        return Avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, *more]})

    cents = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    sub = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int", "default": 3}]}
    new = version(
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "price", "type": cents, "default": "\u0004\u00d2"},
        {"name": "sub", "type": sub, "default": {}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": -1},
    )
    meters.create_stream("sc", "defaults")
    for serializer in (version(), new, version()):
        with meters.create_writer("sc", "defaults", serializer=serializer) as writer:
            writer.write_event({"a": 1})
    meters.stream_tables("sc").define("defaults", key=["a"])
    nadi.write_rows(meters, "sc", "defaults", pa.table({"a": [1]}))
    read = nadi.scan(meters, "sc", "defaults", value_format="avro", columns=["value"], unnest=True)
    at = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    assert (
        pa.table(read).to_pylist()
        == [{"a": 1, "raw": b"\xff", "price": Decimal("12.34"), "sub": {"x": 3}, "at": at}] * 4
    )


def test_views_and_categoricals_are_strings_in_every_engine(meters: StreamManager) -> None:
    frame = polars.DataFrame({"room": ["hall", None], "tags": [["a"], []], "kind": ["x", "x"]}).cast(
        {"kind": polars.Categorical, "tags": polars.List(polars.Enum(["a", "b"]))}
    )
    table = pa.table(frame)
    assert pa.string_view() in table.schema.types
    meters.create_stream("sc", "views")
    with meters.create_writer("sc", "views", serializer=Arrow(table.schema)) as writer:
        for batch in table.to_batches():
            writer.write_event(batch)
    read = nadi.scan(meters, "sc", "views", value_format="arrow", columns=["value"], unnest=True)
    rows = [{"room": "hall", "tags": ["a"], "kind": "x"}, {"room": None, "tags": [], "kind": "x"}]
    assert pa.table(read).to_pylist() == rows
    assert polars.DataFrame(read).to_dicts() == rows
    assert duckdb.table("read").to_arrow_table().to_pylist() == rows
    assert pa.table(read).to_pandas()["kind"].tolist() == ["x", "x"]


def test_map_with_equal_instants_as_keys_is_null(meters: StreamManager) -> None:
    meters.create_stream("sc", "instants")
    with meters.create_writer("sc", "instants") as writer:
        writer.write_event(b'{"at": {"2026-01-01T00:00:00Z": 1, "2026-01-01T01:00:00+01:00": 2}}', "k")
        writer.write_event(b'{"at": {"2026-01-01T00:00:00Z": 3}}', "k")
    times = nadi.scan(
        meters, "sc", "instants", value_format="json", value_schema="at map<timestamp, long>", unnest=True,
        columns=["value"],
    )  # fmt: skip
    found = duckdb.from_arrow(times).fetchall()
    assert [None if at is None else list(at.values()) for (at,) in found] == [None, [3]]


@pytest.mark.parametrize("serializer", [None, Json()])
def test_half_surrogate_pair_in_json_is_replaced(
    meters: StreamManager, serializer: Json[dict[str, str]] | None
) -> None:
    stream = f"halves-{serializer is None}"
    meters.create_stream("sc", stream)
    with meters.create_writer("sc", stream) as writer:
        writer.write_event(rb'{"text": "Zoe \ud83d", "same": "\\ud83d"}', "k")
    if serializer is None:
        rows = nadi.scan(
            meters, "sc", stream, value_format="json", value_schema="text string, same string", unnest=True,
            columns=["value"],
        )  # fmt: skip
        (found,) = pa.table(rows).to_pylist()
    else:
        end = meters.cuts("sc", stream).tail()
        found = next(meters.read_events("sc", stream, serializer=serializer, end=end)).value
    assert found == {"text": "Zoe \ufffd", "same": "\\ud83d"}


def test_value_mode_decides_on_unreadable_events(meters: StreamManager) -> None:
    meters.create_stream("sc", "odd")
    with meters.create_writer("sc", "odd") as writer:
        for event in (b'{"wh": 1}', b"nothing", b'{"wh": 3}'):
            writer.write_event(event)
    given: dict[str, Any] = {"value_format": "json", "value_schema": "wh long", "unnest": True}
    assert pa.table(nadi.scan(meters, "sc", "odd", **given))["wh"].to_pylist() == [1, None, 3]
    assert pa.table(nadi.scan(meters, "sc", "odd", value_mode="DROPMALFORMED", **given))["wh"].to_pylist() == [1, 3]
    scan = nadi.scan(meters, "sc", "odd", value_mode="FAILFAST", **given)
    with pytest.raises(SerializationError):
        list(scan.batches())
    with pytest.raises(pa.ArrowInvalid):  # as Arrow reports it
        pa.table(scan)


# --- splits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_splits_have_every_row_once(meters: StreamManager, ordered: bool) -> None:
    scan = nadi.scan(meters, "sc", "meters")
    splits = scan.splits(4, ordered=ordered)
    assert sum(split.size_bytes for split in splits) == scan.size_bytes
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool:
        parts = [numbers(found) for found in pool.map(pa.table, splits)]
    assert sorted(number for part in parts for number in part) == list(range(EVENTS))
    if ordered:
        keys = [{number % KEYS for number in part} for part in parts]
        assert sum(map(len, keys)) == KEYS, "all of a key is in one part"
        for part in parts:
            check_order(part)


def test_splits_are_balanced_and_within_max_bytes(meters: StreamManager) -> None:
    scan = nadi.scan(meters, "sc", "meters")
    four = [split.size_bytes for split in scan.splits(4)]
    assert len(four) == 4
    assert max(four) < 1.3 * scan.size_bytes / 4
    small = [split.size_bytes for split in scan.splits(1, max_bytes=100_000)]
    assert len(small) >= scan.size_bytes // 100_000
    assert max(small) < 1.5 * 100_000
    assert len(scan.splits(1)) == 1
    assert len(scan.splits(1_000)) < 10, "there are few MiB"


def test_empty_scan(meters: StreamManager) -> None:
    meters.create_stream("sc", "empty")
    scan = nadi.scan(meters, "sc", "empty")
    assert len(pa.table(scan)) == 0
    assert scan.splits(4) == []


# --- readers and blocks --------------------------------------------------------------------------------------------


def test_a_reader_and_a_block_are_read_as_arrow(meters: StreamManager) -> None:
    named = meters.slices("sc").get("middle")
    with meters.create_reader("sc", "meters", start=named.start, end=named.end) as reader:
        found = pa.table(reader)
    assert found.schema.names == ["event", "segment_id", "offset"]
    assert found.sort_by([("segment_id", "ascending"), ("offset", "ascending")]).equals(
        pa.table(nadi.scan(meters, "sc", slice="middle")).combine_chunks()
    )
    with meters.create_reader("sc", "meters") as reader:
        _, block = reader.next_block() or pytest.fail("there are some")
    assert pa.table(block)["event"].to_pylist() == block.events()
    assert pa.table(block)["offset"].to_pylist() == block.offsets().tolist()


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"stream": "meters", "slice": "middle"},
        {"stream": "meters", "columns": "event"},
        {"stream": "meters", "columns": []},
        {"stream": "meters", "columns": ["event", "event"]},
        {"stream": "meters", "columns": ["evnt"]},
        {"stream": "meters", "columns": ["value"]},
        {"stream": "meters", "columns": ["event"], "value_format": "json"},
        {"stream": "meters", "value_schema": "wh long"},
        {"stream": "meters", "value_format": "xml"},
        {"stream": "meters", "unnest": True},
        {"stream": "meters", "event_time_unit": "s"},
        {"stream": "meters", "columns": ["event_time"], "event_time_unit": "h"},
        {"stream": "meters", "on_damage": "ignore"},
        {"stream": "meters", "value_format": "json", "value_schema": "offset long", "unnest": True},
        {"stream": "meters", "value_format": "json", "value_schema": "wh lnog"},
        {"stream": "meters", "value_format": "json"},
    ],
)
def test_invalid_arguments_are_rejected(meters: StreamManager, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=["stream", *given][-1].removesuffix("s")):
        nadi.scan(meters, "sc", **given)


def test_missing_streams_slices_and_positions(meters: StreamManager) -> None:
    other = nadi.StreamCut("sc", "other", {0: 0})
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (StreamNotFoundError, {"stream": "metres"}),
        (SliceNotFoundError, {"slice": "midle"}),
        (InvalidStreamCutError, {"stream": "meters", "start": "tail", "end": "head"}),
        (InvalidStreamCutError, {"stream": "meters", "start": other}),
    ]
    for error, given in wrong:
        with pytest.raises(error):
            nadi.scan(meters, "sc", **given)


def test_invalid_split_arguments_are_rejected(meters: StreamManager) -> None:
    scan = nadi.scan(meters, "sc", "meters")
    wrong: list[dict[str, Any]] = [
        {"count": 0},
        {"count": True},
        {"count": 1, "max_bytes": 0},
        {"count": 1, "max_bytes": 1},
        {"count": 2, "max_bytes": 10, "ordered": True},
    ]
    for given in wrong:
        with pytest.raises(InvalidArgumentError, match="max_bytes" if "max_bytes" in given else "count"):
            scan.splits(**given)
