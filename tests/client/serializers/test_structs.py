"""Struct: types reported as compatible read values, with random types, changes and values."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Struct
from nadi.client.serializers.structs import Encoding
from nadi.errors import InvalidArgumentError, SerializationError

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Node(msgspec.Struct):
    name: str
    next: Node | None = None


class Point(msgspec.Struct, array_like=True):
    x: int
    y: int = 0


class Point3(msgspec.Struct, array_like=True):
    x: int
    y: int = 0
    z: float = 0.0


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


INTS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1))
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
    type(None): st.none(),
    dt.datetime: TIMES,
    Annotated[dt.datetime, msgspec.Meta(tz=True)]: TIMES.map(lambda at: at.replace(tzinfo=dt.UTC)),
    dt.date: st.dates(),
    dt.time: st.times(),
    uuid.UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Annotated[int, msgspec.Meta(ge=0)]: st.integers(0, 100),
    Annotated[int, msgspec.Meta(ge=-5, le=5)]: st.integers(-5, 5),
    Annotated[str, msgspec.Meta(max_length=3)]: st.text(max_size=3),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    Color: st.sampled_from(Color),
    Node: st.builds(Node, st.text(max_size=2), st.none() | st.builds(Node, st.text(max_size=2))),
    Point: st.builds(Point, INTS, INTS),
    Point3: st.builds(Point3, INTS, INTS, st.just(0.5)),
    Cat | Dog: st.builds(Cat, INTS) | st.builds(Dog, st.text(max_size=3)),
    Cat: st.builds(Cat, INTS),
    Any: st.none() | INTS | st.text(max_size=3),
}
Kind = tuple[Any, st.SearchStrategy[Any]]


def containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        inner.map(lambda k: (list[k[0]], st.lists(k[1], max_size=3))),  # type: ignore[valid-type]
        inner.map(lambda k: (dict[str, k[0]], st.dictionaries(st.text(max_size=3), k[1], max_size=3))),  # type: ignore[valid-type]
        inner.map(lambda k: (dict[int, k[0]], st.dictionaries(INTS, k[1], max_size=3))),  # type: ignore[valid-type]
        inner.map(lambda k: (tuple[k[0], int], st.tuples(k[1], INTS))),  # type: ignore[valid-type]
        inner.map(lambda k: (tuple[k[0], ...], st.lists(k[1], max_size=3).map(tuple))),  # type: ignore[valid-type]
        inner.map(lambda k: (k[0] | None, k[1] | st.none()) if k[0] is not Any else k),
    )


KINDS: st.SearchStrategy[Kind] = st.recursive(st.sampled_from(list(LEAVES.items())), containers, max_leaves=3)


@st.composite
def struct_types(draw: st.DrawFn, base: dict[str, tuple[Kind, bool]] | None = None) -> Any:
    """Draw (type, strategy of its values, its fields), random or derived from `base` by some changes."""
    fields: dict[str, tuple[Kind, bool]] = {}
    for name in "abcd":
        if base is not None and name in base and draw(st.integers(0, 9)) < 7:
            kind, optional = base[name]
            if draw(st.integers(0, 9)) < 2:
                optional = not optional
        elif draw(st.booleans()):
            kind, optional = draw(KINDS), draw(st.booleans())
        else:
            continue
        fields[name] = (kind, optional)
    options = {"forbid_unknown_fields": draw(st.integers(0, 9)) == 0, "omit_defaults": draw(st.booleans())}
    ordered = sorted(fields.items(), key=lambda item: item[1][1])
    values, parts = {}, []
    for name, ((kind, strategy), optional) in ordered:
        values[name] = strategy
        parts.append((name, kind, draw(strategy)) if optional and kind is not Color else (name, kind))
    parts.sort(key=len)
    try:
        made = msgspec.defstruct("S", [_safe(part) for part in parts], **options)  # type: ignore[arg-type]
    except TypeError:  # an unsupported union, or a default that needs a factory
        assume(False)
        raise
    return made, st.builds(made, **values), fields


def _safe(part: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(part) == 3 and isinstance(part[2], list | dict | set | msgspec.Struct):
        value = part[2]
        return (*part[:2], msgspec.field(default_factory=lambda: value))
    return part


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])  # a shared machine may stop for long
@given(st.data(), st.sampled_from(["json", "msgpack"]), st.sampled_from(["json", "msgpack"]))
def test_compatible_type_reads_equal_values(data: st.DataObject, encoding: Encoding, own_encoding: Encoding) -> None:
    old, values, fields = data.draw(struct_types())
    new, _, _ = data.draw(struct_types(fields))
    try:
        writer, reader = Struct(old, encoding), Struct(new, own_encoding)
    except (InvalidArgumentError, TypeError):
        assume(False)
    if reader.incompatibilities(reader.definition, writer.definition):
        event("incompatible")
        return
    event("compatible")
    value = data.draw(values)
    written = writer.serialize(value)
    read = reader.decoder(writer.definition)(written)
    assert isinstance(read, new)
    # with omit_defaults a field at its default isn't written, and has the reader's own default
    names = (msgspec.json if encoding == "json" else msgspec.msgpack).decode(written).keys()
    for name in names & set(new.__struct_fields__):
        if fields[name][0][0] in (int, str, bool, bytes, dt.datetime, dt.date, uuid.UUID, Point, Cat | Dog):
            assert getattr(read, name) == getattr(value, name)


EDGES: list[tuple[Any, list[Any]]] = [
    (int, [0, -(2**63), 2**63 - 1]),
    (float, [0.5, 2.0]),
    (bool, [True, False]),
    (str, ["", "ä", "2020-01-01", "1"]),
    (bytes, [b"", b"\xff"]),
    (type(None), [None]),
    (int | None, [None, 5]),
    (dt.datetime, [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    (Annotated[dt.datetime, msgspec.Meta(tz=True)], [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    (Annotated[dt.datetime, msgspec.Meta(tz=False)], [dt.datetime(2020, 1, 1)]),
    (dt.date, [dt.date(2020, 1, 1)]),
    (dt.time, [dt.time(1, 2)]),
    (dt.timedelta, [dt.timedelta(seconds=1)]),
    (uuid.UUID, [uuid.UUID(int=1)]),
    (Decimal, [Decimal("1.5")]),
    (Annotated[int, msgspec.Meta(ge=0)], [0, 2**63 - 1]),
    (Annotated[int, msgspec.Meta(gt=0, lt=9)], [1, 8]),
    (Annotated[str, msgspec.Meta(max_length=3)], ["", "abc"]),
    (Annotated[str, msgspec.Meta(pattern="^a")], ["a"]),
    (Literal["a", "b"], ["a", "b"]),
    (Literal["a"], ["a"]),
    (Literal[1, 2], [1, 2]),
    (Literal["red", 1, None], ["red", 1, None]),
    (Color, [Color.RED, Color.BLUE]),
    (list[int], [[], [1, 2, 3]]),
    (list[float], [[0.5]]),
    (tuple[int, int], [(1, 2)]),
    (tuple[int, str], [(1, "a")]),
    (set[int], [{1, 2}]),
    (dict[str, int], [{}, {"a": 1}]),
    (dict[int, int], [{5: 1}]),
    (dict[str, Any], [{"name": 1, "lives": "x"}]),
    (Node, [Node("a", Node("b"))]),
    (Point, [Point(1, 2)]),
    (Point3, [Point3(1, 2, 0.5)]),
    (Cat, [Cat(9)]),
    (Cat | Dog, [Cat(9), Dog("rex")]),
    (Cat | None, [Cat(9), None]),
    (Any, [None, 5, "a", [1], {"a": 1}]),
]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_compatible_types_read_edge_values(encoding: Encoding) -> None:
    compatible = 0
    for old, values in EDGES:
        old_type = msgspec.defstruct("S", [("a", old)])
        writer = Struct(old_type, encoding)
        for new, _ in EDGES:
            reader = Struct(msgspec.defstruct("S", [("a", new)]), encoding)
            if reader.incompatibilities(reader.definition, writer.definition):
                assert old != new
                continue
            compatible += 1
            for value in values:
                reader.decoder(writer.definition)(writer.serialize(old_type(a=value)))
    assert compatible > 2 * len(EDGES)


def problems(reader: Any, writer: Any) -> list[str]:
    of_reader, of_writer = Struct(reader), Struct(writer)
    return of_reader.incompatibilities(of_reader.definition, of_writer.definition)


def fields(**kinds: Any) -> Any:
    return msgspec.defstruct("S", list(kinds.items()))


@pytest.mark.parametrize(
    ("reader", "writer", "named"),
    [
        (fields(a=int), fields(b=int), "$.a"),
        (fields(a=str), fields(a=int), "$.a"),
        (fields(a=int), fields(a=int | None), "null"),
        (fields(a=dt.datetime), fields(a=str), "any-date-time"),
        (fields(a=dict[int, int]), fields(a=dict[str, int]), "propertyNames"),
        (fields(a=Literal["x"]), fields(a=Literal["x", "y"]), "'y'"),
        (fields(a=Annotated[int, msgspec.Meta(ge=1)]), fields(a=int), "minimum"),
        (fields(a=Cat), fields(a=Cat | Dog), "'Dog'"),
        (fields(a=tuple[int, int]), fields(a=list[int]), "$.a"),
        (msgspec.defstruct("S", ["a"], forbid_unknown_fields=True), fields(a=int, b=int), "$.b"),
    ],
)
def test_incompatibility_names_path_or_value(reader: Any, writer: Any, named: str) -> None:
    assert named in "; ".join(problems(reader, writer))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (fields(a=int | None), fields(a=int)),
        (fields(a=float), fields(a=int)),
        (fields(a=Any), fields(a=Cat | Dog)),
        (fields(), fields(a=int)),
        (fields(a=Cat | Dog | None), fields(a=Cat | None)),
        (Node, Node),
        (Point3, Point),
        (Point, Point3),
        (fields(a=Color), fields(a=Literal["red"])),
        (fields(a=str), fields(a=Annotated[str, msgspec.Meta(max_length=3)])),
    ],
)
def test_widening_change_is_compatible(reader: Any, writer: Any) -> None:
    assert problems(reader, writer) == []


class Since(msgspec.Struct, Generic[T], tag="since"):
    at: T


class Until(msgspec.Struct, Generic[T], tag="until"):
    at: T


class Row(msgspec.Struct, Generic[T], array_like=True, tag=True):
    at: T


@pytest.mark.parametrize(
    "shape",
    [
        lambda kind: Since[kind] | None,  # type: ignore[valid-type]
        lambda kind: Since[kind] | Until[str],  # type: ignore[valid-type]
        lambda kind: Until[str] | Since[kind],  # type: ignore[valid-type]
        lambda kind: Row[kind] | None,  # type: ignore[valid-type]
        lambda kind: list[kind] | None,  # type: ignore[valid-type]
        lambda kind: dict[str, kind] | int,  # type: ignore[valid-type]
        lambda kind: tuple[int, kind],  # type: ignore[valid-type]
        lambda kind: frozenset[kind],  # type: ignore[valid-type]
        lambda kind: Annotated[kind, msgspec.Meta(title="t")],
        lambda kind: dict[str, list[Since[kind] | None]],  # type: ignore[valid-type]
    ],
)
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_datetime_is_incompatible_with_str_at_any_depth(shape: Callable[[Any], Any], encoding: Encoding) -> None:
    of_text, of_times = Struct(fields(a=shape(str)), encoding), Struct(fields(a=shape(dt.datetime)), encoding)
    assert b"any-date-time" in of_times.definition
    assert of_times.incompatibilities(of_times.definition, of_text.definition)
    assert of_times.incompatibilities(of_times.definition, of_times.definition) == []


def test_invalid_value_event_or_type_is_rejected() -> None:
    with pytest.raises(SerializationError, match=r"Cat.*Dog"):
        Struct(Cat).serialize(Dog("rex"))  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match="lives"):
        Struct(Cat).deserialize(b'{"type":"Cat"}')
    with pytest.raises(InvalidArgumentError):
        Struct(object)
    with pytest.raises(InvalidArgumentError):
        Struct(Cat, "xml")  # type: ignore[arg-type]
