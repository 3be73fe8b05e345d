"""Avro: fastavro reads schemas reported as compatible, with random schemas, changes and values."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Avro
from nadi.client.serializers import avro_columns as avro
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
    """Draw (schema, strategy of its values, its fields), random or derived from `base` by some changes."""
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
def test_compatible_schema_reads_equal_values(data: st.DataObject) -> None:
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


def test_compatible_types_keep_values() -> None:
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


def test_incompatibilities_are_reported() -> None:
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
    assert problems(record({"name": "a", "type": "long"}, renamed), old)
    assert problems(record(renamed), record(*old["fields"], {"name": "b", "type": "long"}))


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


def test_invalid_value_event_or_schema_is_rejected() -> None:
    avro = Avro(record({"name": "wh", "type": "int"}))
    with pytest.raises(SerializationError, match=r"\bwh\b"):
        avro.serialize({"wh": "x"})
    with pytest.raises(SerializationError, match="kwh"):
        avro.serialize({"wh": 1, "kwh": 2})
    with pytest.raises(SerializationError, match=r"\bwh\b"):
        avro.serialize({})
    with pytest.raises(SerializationError):
        avro.deserialize(b"")
    with pytest.raises(SerializationError, match="37"):
        avro.deserialize(avro.serialize({"wh": 1}) + bytes(37))
    with pytest.raises(InvalidArgumentError, match="rec"):
        Avro({"type": "rec"})
    with pytest.raises(InvalidArgumentError):
        Avro("{")


# --- defaults -------------------------------------------------------------------------------------------

POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int", "default": 3}]}
HASH = {"type": "fixed", "name": "Hash", "size": 2}


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {**(kind if isinstance(kind, dict) else {"type": kind}), "logicalType": name, **more}


DEFAULTS: list[tuple[Any, Any, Any]] = [  # a type, a default in JSON, and its value
    ("bytes", "\u00ff\u0000", b"\xff\x00"),
    ("string", "\u00ff", "\u00ff"),
    ("double", 1, 1.0),
    ("boolean", True, True),
    (HASH, "\u00ff\u0001", b"\xff\x01"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    (["null", "long"], None, None),
    (["bytes", "null"], "\u00fe", b"\xfe"),
    (["string", "bytes"], "\u00fe", "\u00fe"),
    (["null", "long"], 5, 5),  # of a later branch, as Avro 1.12 allows
    ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    ({"type": "map", "values": POINT}, {"a": {}}, {"a": {"x": 3}}),
    (POINT, {}, {"x": 3}),
    (POINT, {"x": 4}, {"x": 4}),
    ({"type": "record", "name": "Deep", "fields": [{"name": "p", "type": POINT, "default": {}}]}, {}, {"p": {"x": 3}}),
    (logical("bytes", "decimal", precision=4, scale=2), "\u0004\u00d2", Decimal("12.34")),
    (logical("bytes", "decimal", precision=4, scale=2), "\u00ff", Decimal("-0.01")),
    (logical(HASH, "decimal", precision=4, scale=2), "\u00ff\u00ff", Decimal("-0.01")),
    (["null", logical("bytes", "decimal", precision=4, scale=2)], None, None),
    (logical("int", "date"), -1, dt.date(1969, 12, 31)),
    (logical("int", "time-millis"), 1500, dt.time(0, 0, 1, 500_000)),
    (logical("long", "time-micros"), 1, dt.time(0, 0, 0, 1)),
    (logical("long", "timestamp-millis"), -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC)),
    (logical("long", "timestamp-micros"), 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC)),
    (logical("long", "local-timestamp-micros"), 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (logical("string", "uuid"), str(UUID(int=7)), UUID(int=7)),
    (logical({"type": "fixed", "name": "D", "size": 12}, "duration"), "\u0001" * 12, b"\x01" * 12),
]


@pytest.mark.filterwarnings("ignore:Unknown")  # Apache's package knows fewer logical types
@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_missing_field_has_typed_default(kind: Any, default: Any, value: Any) -> None:
    old, new = (
        Avro(record({"name": "a", "type": "int"})),
        Avro(record({"name": "a", "type": "int"}, {"name": "it", "type": kind, "default": default})),
    )
    expected = {"a": 1, "it": value}
    assert new.decoder(old.definition)(old.serialize({"a": 1})) == expected
    assert new.deserialize(new.serialize({"a": 1})) == expected, "the default is written"
    assert new.deserialize(new.serialize(expected)) == expected
    columns = avro.decoder(avro.type_of(new.definition), new.definition, old.definition)([old.serialize({"a": 1})])
    written = avro.decoder(avro.type_of(new.definition), new.definition, new.definition)([new.serialize({"a": 1})])
    assert not columns.wrong
    assert columns.values.to_pylist() == written.values.to_pylist(), "a scan reads both alike"


@pytest.mark.parametrize("top", [lambda one: ["null", one], lambda one: {"type": "array", "items": one}])
def test_defaults_of_nested_records_are_typed(top: Any) -> None:
    old, new = (
        Avro(top(POINT | {"fields": [{"name": "y", "type": "int"}]})),
        Avro(
            top(
                POINT
                | {"fields": [{"name": "y", "type": "int"}, {"name": "raw", "type": "bytes", "default": "\u00ff"}]}
            )
        ),
    )
    one = {"y": 1}
    given, expected = ([one], [one | {"raw": b"\xff"}]) if isinstance(top(0), dict) else (one, one | {"raw": b"\xff"})
    assert new.decoder(old.definition)(old.serialize(given)) == expected
    assert new.deserialize(new.serialize(given)) == expected


def test_defaults_of_named_types_hold_at_each_reference() -> None:
    def line(*more: dict[str, Any]) -> Avro:
        point = {"type": "record", "name": "P", "aliases": ["Old"], "fields": [{"name": "x", "type": "int"}, *more]}
        fields: list[dict[str, Any]] = [{"name": "a", "type": point}, {"name": "b", "type": ["null", "P"]}]
        return Avro(record(*fields, {"name": "c", "type": "P", "default": {"x": 9}}) | {"namespace": "n"})

    old, new = line(), line({"name": "raw", "type": "bytes", "default": "\u00ff"})
    value = {"a": {"x": 1}, "b": {"x": 2}}
    points = {"a": {"x": 1, "raw": b"\xff"}, "b": {"x": 2, "raw": b"\xff"}, "c": {"x": 9, "raw": b"\xff"}}
    assert new.decoder(old.definition)(old.serialize(value)) == points
    assert new.deserialize(new.serialize(value)) == points


def test_default_changed_by_reader_is_not_shared() -> None:
    old = Avro(record({"name": "a", "type": "int"}))
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
    new = Avro(record({"name": "a", "type": "int"}, tags, {"name": "p", "type": POINT, "default": {}}))
    read = new.decoder(old.definition)
    first = read(old.serialize({"a": 1}))
    first["tags"].append("mine")
    first["p"]["x"] = 0
    assert read(old.serialize({"a": 2})) == {"a": 2, "tags": [], "p": {"x": 3}}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (HASH, "\u00ff"),
        ("bytes", "\u0100"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ("int", 1 << 31),
        ({"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}, {}),
        ({"type": "array", "items": "int"}, ["x"]),
    ],
)
def test_default_of_wrong_type_is_rejected(kind: Any, default: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Avro(record({"name": "it", "type": kind, "default": default}))
