"""Fields and the values of events."""

from __future__ import annotations

from typing import Any

import pytest

from nadi.errors import InvalidArgumentError
from nadi.search.fields import Field, UnfitError, Values, fields_of, reader_of, value_of
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
    ("data", "reason"),
    [
        (b"{", "it is not JSON"),
        (b"\xff{}", "it is not JSON"),
        (b"[1]", "not a JSON object, but a list"),
        (b"7", "not a JSON object, but a number"),
        (b"", "it is not JSON"),
        (b'{"message": 5}', "message is no text, but a number"),
        (b'{"message": {"a": 1}}', "message is no text, but an object"),
        (b'{"ms": "5"}', "ms is not a whole number, but a text"),
        (b'{"ms": true}', "ms is not a whole number, but a bool"),
        (b'{"ms": 1.5}', "ms is not a whole number"),
        (b'{"ms": 9223372036854775808}', "out of a long's range"),
        (b'{"at": "yesterday"}', "at is not a time in ISO 8601"),
        (b'{"at": 9223372036854776}', "the years 1 to 9999"),
        (b'{"at": 1790000000123}', "timestamp_ms if these are milliseconds"),
        (b'{"at": "1790000000"}', "at is not a time in ISO 8601"),
        (b'{"at": "0001-01-01T00:00+01:00"}', "at is a time outside the years 1 to 9999"),
        (b'{"at": true}', "at is not a time, but a bool"),
        (b'{"ok": 1}', "ok is no bool, but a number"),
        (b'{"load": "1"}', "load is not a number, but a text"),
        (b'{"load": %s}' % (b"9" * 400), "out of"),
        (b'{"path": "a/b"}', "path is not a path"),
        (b'{"path": "/a//b"}', "path is not a path"),
        (b'{"level": "%s"}' % (b"x" * 40_000), "longer than the 32,768 bytes"),
        (b'{"level": ["a", 5]}', "level is no text, but a number"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_events_that_do_not_fit(data: bytes, reason: str) -> None:
    with pytest.raises(UnfitError, match=reason):
        read(data)
    with pytest.raises(UnfitError, match="not text in UTF-8"):
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


def test_field_that_others_lie_within_takes_no_object() -> None:
    fields = "body:text,body.code:long"
    assert read('{"body": "sold"}', fields) == [(0, "sold")]
    assert read('{"body": {"code": 7}}', fields) == [(1, 7)]
    assert read('{"body": ["sold", {"code": 7}]}', fields) == [(0, "sold"), (1, 7)]
    assert read('{"body": "sold", "body.code": 7}', fields) == [(0, "sold"), (1, 7)]
    with pytest.raises(UnfitError, match="body is no text, but an object"):
        read('{"body": {"code": 7}}', "body:text")


def test_fields_of_a_list_of_objects_are_those_of_each() -> None:
    assert read('{"a": [{"b": 1}, {"b": [2, null]}, 3, [{"b": 4}]]}', "a.b:long") == [(0, 1), (0, 2), (0, 4)]
    with pytest.raises(UnfitError, match=r"a\.b is not a whole number, but a text"):
        read('{"a": [{"b": 1}, {"b": "x"}]}', "a.b:long")
    for depth in range(100, 1_100, 100):
        nested = '{"a": ' + "[" * depth + "]" * depth + "}"
        try:
            assert read(nested, "a.b:long") == []
        except UnfitError as error:
            assert "deep" in str(error) or "not JSON" in str(error)  # noqa: PT017


def test_fields_may_differ_by_quotes_where_no_member_is_both() -> None:
    fields = '"a.b":long, "a"."b":long, "x,y:z ""q""":text, größe.0:bool, "_id":keyword, "1":double'
    found = read('{"a.b": 1, "a": {"b": 2}, "x,y:z \\"q\\"": "t", "größe": {"0": true}, "_id": "i", "1": 3}', fields)
    assert [value for _, value in found] == [1, 2, "t", True, "i", 3.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a.b:text,a.b:long", "the fields name one member twice, a.b: an event's member has one kind"),
        ('a.b:text,"a"."b":long', 'the fields name one member twice, a.b and "a"."b"'),
        ('a.b:text,"a.b":long', "name one member twice"),
        ("a..b:text", "'a..b' is not a field: a name is empty at character 3"),
        ("a.:text", "ends with a dot"),
        (r"a\.b:text", "is not a field"),
        ("`a.b`:text", "is not a field"),
        ('a."b:text', "quote at character 3 is not closed"),
        ("_came:text", "begins with '_', which queries have for something else: put the name in quotes"),
        ("1a:text", "put the name in quotes"),
        (r'"a\b":text', "a backslash or a control character"),
        ("a" * 256 + ":text", "more than 255 characters"),
        (",".join(f"a{number}:text" for number in range(10_000)), "1 to 100 fields, not 10,000"),
        *((text, "field") for text in ("a", "a:", "a:string", ":text", "a b:text", "", "a:timestamp_h")),
    ],
)
def test_fields_that_no_query_could_name_or_tell_apart_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        fields_of(text)


@pytest.mark.parametrize("given", [[5], [None], b"a:text", [("a", "text")]])
def test_fields_that_are_not_texts_are_refused(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the fields of an index are a list of texts, not"):
        fields_of(given)


def test_values_in_queries() -> None:
    assert [value_of("long", "-5"), value_of("double", "1e3"), value_of("bool", "true")] == [-5, 1000.0, True]
    assert value_of("timestamp_ns", "1790000000123456789") == value_of("date", "2026-09-21T14:13:20.123456Z")
    wrong = {"long": "x", "double": "nan", "bool": "yes", "facet": "x", "date": "1790000000", "timestamp_ns": "1.5"}
    for kind, text in (*wrong.items(), ("date", "x"), ("long", "1_0x")):
        with pytest.raises(ValueError, match="no"):
            value_of(kind, text)  # type: ignore[arg-type]
