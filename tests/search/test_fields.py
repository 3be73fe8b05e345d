"""Fields and the values of events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from nadi.errors import InvalidArgumentError
from nadi.search.fields import Field, InvalidEventError, Values, fields_of, reader_of, value_of
from tests.search.support import FIELDS


def read(data: str | bytes, fields: str = FIELDS) -> Values:
    return reader_of("json", fields_of(fields))(data.encode() if isinstance(data, str) else data)


def test_values_of_an_event() -> None:
    found = read(
        '{"message": "hi", "level": ["a", null, "b"], "ms": -1, "at": "2026-01-01T00:00:00.5+01:00", '
        '"ok": false, "load": 1, "path": "/a/b", "more": 1, "x": {"y": 2}}'
    )
    at = 1767222000500000
    assert found == [(0, "hi"), (1, "a"), (1, "b"), (2, -1), (3, at), (4, False), (5, 1.0), (6, "/a/b")]
    assert read('{"ms": null}') == []
    assert read('{"at": 1767222000.5}') == [(3, at)]
    assert read('{"at": "2026-01-01"}') == [(3, 1767225600000000)]
    assert read('{"a": {"b": {"c": 7}, "c": 8}}', "a.b.c:long") == [(0, 7)]
    assert read('{"a": 5, "a.b": 6}', "a.b:long") == [(0, 6)]
    assert reader_of("text", fields_of("line:text"))("grüß".encode()) == [(0, "grüß")]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"\xff{}",
        b"[1]",
        b"7",
        b"",
        b'{"message": 5}',
        b'{"message": {"a": 1}}',
        b'{"ms": "5"}',
        b'{"ms": true}',
        b'{"ms": 1.5}',
        b'{"ms": 9223372036854775808}',
        b'{"at": "yesterday"}',
        b'{"at": 9223372036854776}',
        b'{"at": 1790000000123}',
        b'{"at": "1790000000"}',
        b'{"at": "0001-01-01T00:00+01:00"}',
        b'{"at": true}',
        b'{"ok": 1}',
        b'{"load": "1"}',
        b'{"load": %s}' % (b"9" * 400),
        b'{"path": "a/b"}',
        b'{"path": "/a//b"}',
        b'{"level": "%s"}' % (b"x" * 40_000),
        b'{"level": ["a", 5]}',
        b"[" * 100_000,
    ],
)
def test_reader_of_invalid_event_fails(data: bytes) -> None:
    with pytest.raises(InvalidEventError):
        read(data)
    with pytest.raises(InvalidEventError):
        reader_of("text", (Field("line", "text"),))(b"\xff")


@pytest.mark.parametrize(
    ("kind", "value", "micros"),
    [
        ("date", "1790000000", 1790000000000000),
        ("timestamp", "1790000000.25", 1790000000250000),
        ("timestamp_s", '"1790000000"', 1790000000000000),
        ("timestamp_ms", "1790000000123", 1790000000123000),
        ("timestamp_us", "-1", -1),
        ("timestamp_ns", '"1790000000123456789"', 1790000000123456),
        ("timestamp_ns", "-1", -1),
        ("timestamp_ns", '"2026-09-21T14:13:20.123456789Z"', 1790000000123456),
        ("timestamp_ns", '["1", null, 1001]', [0, 1]),
    ],
)
def test_time_is_counted_in_the_unit_of_its_kind(kind: str, value: str, micros: int | list[int]) -> None:
    wanted = micros if isinstance(micros, list) else [micros]
    assert read(f'{{"t": {value}}}', f"t:{kind}") == [(0, one) for one in wanted]


def test_field_with_nested_fields_takes_no_object() -> None:
    fields = "body:text,body.code:long"
    assert read('{"body": "sold"}', fields) == [(0, "sold")]
    assert read('{"body": {"code": 7}}', fields) == [(1, 7)]
    assert read('{"body": ["sold", {"code": 7}]}', fields) == [(0, "sold"), (1, 7)]
    assert read('{"body": "sold", "body.code": 7}', fields) == [(0, "sold"), (1, 7)]
    with pytest.raises(InvalidEventError, match="body"):
        read('{"body": {"code": 7}}', "body:text")


def test_fields_of_a_list_of_objects_are_those_of_each() -> None:
    assert read('{"a": [{"b": 1}, {"b": [2, null]}, 3, [{"b": 4}]]}', "a.b:long") == [(0, 1), (0, 2), (0, 4)]
    with pytest.raises(InvalidEventError, match=r"a\.b"):
        read('{"a": [{"b": 1}, {"b": "x"}]}', "a.b:long")
    for depth in range(100, 1_100, 100):
        nested = '{"a": ' + "[" * depth + "]" * depth + "}"
        with suppress(InvalidEventError):
            assert read(nested, "a.b:long") == []


def test_fields_may_differ_by_quotes_where_no_member_is_both() -> None:
    fields = '"a.b":long, "a"."b":long, "x,y:z ""q""":text, größe.0:bool, "_id":keyword, "1":double'
    found = read('{"a.b": 1, "a": {"b": 2}, "x,y:z \\"q\\"": "t", "größe": {"0": true}, "_id": "i", "1": 3}', fields)
    assert [value for _, value in found] == [1, 2, "t", True, "i", 3.0]


@pytest.mark.parametrize(
    "text",
    [
        "a.b:text,a.b:long",
        'a.b:text,"a"."b":long',
        'a.b:text,"a.b":long',
        "a..b:text",
        "a.:text",
        r"a\.b:text",
        "`a.b`:text",
        'a."b:text',
        "_arrival_time:text",
        "1a:text",
        r'"a\b":text',
        "a" * 256 + ":text",
        ",".join(f"a{number}:text" for number in range(10_000)),
        *("a", "a:", "a:string", ":text", "a b:text", "", "a:timestamp_h"),
    ],
)
def test_fields_of_invalid_or_ambiguous_names_fail(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        fields_of(text)


@pytest.mark.parametrize("given", [[5], [None], b"a:text", [("a", "text")]])
def test_fields_of_other_types_fail(given: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        fields_of(given)


def test_values_in_queries() -> None:
    assert [value_of("long", "-5"), value_of("double", "1e3"), value_of("bool", "true")] == [-5, 1000.0, True]
    assert value_of("timestamp_ns", "1790000000123456789") == value_of("date", "2026-09-21T14:13:20.123456Z")
    wrong = {"long": "x", "double": "nan", "bool": "yes", "facet": "x", "date": "1790000000", "timestamp_ns": "1.5"}
    for kind, text in (*wrong.items(), ("date", "x"), ("long", "1_0x")):
        with pytest.raises(ValueError):  # noqa: PT011
            value_of(kind, text)  # type: ignore[arg-type]
