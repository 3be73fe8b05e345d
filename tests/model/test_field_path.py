"""Paths to fields: their syntax, and what they find in events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import parse_path

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
    ("path", "why"),
    [
        ("", "it is empty"),
        ("a..b", "a name is empty at character 3"),
        (".a", "a name is empty at character 1"),
        ("a.", "it ends with a dot"),
        ('"a".', "it ends with a dot"),
        ('a."b', "its quote at character 3 is not closed"),
        ('a"b', "has no '\"', as at character 2"),
        ('"a"b', "'b' comes where a dot should after a name in quotes, at character 4"),
        ('"""', "'\"' comes where a dot should after a name in quotes, at character 3"),
        (r"a\.b", r"has no '\\\\', as at character 2"),
        ("a.`b.c`", "has no '`', as at character 3"),
        ("a['b']", r"has no '\[', as at character 2"),
        ("$.a", r"has no '\$', as at character 1"),
        ("/a/b", "has no '/', as at character 1"),
        ("a b", "has no ' ', as at character 2"),
        (".".join("a" * 33), "has 33 names: 32 are the most"),
        ("a" + ".a" * 500_000, "has 500,001 names"),
        ('"\ud83d"', "half of a character"),
        (7, "is a text, not int"),
        (None, "is a text, not NoneType"),
    ],
)
def test_text_that_is_not_a_path_is_refused(path: Any, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
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
