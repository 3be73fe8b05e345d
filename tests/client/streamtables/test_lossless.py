"""Lossless conversion of columns to other types, and values that don't fit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nadi.client.serializers.types import of_ddl
from nadi.client.streamtables.lossless import ValueMismatchError, lossless

INTS = pa.list_(pa.field("element", pa.int32()))
MONEY = pa.decimal128(9, 2)
TIMES = pa.timestamp("us", "UTC")
PLACE = pa.struct([("x", pa.int32()), ("y", pa.string())])
WORDS = pa.list_(pa.field("element", pa.string()))
VIEWS = pa.array(["a", "b"], pa.string_view())
CODES = pa.list_(pa.dictionary(pa.int8(), pa.string()))
BYTES = pa.array([2, 0, None], pa.int8())
VIEW = pa.struct([("x", pa.int8()), ("y", pa.string_view())])
COUNTS = pa.map_(pa.string(), pa.int32())
MANY = pa.map_(pa.string(), pa.int64())


def not_utf8() -> pa.Array:
    offsets = pa.array([0, 1, 2], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xff")])


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array([2.0, None, -0.0]), pa.int32(), [2, None, 0]),
        (pa.array([0.5, float("inf")]), pa.float32(), [0.5, float("inf")]),
        (pa.array([1, 0]), pa.bool_(), [True, False]),
        (pa.array([5, -7]), MONEY, [Decimal("5.00"), Decimal("-7.00")]),
        (pa.array([1.25, 0.1]), MONEY, [Decimal("1.25"), Decimal("0.10")]),
        (pa.array([Decimal("5.00")]), pa.int64(), [5]),
        (pa.array([Decimal("0.1")]), pa.float64(), [0.1]),
        (pa.array([datetime(2026, 11, 14)]), pa.date32(), [date(2026, 11, 14)]),
        (pa.array([date(2026, 11, 14)]), TIMES, [datetime(2026, 11, 14, tzinfo=UTC)]),
        (pa.array(["7", "8"]).dictionary_encode(), pa.int64(), [7, 8]),
        (pa.array(["0.1", "inf"]), pa.float32(), pa.array([0.1, float("inf")], pa.float32()).to_pylist()),
        (pa.array([5.5], pa.float16()), pa.float64(), [5.5]),
        (pa.array([5.5, 1e300]), pa.string(), ["5.5", "1e+300"]),
        (pa.array([b"ok"]), pa.string(), ["ok"]),
        (pa.array([[9.0], [1.0, None], None, []]).slice(1), INTS, [[1, None], None, []]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), INTS, [[1, 2], None]),
        (pa.array([{"x": 1}, None]), PLACE, [{"x": 1, "y": None}, None]),
        (pa.array([[("z", 9)], None, [("a", 1)]], MANY).slice(1), COUNTS, [None, [("a", 1)]]),
        (pa.nulls(2), PLACE, [None, None]),
        (pa.array(["7", None], pa.string_view()), pa.int64(), [7, None]),
        (pa.DictionaryArray.from_arrays([1, 0], VIEWS), pa.string(), ["b", "a"]),
        (pa.array([["b", None], None, []], CODES), WORDS, [["b", None], None, []]),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())).slice(1), INTS, [None, [2, 3]]),
        (pa.array([{"x": 1, "y": "a"}, None], VIEW), PLACE, [{"x": 1, "y": "a"}, None]),
        (pa.array([[("z", 9)], None], pa.map_(pa.string_view(), pa.int64())), COUNTS, [[("z", 9)], None]),
        (pc.run_end_encode(pa.array(["a", "a", "b"])).slice(1), pa.string(), ["a", "b"]),
        (pa.array([UUID(int=7).bytes, None], pa.uuid()), pa.string(), [str(UUID(int=7)), None]),
        (pa.array([UUID(int=7).bytes], pa.uuid()), pa.binary(), [UUID(int=7).bytes]),
        (pa.array(['{"a": 1}'], pa.json_()), pa.string(), ['{"a": 1}']),
        (pa.ExtensionArray.from_storage(pa.bool8(), BYTES), pa.bool_(), [True, False, None]),
        (pa.array([Decimal("1.25")], pa.decimal32(5, 2)), MONEY, [Decimal("1.25")]),
        (pa.array([2, None], pa.duration("s")), pa.int64(), [2_000_000, None]),
        (pa.array([5_000], pa.duration("ns")), pa.int64(), [5]),
    ],
)  # fmt: skip
def test_equal_value_is_converted(column: pa.Array, kind: pa.DataType, expected: list[Any]) -> None:
    found = lossless(column, kind)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (kind, expected)


NOON = datetime(2026, 11, 14, 12, tzinfo=UTC)
NOON_S = 1794657600


@pytest.mark.parametrize(
    ("column", "schema", "expected"),
    [
        (pa.array([NOON_S, None]), "timestamp", NOON),
        (pa.array([NOON_S * 1000]), "timestamp_ms", NOON),
        (pa.array([NOON_S * 10**6], pa.uint64()), "timestamp_us", NOON),
        (pa.array([NOON_S * 10**9]), "timestamp_ns", NOON),
        (pa.array([[NOON_S * 1000]]), "array<timestamp_ms>", [NOON]),
        (pa.array([{"t": NOON_S * 1000}]), "struct<t: timestamp_ms>", {"t": NOON}),
        (pa.array([[(NOON_S, NOON_S * 1000)]], pa.map_(pa.int64(), pa.int64())),
         "map<timestamp_s, timestamp_ms>", [(NOON, NOON)]),
    ],
)  # fmt: skip
def test_lossless_number_for_a_time_counts_the_unit_of_its_column(
    column: pa.Array, schema: str, expected: object
) -> None:
    kind = of_ddl(f"at {schema}").field("at").type
    assert lossless(column, kind)[0].as_py() == expected


@pytest.mark.parametrize(
    ("column", "kind", "row"),
    [
        (pa.array([2.0, 2.5]), pa.int32(), 1),
        (pa.array([1, 2, 1 << 40]), pa.int32(), 2),
        (pa.array([0.5, 0.1]), pa.float32(), 1),
        (pa.array([0.5, 1e300]), pa.float32(), 1),
        (pa.array([1, (1 << 53) + 1]), pa.float64(), 1),
        (pa.array([1, 0, 2]), pa.bool_(), 2),
        (pa.array([1.25, 1.005]), MONEY, 1),
        (pa.array([Decimal("1.250"), Decimal("1.005")]), MONEY, 1),
        (pa.array([Decimal("0.5"), Decimal("0.12345678901234567890123")]), pa.float64(), 1),
        (pa.array([datetime(2026, 11, 14), datetime(2026, 11, 14, 12)]), pa.date32(), 1),
        (pa.array([1_000, 1], pa.timestamp("ns")), TIMES, 1),
        (pa.array(["1", "1e400"]), pa.float64(), 1),
        (pa.array(["1", "much"]), pa.int64(), 1),
        (pa.array([[1.0], [1.5]]), INTS, 1),
        (pa.array([{"x": 1}, {"x": 1 << 40}]), PLACE, 1),
        (pa.array([None, [("a", 1 << 40)]], MANY), COUNTS, 1),
        (pa.array([b"ok", b"\xff"]), pa.string(), 1),
        (not_utf8(), pa.string(), 1),
        (pa.array([1, 1790000000123]), pa.timestamp("s", "UTC"), 1),
        (pa.array([1000, 1]), pa.timestamp("ns", "UTC"), 1),
        (pa.array([0, 1], pa.duration("ns")), pa.int64(), 1),
        (pa.array([1000, 1500], pa.timestamp("us", "UTC")), pa.timestamp("ms", "UTC"), 1),
        (pa.array([1000, 1500], pa.timestamp("us")), pa.timestamp("ms"), 1),
        (pa.array([1000, 1500], pa.time64("us")), pa.time32("ms"), 1),
        (pa.array([1.5]), TIMES, None),
        (pa.array([1]), pa.date32(), None),
        (pa.array([1], pa.timestamp("ms")), pa.int64(), None),
        (pa.array([date(2026, 11, 14)]), pa.int32(), None),
        (pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "month", "it"), pa.array([672])), pa.string(), None),
        (pa.array([{"x": 1, "q": 2}]), PLACE, None),
        (pa.array([[1]]), pa.string(), None),
        (pa.array([{"x": 1}]), INTS, None),
    ],
)
def test_lossy_value_is_rejected_by_row(column: pa.Array, kind: pa.DataType, row: int | None) -> None:
    with pytest.raises(ValueMismatchError) as refused:
        lossless(column, kind)
    assert refused.value.row == row
