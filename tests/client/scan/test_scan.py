"""Scans: what lies between two cuts, as Arrow, whole and in splits that other processes read."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import nadi
from nadi.client import StreamManager
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
    """Stream sc/meters, which was split and merged while events came; slice "middle" is a part of it."""
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
    """Each key's are in order."""
    for key in range(KEYS):
        mine = [number for number in found if number % KEYS == key]
        assert mine == sorted(mine)


def test_all_of_a_stream_is_there_once_each_keys_in_order(meters: StreamManager) -> None:
    scan = nadi.scan(meters, "sc", "meters")
    found = pa.table(scan)
    assert found.schema.names == ["event", "segment_id", "offset"]
    assert sorted(numbers(found)) == list(range(EVENTS))
    check_order(numbers(found))
    assert pa.table(scan).equals(found), "it is read anew"
    assert scan.size_bytes == sum(len(reading(number)) + 8 for number in range(EVENTS))


def test_it_stays_what_it_was_when_it_was_made(meters: StreamManager) -> None:
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


def test_times_are_places(meters: StreamManager) -> None:
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


def test_routing_keys_leave_segments_out(meters: StreamManager) -> None:
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


def test_what_cannot_be_read_is_null_left_out_or_an_error(meters: StreamManager) -> None:
    meters.create_stream("sc", "odd")
    with meters.create_writer("sc", "odd") as writer:
        for event in (b'{"wh": 1}', b"nothing", b'{"wh": 3}'):
            writer.write_event(event)
    given: dict[str, Any] = {"value_format": "json", "value_schema": "wh long", "unnest": True}
    assert pa.table(nadi.scan(meters, "sc", "odd", **given))["wh"].to_pylist() == [1, None, 3]
    assert pa.table(nadi.scan(meters, "sc", "odd", value_mode="DROPMALFORMED", **given))["wh"].to_pylist() == [1, 3]
    scan = nadi.scan(meters, "sc", "odd", value_mode="FAILFAST", **given)
    with pytest.raises(SerializationError, match="can't be read as json"):
        list(scan.batches())
    with pytest.raises(pa.ArrowInvalid, match="can't be read as json"):  # as whoever reads it tells it
        pa.table(scan)


# --- splits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_splits_have_every_row_once_wherever_they_are_read(meters: StreamManager, ordered: bool) -> None:
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


def test_splits_are_balanced_and_no_larger_than_they_may_be(meters: StreamManager) -> None:
    scan = nadi.scan(meters, "sc", "meters")
    four = [split.size_bytes for split in scan.splits(4)]
    assert len(four) == 4
    assert max(four) < 1.3 * scan.size_bytes / 4
    small = [split.size_bytes for split in scan.splits(1, max_bytes=100_000)]
    assert len(small) >= scan.size_bytes // 100_000
    assert max(small) < 1.5 * 100_000
    assert len(scan.splits(1)) == 1
    assert len(scan.splits(1_000)) < 10, "there are few MiB"


def test_a_split_has_the_clients_credentials_and_shows_no_password(meters: StreamManager) -> None:
    split = nadi.scan(meters, "sc", "meters").splits(1)[0]
    assert pickle.loads(pickle.dumps(split)) == split
    assert "password" not in repr(split)


def test_nothing_to_read(meters: StreamManager) -> None:
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


# --- what is wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "say which stream"),
        ({"stream": "meters", "slice": "middle"}, "have no effect with slice"),
        ({"stream": "meters", "columns": "event"}, "columns are a list of texts"),
        ({"stream": "meters", "columns": []}, "columns names none"),
        ({"stream": "meters", "columns": ["event", "event"]}, "names one twice"),
        ({"stream": "meters", "columns": ["evnt"]}, "there is no column 'evnt': there are event, scope"),
        ({"stream": "meters", "columns": ["value"]}, "needs value_format"),
        ({"stream": "meters", "columns": ["event"], "value_format": "json"}, "no effect where columns leaves out"),
        ({"stream": "meters", "value_schema": "wh long"}, "no effect without 'value_format'"),
        ({"stream": "meters", "value_format": "xml"}, "it must be json"),
        ({"stream": "meters", "unnest": True}, "unnest has no effect"),
        ({"stream": "meters", "event_time_unit": "s"}, "no effect where columns leaves out 'event_time'"),
        ({"stream": "meters", "event_time_unit": "h", "columns": ["event_time"]}, "must be s, ms, us, ns or none"),
        ({"stream": "meters", "on_damage": "ignore"}, "on_damage"),
        (
            {"stream": "meters", "value_format": "json", "value_schema": "offset long", "unnest": True},
            "have a field 'offset', as is a column called",
        ),
        ({"stream": "meters", "value_format": "json", "value_schema": "wh lnog"}, "lnog"),
        ({"stream": "meters", "value_format": "json"}, "no schema for stream sc/meters"),
    ],
)
def test_what_is_wrong_is_said_at_once(meters: StreamManager, given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match=wrong):
        nadi.scan(meters, "sc", **given)


def test_places_that_are_not_there(meters: StreamManager) -> None:
    with pytest.raises(StreamNotFoundError):
        nadi.scan(meters, "sc", "metres")
    with pytest.raises(SliceNotFoundError):
        nadi.scan(meters, "sc", slice="midle")
    with pytest.raises(InvalidStreamCutError):
        nadi.scan(meters, "sc", "meters", start="tail", end="head")
    with pytest.raises(InvalidStreamCutError):
        nadi.scan(meters, "sc", "meters", start=nadi.StreamCut("sc", "other", {0: 0}))


@pytest.mark.parametrize(
    ("count", "given", "wrong"),
    [
        (0, {}, "from 1 to"),
        (True, {}, "from 1 to"),
        (1, {"max_bytes": 0}, "1 or more"),
        (1, {"max_bytes": 1}, "is the most"),
        (2, {"max_bytes": 10, "ordered": True}, "no effect with ordered"),
    ],
)
def test_splits_that_cannot_be(meters: StreamManager, count: int, given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match=wrong):
        nadi.scan(meters, "sc", "meters").splits(count, **given)
