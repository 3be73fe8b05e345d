"""Rows of tables and data frames written to stream tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import nadi
from nadi.client import StreamManager
from nadi.client.serializers import Struct
from nadi.client.streamtables import writing
from nadi.errors import ConflictError, InvalidArgumentError, SerializationError, StreamTableNotFoundError

VIEW = pa.string_view()
ROWS = pa.table({"meter": [f"m{number % 7}" for number in range(500)], "wh": list(range(500))})


class Reading(msgspec.Struct):
    meter: str
    wh: int
    note: str | None = None


@pytest.fixture(scope="module")
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager


def made(manager: StreamManager, name: str, schema: str = "meter string, wh long", **given: Any) -> None:
    manager.create_stream("sc", name, 3)
    manager.stream_tables("sc").define(name, value_schema=schema, **({"key": ["meter"]} | given))


def wh(manager: StreamManager, name: str) -> list[int]:
    return sorted(pa.table(nadi.stream_table(manager, "sc", name).rows())["wh"].to_pylist())


@pytest.mark.parametrize("kind", ["arrow", "batches", "polars", "pandas", "duckdb"])
def test_any_source_with_arrow_protocol_is_written(manager: StreamManager, kind: str) -> None:
    made(manager, f"from-{kind}")
    sources: dict[str, Callable[[], Any]] = {
        "arrow": lambda: ROWS,
        "batches": lambda: pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches(90)),
        "polars": lambda: polars.DataFrame(ROWS),
        "pandas": lambda: pandas.DataFrame(ROWS.to_pandas()),
        "duckdb": lambda: duckdb.sql("from ROWS"),
    }
    assert nadi.write_rows(manager, "sc", f"from-{kind}", sources[kind]()) == 500
    assert wh(manager, f"from-{kind}") == list(range(500))
    last = pa.table(nadi.stream_table(manager, "sc", f"from-{kind}").latest())
    assert sorted(last["wh"].to_pylist()) == list(range(493, 500)), "each meter's under one routing key, in order"
    event = next(manager.read_events("sc", f"from-{kind}", end=manager.cuts("sc", f"from-{kind}").tail()))
    assert json.loads(event.data).keys() == {"meter", "wh"}


DUCKDB = """
    select 'a' meter, 'x'::enum('x') room, ['x'::enum('x')] tags, map {'k': 'x'::enum('x')} "by", '{"q": 1}'::json "at"
