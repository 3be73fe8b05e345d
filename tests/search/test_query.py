"""The query language: parsing, and errors."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidArgumentError
from nadi.search.fields import fields_of
from nadi.search.query.bound import Has, bind
from nadi.search.query.parser import And, Node, Not, Or, Range, Term, parse

FIELDS = fields_of("message:text,title:text,level:keyword,ms:long,at:date,ok:bool,load:double,path:facet")


def term(text: str, field: str | None = None) -> Term:
    return Term(field, text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", And(())),
        ("*", And(())),
        ("a b", And((term("a"), term("b")))),
        ("a AND b", And((term("a"), term("b")))),
        ("a OR b c", Or((term("a"), And((term("b"), term("c")))))),
        ("(a OR b) c", And((Or((term("a"), term("b"))), term("c")))),
        ("a -b NOT c", And((term("a"), Not(term("b")), Not(term("c"))))),
        ("NOT (a OR b)", Not(Or((term("a"), term("b"))))),
        ("and or", And((term("and"), term("or")))),
        ('"two words"', Term(None, "two words")),
        (r'"a \" b"', Term(None, 'a " b')),
        ('"two words"~5', Term(None, "two words", 5)),
        ('message:"two words"~20 a', And((Term("message", "two words", 20), term("a")))),
        ('"two words" ~5', And((Term(None, "two words"), term("~5")))),
        ("level:error", term("error", "level")),
        ("level:a:b", term("a:b", "level")),
        ("level:(a OR -b)", Or((term("a", "level"), Not(term("b", "level"))))),
        ("tim*", Term(None, "tim", is_prefix=True)),
        ("level:e*", Term("level", "e", is_prefix=True)),
        (r"level:e\*", term("e*", "level")),
        (r"a\:b", term("a:b")),
        (r"\AND", term("AND")),
        ("foo-bar", term("foo-bar")),
        ("ms:-5", term("-5", "ms")),
        ("ms:[1 TO 5]", Range("ms", "1", "5")),
        ("ms:{-1 TO -5}", Range("ms", "-1", "-5", with_low=False, with_high=False)),
        ("ms:[* TO 5}", Range("ms", None, "5", with_high=False)),
        ("ms:>-5", Range("ms", "-5", None, with_low=False)),
        ("ms:<=5 a", And((Range("ms", None, "5"), term("a")))),
        ("at:[2026-01-01T00:00Z TO *]", Range("at", "2026-01-01T00:00Z", None)),
        ("path:/a/b", term("/a/b", "path")),
        ("naïve", term("naïve")),
        ("größe:5", term("5", "größe")),
        ('resource."service.name":shop', term("shop", 'resource."service.name"')),
        ('"log.level":(a OR b)', Or((term("a", '"log.level"'), term("b", '"log.level"')))),
        ('-a."b c".d:"e f"', Not(Term('a."b c".d', "e f"))),
        ('a."b""c":>=5', Range('a."b""c"', "5", None)),
        ('"a b" c:d', And((Term(None, "a b"), term("d", "c")))),
        (r'"a\" b:c"', Term(None, 'a" b:c')),
        (r"http\://a.b", term("http://a.b")),
    ],
)
def test_parse_query_returns_its_tree(text: str, meant: Node) -> None:
    assert parse(text).node == meant


def test_parse_bounds_are_separate_from_the_tree() -> None:
    found = parse("_since:2026-01-01T00:00Z error _until:tail")
    assert (found.node, found.since, found.until) == (term("error"), "2026-01-01T00:00Z", "tail")
    assert parse("_since:head").node == And(())
    assert parse('a _since:"a b" b').node == And((term("a"), term("b")))


@pytest.mark.parametrize(
    "text",
    [
        "(a",
        "a)",
        '"a',
        "a OR",
        "OR a",
        "a AND",
        "NOT",
        "level:",
        "level: a",
        "level:*",
        "ms:[1 5]",
        "ms:[1 TO 5",
        "ms:[TO 5]",
        "ms:> 5",
        "a ]",
        '"a b"~',
        '"a b"~0',
        '"a b"~21',
        '"a b"~2x',
        'ms:>"1"~2',
        'ms:["1"~2 TO 5]',
        '_since:"head"~2',
        "level:(a ms:5)",
        "a OR _since:head",
        "(_since:head a)",
        "_since:a _since:b",
        "(" * 41 + "a" + ")" * 41,
        "NOT " * 41 + "a",
        r"resource\.service\.name:shop",
        "resource.`service.name`:shop",
        "a e\u0301.b:x",
        "नाम:राम",
        "-@e\u0301:x",
        "a" * 20_001,
    ],
)
def test_parse_invalid_query_fails(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse(text)


@pytest.mark.parametrize("text", ["नाम राम", "level:नाम:राम", "e\u0301\\:x", '"e\u0301:x"', "☃:x", '"नाम":राम'])
def test_parse_combining_accents_in_values_are_accepted(text: str) -> None:
    parse(text)


@pytest.mark.parametrize("text", ['a"a"' * 5_000, '"a"' * 6_666, '"a' * 9_999, "a." * 10_000, "a.`" * 6_666])
def test_parse_long_query_takes_linear_time(text: str) -> None:
    began = time.process_time()
    with suppress(InvalidArgumentError):
        parse(text)
    assert time.process_time() - began < 3


@given(st.text(alphabet='ab:"()[]{}<>=-*\\ \tTOANDR_since1/é', max_size=40))
def test_parse_any_text_succeeds_or_explains_the_error(text: str) -> None:
    try:
        parse(text)
    except InvalidArgumentError as error:
        assert len(str(error)) > 10  # noqa: PT017


@pytest.mark.parametrize(
    "text",
    [
        'message:"one"~2',
        '"one two three"~2',
        'level:"a b"~2',
        'ms:"1 2"~2',
        " ".join(['message:"a b"~20'] * 26),
    ],
)
def test_bind_invalid_distance_fails(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        bind(parse(text).node, FIELDS)


@pytest.mark.parametrize(
    ("name", "number"),
    [("log.level", 0), ('"log.level"', 0), ('"log"."level"', 0), ('a."b.c"', 1), ('"a"."b.c"', 1), ('"a.b".c', 2)],
)
def test_bind_accepts_each_spelling_of_a_path(name: str, number: int) -> None:
    fields = fields_of('log.level:keyword,a."b.c":keyword,"a.b".c:keyword')
    assert bind(parse(f"{name}:x").node, fields) == Has(number, "x")


@pytest.mark.parametrize(
    "name",
    [
        "a.b.c",
        "log",
        "log..level",
        '"log"level',
    ],
)
def test_bind_unknown_field_fails(name: str) -> None:
    fields = fields_of('log.level:keyword,a."b.c":keyword,"a.b".c:keyword')
    with pytest.raises(InvalidArgumentError):
        bind(parse(f"{name}:x").node, fields)
