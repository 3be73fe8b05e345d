"""Arrow: schemas reported as compatible keep values, with random columns, changes and rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Arrow
from nadi.client.serializers import arrow as values_of
from nadi.errors import InvalidArgumentError, SerializationError


def ints(bits: int, signed: bool) -> st.SearchStrategy[Any]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), ints(8, True)),
    (pa.int16(), ints(16, True)),
    (pa.int32(), ints(32, True)),
    (pa.int64(), ints(64, True)),
    (pa.uint8(), ints(8, False)),
    (pa.uint32(), ints(32, False)),
    (pa.uint64(), ints(64, False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=4)),
    (pa.large_string(), st.text(max_size=4)),
    (pa.binary(), st.binary(max_size=4)),
    (pa.large_binary(), st.binary(max_size=4)),
    (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    (pa.decimal128(9, 2), st.decimals(-999, 999, places=2)),
    (pa.timestamp("us"), st.datetimes()),
    (pa.date32(), st.dates()),
    (pa.list_(pa.int32()), st.lists(ints(32, True), max_size=3)),
    (pa.struct([("x", pa.int32())]), st.fixed_dictionaries({"x": ints(32, True) | st.none()})),
    (
        pa.struct([("y", pa.string()), ("x", pa.int64())]),
        st.fixed_dictionaries({"y": st.text(max_size=3), "x": ints(64, True)}),
    ),
]
Columns = dict[str, tuple[Any, st.SearchStrategy[Any], bool]]


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True))
    chosen = {name: draw(st.sampled_from(KINDS)) for name in names}
    return {name: (*kind, pa.types.is_null(kind[0]) or draw(st.integers(0, 4)) > 0) for name, kind in chosen.items()}


def schema_of(chosen: Columns) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable) for name, (kind, _, nullable) in chosen.items()])


def plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])  # a shared machine may stop for long
@given(st.data())
def test_compatible_schema_reads_equal_values(data: st.DataObject) -> None:
    old, changes = data.draw(columns()), data.draw(columns())
    new = {**changes, **{name: old[name] for name in old if data.draw(st.integers(0, 9)) < 6}}
    writer, reader = Arrow(schema_of(old)), Arrow(schema_of(new))
    if reader.incompatibilities(reader.definition, writer.definition):
        event("incompatible")
        return
    event("compatible")
    count = data.draw(st.integers(0, 4))
    arrays = []
    for kind, strategy, nullable in old.values():
        values = st.lists(strategy | st.none() if nullable else strategy, min_size=count, max_size=count)
        arrays.append(pa.array(data.draw(values), kind))
    batch = pa.RecordBatch.from_arrays(arrays, schema=writer.schema)
    read = reader.decoder(writer.definition)(writer.serialize(batch))
    read.validate(full=True)
    assert read.schema == reader.schema
    for name in new:
        if name not in old:
            assert read.column(name).null_count == len(batch)
        elif not pa.types.is_struct(old[name][0]):
            assert [plain(v) for v in read.column(name).to_pylist()] == [
                plain(v) for v in batch.column(name).to_pylist()
            ]
        else:
            for given, found in zip(batch.column(name).to_pylist(), read.column(name).to_pylist(), strict=True):
                assert (given is None) == (found is None)
                assert given is None or all(given[key] == found[key] for key in given.keys() & found.keys())


def edges(kind: Any) -> list[Any]:
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
        return [0, 1, -(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1, None]
    for matches, values in EDGES.items():
        if getattr(pa.types, f"is_{matches}")(kind):
            return values
    return [None]


EDGES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "floating": [0.5, -(2.0**100), None],
    "string": ["", "ä", None],
    "large_string": ["", "ä", None],
    "binary": [b"", b"\xff", None],
    "large_binary": [b"", b"\xff", None],
    "decimal": [Decimal("-9.99"), Decimal("999.99"), None],
}


def test_compatible_types_keep_edge_values() -> None:
    kinds = [kind for kind, _ in KINDS] + [pa.uint16(), pa.int32(), pa.float16(), pa.decimal128(9, 3)]
    compatible = 0
    for old in kinds:
        batch = pa.record_batch({"a": pa.array(edges(old), old)})
        writer = Arrow(batch.schema)
        for new in kinds:
            reader = Arrow(pa.schema([("a", new)]))
            if reader.incompatibilities(reader.definition, writer.definition):
                assert old != new
                continue
            compatible += 1
            read = reader.decoder(writer.definition)(writer.serialize(batch)).column("a")
            assert read.type == new
            assert [plain(v) for v in read.to_pylist()] == [plain(v) for v in batch.column(0).to_pylist()], (old, new)
    assert compatible > 2 * len(kinds)


def test_incompatibilities_name_the_columns() -> None:
    old = Arrow(pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())]))]))
    new = Arrow(
        pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False),
                pa.field("b", pa.int64(), nullable=False),
                ("s", pa.struct([("x", pa.int32())])),
            ]
        )
    )
    problems = new.incompatibilities(new.definition, old.definition)
    assert [problem.split("'")[1] for problem in problems] == ["a", "b", "s.x"]


def test_a_slice_of_a_batch_is_stored_alone() -> None:
    arrow = Arrow(pa.schema([("a", pa.int64())]))
    batch = pa.record_batch({"a": range(10_000)})
    data = arrow.serialize(batch.slice(17, 1))
    assert len(data) < 1000
    assert arrow.deserialize(data).to_pylist() == [{"a": 17}]


def test_invalid_value_or_event_is_rejected() -> None:
    arrow = Arrow(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    with pytest.raises(SerializationError, match="Table"):
        arrow.serialize(pa.table({"a": [1]}))
    with pytest.raises(SerializationError, match=r"b: int64.*a: int64"):
        arrow.serialize(pa.record_batch({"b": [1]}))
    with pytest.raises(SerializationError, match="'a'"):
        arrow.serialize(pa.RecordBatch.from_arrays([pa.array([1, None])], schema=arrow.schema))
    for data in (b"", b"abc", b"\xff\xff\xff\xff\x10\0\0\0" + b"x" * 16):
        with pytest.raises(SerializationError):
            arrow.deserialize(data)
    with pytest.raises(SerializationError):
        Arrow(pa.schema([("n", pa.null())])).serialize(pa.record_batch({"n": pa.nulls(100_000)}))
    with pytest.raises(InvalidArgumentError):
        Arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


# --- Arrow's other layouts of the same values --------------------------------------------------------------

TEXT = "a text of more than twelve bytes"
VIEWS = pa.array(["x", None, TEXT], pa.string_view())
VIEW_OF_A_WORD = pa.struct([("v", pa.string_view())])
WORDS = pa.map_(pa.string_view(), VIEW_OF_A_WORD)
NEWER: list[tuple[pa.Array, str]] = [  # a column, and its type in a scan
    (VIEWS, "string"),
    (pa.array([b"x", None, b"\xff" * 20], pa.binary_view()), "binary"),
    (pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int64())), "list<element: int64>"),
    (pa.array([["x"], None, [TEXT]], pa.large_list_view(pa.string_view())), "list<element: string>"),
    (pa.array([["x", "y"], None, ["z", ""]], pa.list_(pa.string_view(), 2)), "list<element: string>"),
    (pc.run_end_encode(pa.array([7, 7, None, 8])), "int64"),
    (pa.RunEndEncodedArray.from_arrays([2, 5], VIEWS.slice(1)), "string"),
    (pa.array(["x", None, "x"]).dictionary_encode(), "string"),
    (pa.DictionaryArray.from_arrays(pa.array([2, None, 1], pa.uint32()), VIEWS), "string"),
    (pa.DictionaryArray.from_arrays([1, 0], pa.array([{"v": "x"}, None])), "struct<v: string>"),
    (pa.array([{"v": "x"}, None], VIEW_OF_A_WORD), "struct<v: string>"),
    (pa.array([[("k", {"v": "x"})], None, []], WORDS), "map<string, struct<v: string>>"),
    (pa.array(['{"a": 1}', None], pa.json_()), "string"),
    (pa.array([UUID(int=7).bytes, None], pa.uuid()), "binary"),
    (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())), "bool"),
    (pa.ExtensionArray.from_storage(pa.opaque(pa.string_view(), "t", "v"), VIEWS), "string"),
    (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4).reshape(2, 2)), "list<element: int64>"),
    (pa.array([Decimal("1.25"), None], pa.decimal32(5, 2)), "decimal128(5, 2)"),
    (pa.array([Decimal("1.25"), None], pa.decimal64(12, 2)), "decimal128(12, 2)"),
    (pa.array([1.5, None], pa.float16()), "float"),
    (pa.nulls(2), "string"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "kind"), NEWER, ids=[str(column.type) for column, _ in NEWER])
def test_column_of_another_layout_is_read_as_plain_type(column: pa.Array, kind: str) -> None:
    whole = pa.record_batch({"it": column, "within": pa.StructArray.from_arrays([column], ["it"])})
    serializer = Arrow(whole.schema)
    definition = serializer.definition
    decode = values_of.decoder(values_of.type_of(definition), definition, definition)
    for batch in (whole, whole.slice(1), whole.slice(0, 0)):
        event = serializer.serialize(batch)
        found = decode([event])
        assert not found.wrong
        found.values.validate(full=True)
        assert str(found.values.type.field("it").type).replace("<item:", "<element:") == kind
        expected = [as_plain(one) for one in batch.column("it").to_pylist()]
        assert found.values.field("it").to_pylist() == expected
        assert [one["it"] for one in found.values.field("within").to_pylist()] == expected
        read = serializer.deserialize(event)
        assert read.schema == serializer.schema
        assert read.column("it").to_pylist() == batch.column("it").to_pylist()


def as_plain(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (pa.month_day_nano_interval(), "'it' is month_day_nano_interval"),
        (pa.list_(pa.month_day_nano_interval()), "'it'.element is month_day_nano_interval"),
        (pa.struct([("u", pa.dense_union([pa.field("a", pa.int8())]))]), "'it'.u is dense_union"),
        (pa.run_end_encoded(pa.int32(), pa.month_day_nano_interval()), "'it' is month_day_nano_interval"),
    ],
)
def test_schema_with_unreadable_column_is_rejected_by_name(kind: pa.DataType, path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=path):
        Arrow(pa.schema([("it", kind)]))


def test_schemas_of_views_and_strings_are_equal() -> None:
    views, texts = Arrow(pa.schema([("it", pa.string_view())])), Arrow(pa.schema([("it", pa.string())]))
    assert views.definition == texts.definition
    frame = polars.DataFrame({"it": ["a", "b"]}, schema_overrides={"it": polars.Categorical})
    (batch,) = pa.table(frame).to_batches()
    assert texts.deserialize(texts.serialize(batch)).column("it").to_pylist() == ["a", "b"]