"""
SAME = {"meter": ["a"], "room": ["x"], "tags": [["x"]], "by": [[("k", "x")]]}


@pytest.mark.parametrize("kind", ["polars", "pandas", "duckdb", "views", "dictionaries", "runs"])
def test_categoricals_and_views_are_written_as_strings(manager: StreamManager, kind: str) -> None:
    texts, words = pa.dictionary(pa.uint32(), pa.string()), pa.map_(pa.string_view(), pa.string_view())
    sources: dict[str, Callable[[], Any]] = {
        "polars": lambda: polars.DataFrame(SAME | {"by": None}).cast(
            {"meter": polars.Categorical, "room": polars.Enum(["x"]), "tags": polars.List(polars.Categorical)}
        ),
        "pandas": lambda: pandas.DataFrame(SAME).drop(columns="by").astype({"room": "category", "meter": "category"}),
        "duckdb": lambda: duckdb.sql(DUCKDB),
        "views": lambda: pa.table(
            [
                pa.array(SAME[name], one)
                for name, one in zip(SAME, [VIEW, VIEW, pa.list_view(VIEW), words], strict=True)
            ],
            list(SAME),
        ),
        "dictionaries": lambda: pa.table({"meter": pa.array(["a"], texts), "tags": pa.array([["x"]], pa.list_(texts))}),
        "runs": lambda: pa.table({"meter": pc.run_end_encode(pa.array(["a"])), "room": ["x"]}),
    }
    made(manager, f"forms-{kind}", "meter string, room string, tags array<string>, by map<string, string>, at string")
    assert nadi.write_rows(manager, "sc", f"forms-{kind}", sources[kind]()) == 1
    (row,) = pa.table(nadi.stream_table(manager, "sc", f"forms-{kind}").rows()).to_pylist()
    assert (row["meter"], row["room"] or "x", row["tags"] or ["x"], row["by"] or [("k", "x")]) == (
        *("a", "x", ["x"], [("k", "x")]),
    )
    assert row["at"] == ('{"q": 1}' if kind == "duckdb" else None)


@pytest.mark.parametrize("value_format", ["json", "msgpack"])
def test_map_with_time_keys_round_trips(manager: StreamManager, value_format: str) -> None:
    name, at = f"times-{value_format}", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    made(manager, name, "meter string, by map<timestamp, long>, m map<timestamp_ms, long>", value_format=value_format)
    row = {"meter": "a", "by": [(at, 1)], "m": [(at.replace(microsecond=999000), 2)]}
    rows = pa.Table.from_pylist([row], nadi.stream_table(manager, "sc", name).schema)
    assert nadi.write_rows(manager, "sc", name, rows) == 1
    found = pa.table(nadi.stream_table(manager, "sc", name).rows(also=()))
    assert found.to_pylist() == [row]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda: pandas.DataFrame({"meter": [1, "a"]}), "column meter"),
        (lambda: pandas.DataFrame([["a", "b"]], columns=["meter", "meter"]), "Duplicate column"),
        (lambda: pandas.DataFrame({"meter": ["a"], "wh": [1j]}), "."),
        (lambda: polars.DataFrame({"meter": ["a"], "wh": polars.Series([1], dtype=polars.Int128)}), "."),
        (lambda: polars.Series("meter", ["a"]), "."),
    ],
)
def test_frame_without_arrow_form_is_rejected(manager: StreamManager, rows: Callable[[], Any], words: str) -> None:
    if "formless" not in manager.list_streams("sc"):
        made(manager, "formless")
    with pytest.raises(InvalidArgumentError, match=words):
        nadi.write_rows(manager, "sc", "formless", rows())


def test_map_with_both_zeros_as_keys_is_rejected(manager: StreamManager) -> None:
    made(manager, "zeros", "meter string, by map<double, long>")
    zeros = pa.array([[(0.0, 1), (-0.0, 2)]], pa.map_(pa.float64(), pa.int64()))
    with pytest.raises(SerializationError, match=r"-0\.0"):
        nadi.write_rows(manager, "sc", "zeros", pa.table({"meter": ["a"], "by": zeros}))


@pytest.mark.parametrize(("given", "words"), [({"slice": 7}, "slice"), ({"start": 7}, "start")])
def test_position_of_wrong_type_names_the_argument(manager: StreamManager, given: dict[str, Any], words: str) -> None:
    if "placed" not in manager.list_streams("sc"):
        made(manager, "placed")
    with pytest.raises(InvalidArgumentError, match=words):
        nadi.stream_table(manager, "sc", "placed").rows(**given)


def test_rows_of_one_table_are_written_to_another(manager: StreamManager) -> None:
    schema = (
        "n long, s string, b binary, t timestamp, l timestamp_ntz, d date, y boolean, c decimal(9, 2), i short, "
        "f double, list array<struct<a: string, t: timestamp>>, m map<string, int>"
    )
    row = {
        "n": 5, "s": "täxt", "b": b"\xff\x00", "t": datetime(2026, 11, 14, 1, 2, 3, 456789, tzinfo=UTC),
        "l": datetime(1960, 1, 1, 0, 0, 0, 1000), "d": date(1969, 2, 3), "y": False, "c": Decimal("-7.25"), "i": -3,
        "f": 0.1, "list": [{"a": None, "t": datetime(2026, 11, 14, tzinfo=UTC)}], "m": [("x", 1)],
    }  # fmt: skip
    empty = dict.fromkeys(row) | {"n": 6}
    for value_format in ("json", "msgpack"):
        made(manager, f"all-{value_format}", schema, key=["n"], value_format=value_format)
        table = nadi.stream_table(manager, "sc", f"all-{value_format}")
        assert (
            nadi.write_rows(manager, "sc", f"all-{value_format}", pa.Table.from_pylist([row, empty], table.schema)) == 2
        )
        found = pa.table(table.rows()).drop(["segment_id", "offset"])
        assert sorted(found.to_pylist(), key=lambda one: one["n"]) == [row, empty]


def test_stream_schema_defines_the_encoding(manager: StreamManager) -> None:
    manager.create_stream("sc", "typed")
    manager.schemas("sc", "typed").register(Struct(Reading))
    manager.stream_tables("sc").define("typed", key=["meter"])
    nadi.write_rows(manager, "sc", "typed", ROWS)
    end = manager.cuts("sc", "typed").tail()
    with manager.create_reader("sc", "typed", serializer=Struct(Reading), end=end) as reader:
        assert sum(event.value.wh for some in reader for event in some) == sum(range(500))
    with pytest.raises(InvalidArgumentError, match="wh"):
        nadi.write_rows(manager, "sc", "typed", ROWS.drop(["wh"]))
    with pytest.raises(SerializationError):
        nadi.write_rows(manager, "sc", "typed", pa.table({"meter": ["m"], "wh": pa.array([None], pa.int64())}))
    assert len(wh(manager, "typed")) == 500


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (pa.table({"meter": ["m"], "watt": [1]}), "'watt'.*sc/odd.*meter, wh"),
        (pa.table({"wh": [1]}), "'meter'"),
        (pa.table({"meter": ["m", None], "wh": [1, 2]}), "row 1 .*'meter'"),
        (pa.table({"meter": ["m"], "wh": ["much"]}), "'wh'.*string.*row 0.*'much'"),
        (pa.table({"meter": ["m", "n"], "wh": [1.0, 1.5]}), "'wh'.*double.*row 1.* 1.5"),
        (
            pa.table({"meter": [b"m", b"\xff"], "wh": [1, 2]}),
            r"'meter'.*binary.*row 1.*b'\\xff'",
        ),
        (pa.table([["m"], [1], [2]], ["meter", "wh", "wh"]), "'wh'"),
        ([{"meter": "m", "wh": 1}], "list"),
    ],
)
def test_rows_that_dont_fit_the_table_are_rejected(manager: StreamManager, rows: Any, named: str) -> None:
    if manager.create_stream("sc", "odd"):
        manager.stream_tables("sc").define("odd", value_schema="meter string, wh long", key=["meter"])
    with pytest.raises(InvalidArgumentError, match=named):
        nadi.write_rows(manager, "sc", "odd", rows)
    assert wh(manager, "odd") == []


def test_special_numbers_names_and_empty_tables(manager: StreamManager) -> None:
    made(manager, "floats", "f double", key=[])
    with pytest.raises(SerializationError):
        nadi.write_rows(manager, "sc", "floats", pa.table({"f": [1.0, float("nan")]}))
    assert nadi.write_rows(manager, "sc", "floats", pa.table({"f": pa.array([], pa.float64())})) == 0
    assert nadi.write_rows(manager, "sc", "floats", pa.table({"f": pa.nulls(2)})) == 2
    assert nadi.write_rows(manager, "sc", "floats", pa.table({"f": [1.0, 2.0]}), once="a") == 2
    assert pa.table(nadi.stream_table(manager, "sc", "floats").rows()).num_rows == 4
    with pytest.raises(StreamTableNotFoundError):
        nadi.write_rows(manager, "sc", "nothing", ROWS)
    for name in ("", 5, b"monday"):
        with pytest.raises(InvalidArgumentError, match="once"):
            nadi.write_rows(manager, "sc", "floats", ROWS, once=name)  # type: ignore[arg-type]


def test_numbers_unknown_to_json_are_rejected_at_any_depth(manager: StreamManager) -> None:
    made(manager, "deep", "f float, l array<double>, s struct<m: map<string, double>>", key=[])
    nan = float("nan")
    maps = pa.struct([("m", pa.map_(pa.string(), pa.float64()))])
    for named, rows in {
        "row 1 .*inf.*'f'": pa.table({"f": [1.0, float("inf")]}),
        "row 2 .*nan.*'l'": pa.table({"l": [[1.0], None, [2.0, nan]]}),
        "row 0 .*nan.*'s'": pa.table({"s": pa.array([{"m": [("a", nan)]}], maps)}),
    }.items():
        with pytest.raises(SerializationError, match=named):
            nadi.write_rows(manager, "sc", "deep", rows)
    far = pa.concat_tables([pa.table({"f": [0.5] * 600}), pa.table({"f": [1e300]})])
    with pytest.raises(InvalidArgumentError, match=r"row 600 .*1e\+300"):
        nadi.write_rows(manager, "sc", "deep", far)
    assert pa.table(nadi.stream_table(manager, "sc", "deep").rows()).num_rows == 0


def test_number_beyond_float_range_is_rejected(manager: StreamManager) -> None:
    made(manager, "single", "meter string, f float", value_mode="FAILFAST")
    with manager.create_writer("sc", "single") as writer:
        writer.write_batch([b'{"f": 3.4028234e38}', b'{"f": 1e300}'], ["m", "m"])
    with pytest.raises(SerializationError, match=r"f: 1e\+300"):
        list(nadi.stream_table(manager, "sc", "single").rows().batches())


def test_different_rows_under_same_name_raise_conflict(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detected for rows of a killed process, across a split, and after columns were added."""
    made(manager, "others")
    monkeypatch.setattr(writing, "STREAM_TABLE_BATCH_ROWS", 40)

    def some() -> Iterator[pa.RecordBatch]:
        yield from ROWS.slice(0, 130).to_batches(100)
        raise RuntimeError("killed")

    with pytest.raises(Exception, match="killed"):
        nadi.write_rows(manager, "sc", "others", pa.RecordBatchReader.from_batches(ROWS.schema, some()), once="monday")
    manager.scale_stream("sc", "others", [0], [(0.0, 0.1), (0.1, 1 / 3)])
    early = ROWS.set_column(1, "wh", pa.array([*range(100), 7, *range(101, 500)]))
    for other in (early, ROWS.slice(1), ROWS.slice(0, 50), ROWS.take(list(reversed(range(500))))):
        with pytest.raises(ConflictError, match="'monday'"):
            nadi.write_rows(manager, "sc", "others", other, once="monday")
    manager.stream_tables("sc").define(
        "others", value_schema="meter string, wh long, note string", key=["meter"], replace=True
    )
    assert nadi.write_rows(manager, "sc", "others", ROWS.select(["wh", "meter"]), once="monday") == 500
    assert wh(manager, "others") == list(range(500))


