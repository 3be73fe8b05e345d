"""Arrow: what is called readable keeps its values, with random columns, changes and rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Arrow
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
def test_what_is_called_readable_is_read(data: st.DataObject) -> None:
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


def test_each_type_read_as_each_other() -> None:
    """Of all pairs of types, those called compatible keep the values at the edges."""
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


def test_what_is_incompatible_is_named() -> None:
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
    assert new.incompatibilities(new.definition, old.definition) == [
        "column 'a' takes no nulls and was written with them",
        "column 'b' takes no nulls and was not written",
        "column 's.x' is int32 where int64 was written",
    ]


def test_a_slice_of_a_batch_is_stored_alone() -> None:
    arrow = Arrow(pa.schema([("a", pa.int64())]))
    batch = pa.record_batch({"a": range(10_000)})
    data = arrow.serialize(batch.slice(17, 1))
    assert len(data) < 1000
    assert arrow.deserialize(data).to_pylist() == [{"a": 17}]


def test_errors_name_the_value() -> None:
    arrow = Arrow(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    with pytest.raises(SerializationError, match="RecordBatch here, not Table"):
        arrow.serialize(pa.table({"a": [1]}))
    with pytest.raises(SerializationError, match="has the columns b: int64, not a: int64 not null"):
        arrow.serialize(pa.record_batch({"b": [1]}))
    with pytest.raises(SerializationError, match="'a' has nulls"):
        arrow.serialize(pa.RecordBatch.from_arrays([pa.array([1, None])], schema=arrow.schema))
    for data in (b"", b"abc", b"\xff\xff\xff\xff\x10\0\0\0" + b"x" * 16):
        with pytest.raises(SerializationError, match="no Arrow record batch"):
            arrow.deserialize(data)
    with pytest.raises(InvalidArgumentError, match="dictionary-encoded"):
        Arrow(pa.schema([("d", pa.list_(pa.dictionary(pa.int8(), pa.string())))]))
    with pytest.raises(InvalidArgumentError, match="twice"):
        Arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
