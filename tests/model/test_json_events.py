"""JSON events as raw text, paths to their fields, and routing keys in fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import parse_path
from nadi.model.json_events import NotJsonError, checked, fields_of, key_in, known_key_in, with_whole_characters

KEYS: list[tuple[bytes, str | None]] = [
    (b'{"id": ""}', ""),
    (b'{"id": "a"}', "a"),
    (rb'{"id": "\u00e4\ud83d"}', "ä\ufffd"),
    (b'{"id": 1}', "1"),
    (b'{"id": 1.0}', "1.0"),
    (b'{"id": 1e0}', "1e0"),
    (b'{"id": -0}', "-0"),
    (b'{"id": 12345678901234567890123}', "12345678901234567890123"),
    (b'{"id": 1e400}', "1e400"),
    (b'{"id": null}', None),
    (b"{}", None),
    (b"[1]", None),
    (b'"id"', None),
    (b'{"id": 1, "id": 2}', "2"),
    (rb'{"\u0069d": "escaped"}', "escaped"),
]


@pytest.mark.parametrize(("event", "key"), KEYS)
def test_key_in_a_field_by_its_type_is_its_text_or_none(event: bytes, key: str | None) -> None:
    assert key_in(event, parse_path("id")) == key
    assert key_in(b'{"of": {"of": ' + event + b"}}", parse_path("of.of.id")) == key


@pytest.mark.parametrize("value", [b"true", b"false", b"[]", b'["a"]', b"{}", b'{"id": 1}'])
def test_key_that_is_a_truth_value_a_list_or_an_object_is_refused_by_its_field(value: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"device\.id"):
        key_in(b'{"device": {"id": ' + value + b"}}", parse_path("device.id"))
    assert known_key_in(b'{"id": ' + value + b"}", parse_path("id")) is None


def test_key_field_with_a_dot_in_its_name_is_found_before_a_nested_one() -> None:
    assert key_in(b'{"service.name": "shop", "service": {"name": "other"}}', parse_path("service.name")) == "shop"
    assert key_in(b'{"service": {"name": "other"}}', parse_path("service.name")) == "other"
    assert key_in(b'{"service": 7}', parse_path("service.name")) is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"NaN", b"[1,]", b'"\xff"', b'{"a": "\xff"}', b'"\x01"', b"[" * 100_000, b"01"]
)
def test_invalid_json_is_rejected_by_every_function(text: bytes) -> None:
    for ask in (checked, fields_of, lambda it: key_in(it, parse_path("id"))):
        with pytest.raises(NotJsonError):
            ask(text)


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\uDE00", "\\\\", "\\n", "\\u00e4", "u", "d", "83d", "ä", "\\uD83D\\ude00"]))
)
def test_halves_of_surrogate_pairs_become_the_replacement_character_and_no_other_byte_changes(parts: list[str]) -> None:
    text = f'"{"".join(parts)}"'
    wanted = json.loads(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    mended = with_whole_characters(text.encode())
    assert len(mended) == len(text.encode())
    assert (
        json.loads(mended) == json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace") == wanted
    )


def test_fields_are_returned_verbatim() -> None:
    values = {"a": b"1.50", "b": b"12345678901234567890", "c": b"1e400", "d": b'{ "x" : [ 1 ] }', "e": rb'"\u00e4"'}
    document = b"{" + b", ".join(b'"%s" :  %s ' % (name.encode(), value) for name, value in values.items()) + b"}"
    assert {name: bytes(value) for name, value in fields_of(document).items()} == values


SHOP = [
    {"resource": {"service.name": "shop"}},
    {"resource": {"service": {"name": "shop"}}},
    {"resource.service.name": "shop"},
    {"resource.service": {"name": "shop"}},
]


@pytest.mark.parametrize("event", SHOP)
def test_path_without_quotes_is_found_in_each_nesting(event: dict[str, Any]) -> None:
    assert parse_path("resource.service.name").find(event) == "shop"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ('resource."service.name"', [True, False, False, False]),
        ('"resource"."service"."name"', [False, True, False, False]),
        ('"resource.service.name"', [False, False, True, False]),
        ('"resource.service".name', [False, False, False, True]),
        ('resource."service".name', [False, True, False, False]),
    ],
)
def test_path_with_a_name_in_quotes_is_found_where_that_is_a_name(path: str, found: list[bool]) -> None:
    assert [parse_path(path).find(event) == "shop" for event in SHOP] == found


@pytest.mark.parametrize(
    ("event", "value"),
    [
        ({"a.b.c": 1, "a.b": {"c": 2}, "a": {"b.c": 3, "b": {"c": 4}}}, 1),
        ({"a.b": {"c": 2}, "a": {"b.c": 3, "b": {"c": 4}}}, 2),
        ({"a": {"b.c": 3, "b": {"c": 4}}}, 3),
        ({"a.b.c": None, "a": {"b": {"c": 4}}}, 4),
        ({"a.b": {"d": 1}, "a": {"b": {"c": 4}}}, 4),
        ({"a.b": 5, "a": {"b": {"c": 4}}}, 4),
        ({"a": 5}, None),
        ({"a": {"b": {"c": None}}}, None),
        ({"a": {"b": {"c": {"d": 1}}}}, {"d": 1}),
        ({"a": [{"b": {"c": 1}}, 7, {"b.c": [2, 3]}, [{"b": [{"c": 4}]}], {"b": 5}]}, [1, 2, 3, 4]),
        ({"a": []}, None),
        ({"a": [{"b": 1}]}, None),
    ],
)
def test_longest_name_that_leads_to_a_value_counts(event: dict[str, Any], value: object) -> None:
    assert parse_path("a.b.c").find(event) == value


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("größe.μ", {"größe": {"μ": 1}}),
        ("@timestamp", {"@timestamp": 1}),
        ("0.1", {"0": {"1": 1}}),
        ("_id", {"_id": 1}),
        ('"a""b".""', {'a"b': {"": 1}}),
        (r'"a\b:c,d e"', {r"a\b:c,d e": 1}),
        ('labels."app.kubernetes.io/name"', {"labels": {"app.kubernetes.io/name": 1}}),
        (".".join("a" * 32), {".".join("a" * 16): {".".join("a" * 16): 1}}),
    ],
)
def test_path_of_odd_names_finds_them(path: str, event: dict[str, Any]) -> None:
    assert parse_path(path).find(event) == 1


@pytest.mark.parametrize(
    ("path", "position"),
    [
        ("", "empty"),
        ("a..b", "character 3"),
        (".a", "character 1"),
        ("a.", "dot"),
        ('"a".', "dot"),
        ('a."b', "character 3"),
        ('a"b', "'\"'.* character 2"),
        ('"a"b', "'b'.* character 4"),
        ('"""', "'\"'.* character 3"),
        (r"a\.b", r"'\\\\'.* character 2"),
        ("a.`b.c`", "'`'.* character 3"),
        ("a['b']", r"'\['.* character 2"),
        ("$.a", r"'\$'.* character 1"),
        ("/a/b", "'/'.* character 1"),
        ("a b", "' '.* character 2"),
        (".".join("a" * 33), "33 .*32"),
        ("a" + ".a" * 500_000, "500,001 "),
        ('"\ud83d"', "character 2"),
        (7, "int"),
        (None, "NoneType"),
    ],
)
def test_text_that_is_not_a_path_is_refused(path: Any, position: str) -> None:
    with pytest.raises(InvalidArgumentError, match=position):
        parse_path(path)


@given(st.text(alphabet='ab."`\\ ä-', max_size=12))
def test_any_text_is_a_path_or_is_refused(text: str) -> None:
    try:
        path = parse_path(text)
    except InvalidArgumentError:
        return
    assert path.may_be(path)
    assert path.find({}) is None


@pytest.mark.parametrize(
    ("one", "other", "may_be"),
    [
        ("a.b", '"a"."b"', True),
        ("a.b", '"a.b"', True),
        ('"a.b"', '"a"."b"', False),
        ('"a"', "a", True),
        ('a.b."c"', 'a."b".c', True),
        ('a."b.c"', '"a.b".c', False),
        ("a.b", "a.b.c", False),
        ("a", "b", False),
    ],
)
def test_paths_that_may_be_one_member_are_known(one: str, other: str, may_be: bool) -> None:
    assert parse_path(one).may_be(parse_path(other)) == parse_path(other).may_be(parse_path(one)) == may_be
