"""Fields and the values of events."""

from __future__ import annotations

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
    assert read('{"at": 1767222000500}') == [(3, at)]
    assert read('{"at": "2026-01-01"}') == [(3, 1767225600000000)]
    assert read('{"a": {"b": {"c": 7}, "c": 8}}', "a.b.c:long") == [(0, 7)]
    assert read('{"a": 5, "a.b": 6}', "a.b:long") == []
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
        (b'{"at": "yesterday"}', "at is no date in ISO 8601"),
        (b'{"at": 9223372036854776}', "the years 1 to 9999"),
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


def test_text_that_does_not_fit() -> None:
    with pytest.raises(UnfitError, match="not text in UTF-8"):
        reader_of("text", (Field("line", "text"),))(b"\xff")


@pytest.mark.parametrize(
    "text", ["a", "a:", "a:string", ":text", "1a:text", "a b:text", "a:text,a:long", "", "_a:long"]
)
def test_what_are_no_fields(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        fields_of(text)


def test_values_in_queries() -> None:
    assert [value_of("long", "-5"), value_of("double", "1e3"), value_of("bool", "true")] == [-5, 1000.0, True]
    for kind, text in (
        ("long", "x"),
        ("double", "nan"),
        ("bool", "yes"),
        ("date", "x"),
        ("facet", "x"),
        ("long", "1_0x"),
    ):
        with pytest.raises(ValueError, match="no"):
            value_of(kind, text)  # type: ignore[arg-type]