def test_all_or_none(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    made(manager, "whole")

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches(100)
        raise RuntimeError("the source is gone")

    with pytest.raises(Exception, match="the source is gone"):
        nadi.write_rows(manager, "sc", "whole", pa.RecordBatchReader.from_batches(ROWS.schema, broken()))
    monkeypatch.setattr(writing, "STREAM_TABLE_TXN_BYTES", 5_000)
    with pytest.raises(InvalidArgumentError, match="once="):
        nadi.write_rows(manager, "sc", "whole", ROWS)
    assert wh(manager, "whole") == []
    assert nadi.write_rows(manager, "sc", "whole", ROWS, once="monday") == 500
    assert wh(manager, "whole") == list(range(500))


def test_repeated_named_write_writes_rows_once(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across a split and a merge, with rows of a second name in between."""
    made(manager, "named")
    monkeypatch.setattr(writing, "STREAM_TABLE_BATCH_ROWS", 40)

    def write(count: int, once: str) -> None:
        def some() -> Iterator[pa.RecordBatch]:
            yield from ROWS.slice(0, count).to_batches(100)
            if count < 500:
                raise RuntimeError("killed")

        rows = pa.RecordBatchReader.from_batches(ROWS.schema, some())
        if count == 500:
            assert nadi.write_rows(manager, "sc", "named", rows, once=once) == 500
        else:
            with pytest.raises(Exception, match="killed"):
                nadi.write_rows(manager, "sc", "named", rows, once=once)

    write(130, "monday")
    manager.scale_stream("sc", "named", [0], [(0.0, 0.1), (0.1, 1 / 3)])
    write(310, "monday")
    write(70, "tuesday")
    segments = sorted(one.segment_id for one in manager.current_segments("sc", "named"))[-2:]
    manager.scale_stream("sc", "named", segments, [(0.0, 1 / 3)])
    write(500, "monday")
    write(500, "monday")
    assert wh(manager, "named") == sorted([*range(500), *range(70)])


def test_invalid_maps_and_times_are_rejected_by_row_and_column(manager: StreamManager) -> None:
    manager.create_stream("sc", "kept")
    fields = "id long, m map<string,int>, l array<map<long,int>>, g double, t timestamp, ms timestamp_ms"
    manager.stream_tables("sc").define("kept", value_schema=fields)
    twice = pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    within = pa.array([[[(1, 1), (1, 2)]]], pa.list_(pa.map_(pa.int64(), pa.int32())))
    late = pa.array([None, 253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    for name, column, why in (
        ("m", twice, "row 1 .* 'm'.*'a'"),
        ("l", within, "row 0 .* 'l'.* 1 "),
        ("t", late, "row 1 .* 't'"),
        ("g", pa.array([1.0, float("inf")]), "row 1 .* 'g'"),
    ):
        with pytest.raises(SerializationError, match=why):
            nadi.write_rows(manager, "sc", "kept", pa.table({name: column}))
    times = pa.array([-1_000, 1_790_000_000_123_456], pa.timestamp("us", "UTC"))
    assert nadi.write_rows(manager, "sc", "kept", pa.table({"ms": times, "m": twice.slice(0, 1).take([0, 0])})) == 2
    table = nadi.stream_table(manager, "sc", "kept")
    assert pa.table(table.rows())["ms"].to_pylist() == times.to_pylist()
    events = [event.data for event in manager.read_events("sc", "kept", end=manager.stream_info("sc", "kept").tail)]
    assert [b'"ms":-1,' in event or event.endswith(b'"ms":-1}') for event in events] == [True, False]
