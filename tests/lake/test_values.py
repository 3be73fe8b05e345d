"""Values that engines can't store become dead letters; all others survive, also a rebuild from JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import nadi
import nadi.lake
from nadi.errors import InvalidArgumentError
from nadi.lake import LakeStoppedError

from .world import Meters, catalog_in, in_table, table_of


def lake_of(meters: Meters, fields: str, *events: bytes, **options: Any) -> Any:
    meters.write_events(*events)
    lake = meters.lake(**{"value_schema": fields, "partition": ""} | options)
    meters.catch_up(lake)
    return lake


REBUILT = {
    "maps": (
        "m map<string,map<long,double>>, l array<map<string,int>>, s struct<m:map<date,int>>, n map<timestamp_ms,int>",
        b'{"m": {"a": {"1": 1.5}}, "l": [{"x": 1}, null], "s": {"m": {"2026-01-01": 2}}, "n": {"1790000000123": 1}}',
        b'{"m": {}, "l": [], "s": {"m": null}}',
        b'{"m": {"a": null}}',
    ),
    "numbers": (
        "n long, d decimal(38,0), e decimal(20,5), f float",
        b'{"n": 9223372036854775807, "d": 12345678901234567890123456789012345678, "e": "123456789012345.12345"}',
        b'{"n": -9223372036854775808, "f": 3.4028234e38}',
    ),
    "times": (
        "t timestamp, n timestamp_ntz, d date, ms timestamp_ms, ns timestamp_ns",
        b'{"t": "0001-01-01T00:00:00Z", "n": "2026-01-01T00:00:00.5", "d": "9999-12-31", "ms": -1}',
        b'{"t": "9999-12-31T23:59:59.999999Z", "ms": "2026-01-01T00:00:00.1234Z", "ns": "1790000000123456789"}',
    ),
    "nulls and names": (
        "_id long, b binary, s struct<a:int,b:struct<c:int>>, l array<struct<x:int>>",
        b'{"_id": 1, "b": "AQID", "s": {"a": null, "b": {"c": null}}}',
        b'{"_id": 2, "s": {"b": null}, "l": [null, {"x": null}]}',
    ),
}


@pytest.mark.parametrize("kind", REBUILT)
def test_a_stream_rebuilt_from_columns_has_the_same_values(meters: Meters, kind: str) -> None:
    fields, *events = REBUILT[kind]
    lake_of(meters, str(fields), *events)  # type: ignore[arg-type]
    meters.rebuild("again")
    found = [
        pa.table(
            nadi.scan(
                meters.manager, meters.scope, stream, value_format="json", value_schema=str(fields), columns=["value"]
            )
        )
        for stream in ("meters", "again")
    ]
    assert found[0]["value"].null_count == 0
    assert found[1].to_pylist() == found[0].to_pylist()


def test_rebuild_nan_as_json_fails(meters: Meters) -> None:
    lake = lake_of(meters, "g double, l array<double>", b'{"g": 1.5}')
    theirs = pa.table({"l": [[1.0, math.nan]], "_segment_id": [0], "_offset": [9_999]})
    table_of(lake).append(theirs)
    with pytest.raises(LakeStoppedError, match="9,999"):
        meters.rebuild("again")


WRONG = {  # fields, partition, valid events, and invalid ones with the field that their letters name
    "milliseconds": ("at timestamp", "day(at)", [b'{"at": 1790000000}'], {b'{"at": 1790000000123}': "at"}),
    "nanoseconds": (
        "at timestamp_ms", "hour(at)", [b'{"at": 1790000000123}'],
        {b'{"at": "1790000000123456789"}': "at"},
    ),
    "years": (
        "s struct<at:timestamp>", "month(s.at)",
        [b'{"s": {"at": "0001-01-01T00:00:00Z"}}', b'{"s": {"at": 253402300799}}'],
        {
            b'{"s": {"at": 253402300800}}': "at",
            b'{"s": {"at": "9999-12-31T23:30:00-01:00"}}': "at",
            b'{"s": {"at": "0001-01-01T00:00:00+01:00"}}': "at",
        },
    ),
    "least numbers": (
        "n long, d decimal(5,2)", "truncate(10, n), truncate(1000, d)",
        [b'{"n": 9223372036854775807, "d": "-989.99"}', b'{"n": -9223372036854775800}'],
        {
            b'{"n": -9223372036854775808}': "n",
            b'{"n": 1, "d": "-999.99"}': "d",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_value_out_of_range_becomes_a_dead_letter(meters: Meters, kind: str) -> None:
    fields, partition, good, wrong = WRONG[kind]
    lake = lake_of(meters, fields, *good[:1], *wrong, *good[1:], partition=partition)
    assert len(in_table(lake).to_pylist()) == len(good)
    assert len(pa.table(meters.union())) == len(good)
    found = {letter.data: letter.reason for letter in meters.letters()}
    assert found.keys() == wrong.keys()
    for event, field in wrong.items():
        assert f"{field}: " in found[event], (event, found[event])


def test_nan_and_extreme_numbers_have_partitions(meters: Meters) -> None:
    values = [math.nan, math.inf, -math.inf, -0.0, 0.0, math.nan, None]
    events = [msgspec.msgpack.encode({"g": value, "n": -(2**63)}) for value in values]
    partition = "g, bucket(3, n)"
    lake = lake_of(meters, "g double, n long", *events, value_format="msgpack", partition=partition)
    assert len(in_table(lake)) == len(values)
    assert len(table_of(lake).scan("g is nan").to_arrow()) == 2


OPTIONS: list[tuple[str, Any]] = [
    ("table", 5), ("catalog", "prod"), ("catalog", None), ("partition", ["wh"]), ("partition", "day(nope)"),
    ("partition", "bucket(4, g)"), ("value_format", 7), ("value_schema", 7), ("value_schema", "wh lnog"),
    ("event_time_unit", 1), ("keep_events", "yes"), ("dead_letters", 5), ("protect_unconsumed", None),
    ("start", "middle"),
    ("skip_truncated", 1), ("every_s", "1"), ("commit_bytes", 1.5), ("compact_files", "x"), ("keep_snapshots_s", "x"),
]  # fmt: skip


def test_define_invalid_option_names_it(meters: Meters) -> None:
    meters.manager.create_stream(meters.scope, "s")
    good: dict[str, Any] = {"table": f"{meters.scope}.s", "catalog": catalog_in(meters.folder), "value_format": "json"}
    good |= {"value_schema": "wh long, g double", "partition": None}
    for option, value in OPTIONS:
        with pytest.raises(InvalidArgumentError, match=option):
            nadi.lake.define(meters.manager, meters.scope, "s", **good | {option: value})
    assert nadi.lake.define(meters.manager, meters.scope, "s", **good).partition == ""
