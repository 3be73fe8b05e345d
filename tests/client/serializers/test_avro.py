"""Avro: what is called readable is read by fastavro, with random schemas, changes and values."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Avro
from nadi.errors import InvalidArgumentError, SerializationError

LONGS = st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=5),
    "string": st.text(max_size=5),
}
Kind = tuple[Any, st.SearchStrategy[Any]]


def enum(symbols: list[str], default: bool) -> Kind:
    schema = {"type": "enum", "name": "E", "symbols": symbols} | ({"default": symbols[0]} if default else {})
    return schema, st.sampled_from(symbols)


@st.composite
def unions(draw: st.DrawFn) -> Kind:
    branches = draw(st.lists(st.sampled_from(["null", "boolean", "long", "double", "string"]), min_size=1, unique=True))
    return branches, st.one_of([PRIMITIVES[branch] for branch in branches])


KINDS: st.SearchStrategy[Kind] = st.recursive(
    st.one_of(
        st.sampled_from(list(PRIMITIVES.items())),
        st.builds(enum, st.lists(st.sampled_from("ABC"), min_size=1, unique=True), st.booleans()),
        st.integers(1, 2).map(lambda n: ({"type": "fixed", "name": "F", "size": n}, st.binary(min_size=n, max_size=n))),
        st.sampled_from(["timestamp-millis", "timestamp-micros"]).map(
            lambda kind: ({"type": "long", "logicalType": kind}, st.integers(0, 10**9))
        ),
        unions(),
    ),
    lambda inner: st.one_of(
        inner.map(lambda k: ({"type": "array", "items": k[0]}, st.lists(k[1], max_size=3))),
        inner.map(lambda k: ({"type": "map", "values": k[0]}, st.dictionaries(st.text(max_size=3), k[1], max_size=3))),
        inner.map(
            lambda k: (
                {"type": "record", "name": "I", "fields": [{"name": "x", "type": k[0]}]},
                k[1].map(lambda value: {"x": value}),
            )
        ),
    ),
    max_leaves=3,
)


@st.composite
def records(draw: st.DrawFn, base: dict[str, tuple[Kind, bool]] | None = None) -> Any:
    """(schema, strategy of its values, its fields): of random fields, or of `base` with some changed."""
    chosen: dict[str, tuple[Kind, bool]] = {}
    for name in "abcd":
        if base is not None and name in base and draw(st.integers(0, 9)) < 6:
            chosen[name] = base[name]
        elif draw(st.booleans()):
            chosen[name] = (draw(KINDS), draw(st.booleans()))
    fields, values = [], {}
    for name, ((schema, strategy), optional) in chosen.items():
        field: dict[str, Any] = {"name": name, "type": schema}
        if optional and isinstance(schema, str) and schema != "bytes":
            field["default"] = draw(strategy)
        if optional and base and name not in base and draw(st.booleans()):
            field["aliases"] = [draw(st.sampled_from(sorted(base)))]
        fields.append(field)
        values[name] = strategy
    return {"type": "record", "name": "R", "fields": fields}, st.fixed_dictionaries(values), chosen


def made(schema: Any) -> Avro:
    try:
        return Avro(schema)
    except InvalidArgumentError:  # one name for two types
        assume(False)
        raise


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])  # a shared machine may stop for long
@given(st.data())
def test_what_is_called_readable_is_read(data: st.DataObject) -> None:
    old, values, fields = data.draw(records())
    new, _, _ = data.draw(records(fields))
    writer, reader = made(old), made(new)
    if reader.incompatibilities(reader.definition, writer.definition):
        event("incompatible")
        return
    event("compatible")
    value = data.draw(values)
    read = reader.decoder(writer.definition)(writer.serialize(value))
    assert set(read) == {field["name"] for field in new["fields"]}
    for field in new["fields"]:
        name = field["name"]
        if name in value and {"name": name, "type": field["type"]} in [
            {"name": f["name"], "type": f["type"]} for f in old["fields"]
        ] and isinstance(field["type"], str):  # fmt: skip
            assert read[name] == value[name]


def named(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": "N", **more}


TYPES: list[tuple[Any, list[Any]]] = [
    ("null", [None]),
    ("boolean", [True, False]),
    ("int", [0, 2**31 - 1, -(2**31)]),
    ("long", [0, 2**40]),
    ("float", [0.5]),
    ("double", [0.25]),
    ("bytes", [b"", b"\xff"]),
    ("string", ["", "ä"]),
    (["null", "int"], [None, 7]),
    (["null", "long"], [None, 2**40]),
    (["string", "null", "double"], ["x", None, 0.5]),
    (named("enum", symbols=["A", "B"]), ["A", "B"]),
    (named("enum", symbols=["A", "B", "C"]), ["A", "C"]),
    (named("enum", symbols=["A"], default="A"), ["A"]),
    (named("fixed", size=2), [b"ab"]),
    (named("fixed", size=3), [b"abc"]),
    ({"type": "array", "items": "int"}, [[], [1]]),
    ({"type": "array", "items": "string"}, [["a"]]),
    ({"type": "map", "values": "long"}, [{"k": 1}]),
    ({"type": "long", "logicalType": "timestamp-millis"}, [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    ({"type": "long", "logicalType": "timestamp-micros"}, [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, [Decimal("1.25")]),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, [Decimal("1.5")]),
    (named("record", fields=[{"name": "x", "type": "int"}]), [{"x": 1}]),
    (named("record", fields=[{"name": "x", "type": "long"}, {"name": "y", "type": "int", "default": 5}]), [{"x": 1}]),
]


def test_each_type_read_as_each_other() -> None:
    """Of all pairs of types, those called compatible keep their values."""
    compatible = 0
    for old, values in TYPES:
        writer = Avro(record({"name": "a", "type": old}))
        for new, _ in TYPES:
            reader = Avro(record({"name": "a", "type": new}))
            if reader.incompatibilities(reader.definition, writer.definition):
                assert old != new
                continue
            compatible += 1
            for value in values:
                read = reader.decoder(writer.definition)(writer.serialize({"a": value}))["a"]
                if isinstance(value, dict) and "x" in value:
                    assert read["x"] == value["x"]
                elif new == named("enum", symbols=["A"], default="A"):
                    assert read == "A"
                else:
                    assert plain(read) == plain(value), (old, new)
    assert compatible > len(TYPES) + 10


def plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def problems(reader: Any, writer: Any) -> str:
    of_reader, of_writer = Avro(reader), Avro(writer)
    return "; ".join(of_reader.incompatibilities(of_reader.definition, of_writer.definition))


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def test_what_is_incompatible_is_named() -> None:
    old = record({"name": "a", "type": "long"})
    assert "reader field missing default value at" in problems(record({"name": "b", "type": "long"}), old)
    assert "reader type: int not compatible with writer type: long" in problems(
        record({"name": "a", "type": "int"}), old
    )
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    assert "logical type" in problems({**millis, "logicalType": "timestamp-micros"}, millis)
    assert problems({"type": "string"}, {"type": "bytes"})
    assert not problems({"type": "bytes"}, {"type": "string"})
    renamed = {"name": "b", "type": "double", "aliases": ["a"]}
    assert not problems(record(renamed), old)
    assert "can't be told apart" in problems(record({"name": "a", "type": "long"}, renamed), old)
    assert "can't be told apart" in problems(record(renamed), record(*old["fields"], {"name": "b", "type": "long"}))


def test_resolution_by_the_readers_schema() -> None:
    old = Avro(record({"name": "a", "type": "int"}, {"name": "gone", "type": "string"}))
    new = Avro(record({"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "x"}))
    assert new.decoder(old.definition)(old.serialize({"a": 1, "gone": "y"})) == {"a": 1, "b": "x"}


def test_recursive_schemas() -> None:
    def node(*more: dict[str, Any]) -> dict[str, Any]:
        link = {"name": "next", "type": ["null", "Node"]}
        return {"type": "record", "name": "Node", "fields": [{"name": "x", "type": "int"}, link, *more]}

    assert not problems(node({"name": "y", "type": "int", "default": 7}), node())
    assert problems(node({"name": "y", "type": "int"}), node())
    old, new = Avro(node()), Avro(node({"name": "y", "type": "int", "default": 7}))
    read = new.decoder(old.definition)(old.serialize({"x": 1, "next": {"x": 2, "next": None}}))
    assert read == {"x": 1, "next": {"x": 2, "next": None, "y": 7}, "y": 7}


def test_equal_schemas_have_equal_definitions() -> None:
    schema = record({"name": "a", "type": "int"})
    assert Avro(schema).definition == Avro(json.dumps(schema, indent=2)).definition


def test_errors_name_the_value() -> None:
    avro = Avro(record({"name": "a", "type": "int"}))
    with pytest.raises(SerializationError, match="on field a"):
        avro.serialize({"a": "x"})
    with pytest.raises(SerializationError, match="b"):
        avro.serialize({"a": 1, "b": 2})
    with pytest.raises(SerializationError, match="Field a is specified in the schema but missing"):
        avro.serialize({})
    with pytest.raises(SerializationError, match="EOFError"):
        avro.deserialize(b"")
    with pytest.raises(SerializationError, match="2 bytes more"):
        avro.deserialize(avro.serialize({"a": 1}) + b"xx")
    with pytest.raises(InvalidArgumentError, match="no Avro schema"):
        Avro({"type": "rec"})
    with pytest.raises(InvalidArgumentError, match="no Avro schema"):
        Avro("{")
