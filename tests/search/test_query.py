"""The query language: what texts mean, and what is wrong with others."""

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
def test_what_a_query_means(text: str, meant: Node) -> None:
    assert parse(text).node == meant


def test_the_bounds_of_a_query() -> None:
    found = parse("_since:2026-01-01T00:00Z error _until:tail")
    assert (found.node, found.since, found.until) == (term("error"), "2026-01-01T00:00Z", "tail")
    assert parse("_since:head").node == And(())
    assert parse('a _since:"a b" b').node == And((term("a"), term("b")))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("(a", "not closed"),
        ("a)", "nothing to close"),
        ('"a', "quote at character 1 is not closed"),
        ("a OR", "lacks what it is about"),
        ("OR a", "nothing before it"),
        ("a AND", "lacks"),
        ("NOT", "lacks"),
        ("level:", "lacks a value"),
        ("level: a", "lacks a value right behind it"),
        ("level:*", "says nothing"),
        ("ms:[1 5]", "lacks TO"),
        ("ms:[1 TO 5", "not closed"),
        ("ms:[TO 5]", "lacks a bound"),
        ("ms:> 5", "right behind it"),
        ("a ]", "out of place"),
        ('"a b"~', "lacks how many words apart"),
        ('"a b"~0', "1 to 20 words apart"),
        ('"a b"~21', "not '21'"),
        ('"a b"~2x', "1 to 20"),
        ('ms:>"1"~2', "not about a bound"),
        ('ms:["1"~2 TO 5]', "not about a bound"),
        ('_since:"head"~2', "not about a bound"),
        ("level:(a ms:5)", "stands within"),
        ("a OR _since:head", "bound the whole query"),
        ("(_since:head a)", "bounds the whole query"),
        ("_since:a _since:b", "stands twice"),
        ("(" * 41 + "a" + ")" * 41, "at most 40 parentheses"),
        ("NOT " * 41 + "a", "at most 40"),
        (r"resource\.service\.name:shop", r"put a name that has a dot, or .*, in quotes, as resource\."),
        ("resource.`service.name`:shop", "put a name that has a dot, or .*, in quotes"),
        ("a e\u0301.b:x", "'e\u0301.b:' at character 3 can't be read: put a name that has .* accent .* in quotes"),
        ("नाम:राम", "'नाम:' at character 1 can't be read"),
        ("-@e\u0301:x", "at character 2 can't be read"),
        ("a" * 20_001, "at most 20,000 characters"),
    ],
)
def test_what_is_no_query(text: str, word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        parse(text)


@pytest.mark.parametrize("text", ["नाम राम", "level:नाम:राम", "e\u0301\\:x", '"e\u0301:x"', "☃:x", '"नाम":राम'])
def test_words_with_accents_of_their_own_are_values(text: str) -> None:
    parse(text)


@pytest.mark.parametrize("text", ['a"a"' * 5_000, '"a"' * 6_666, '"a' * 9_999, "a." * 10_000, "a.`" * 6_666])
def test_long_query_without_a_field_is_split_in_a_moment(text: str) -> None:
    began = time.process_time()
    with suppress(InvalidArgumentError):
        parse(text)
    assert time.process_time() - began < 3


@given(st.text(alphabet='ab:"()[]{}<>=-*\\ \tTOANDR_since1/é', max_size=40))
def test_any_text_is_a_query_or_is_told_why_not(text: str) -> None:
    try:
        parse(text)
    except InvalidArgumentError as error:
        assert len(str(error)) > 10  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('message:"one"~2', "about two words, not 1"),
        ('"one two three"~2', "not 3"),
        ('level:"a b"~2', "only words of texts"),
        ('ms:"1 2"~2', "only words of texts"),
        (" ".join(['message:"a b"~20'] * 26), "1,040 terms"),
    ],
)
def test_what_words_near_each_other_are_not(text: str, word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        bind(parse(text).node, FIELDS)


@pytest.mark.parametrize(
    ("name", "number"),
    [("log.level", 0), ('"log.level"', 0), ('"log"."level"', 0), ('a."b.c"', 1), ('"a"."b.c"', 1), ('"a.b".c', 2)],
)
def test_field_is_meant_by_each_spelling_of_its_path(name: str, number: int) -> None:
    fields = fields_of('log.level:keyword,a."b.c":keyword,"a.b".c:keyword')
    assert bind(parse(f"{name}:x").node, fields) == Has(number, "x")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.b.c", "the index has no field 'a.b.c', only"),  # two may be
        ("log", "the index has no field 'log', only log.level, "),
        ("log..level", "'log..level' is not a field: a name is empty at character 5"),
        ('"log"level', "is not a field"),
    ],
)
def test_field_that_the_index_lacks_is_refused(name: str, why: str) -> None:
    fields = fields_of('log.level:keyword,a."b.c":keyword,"a.b".c:keyword')
    with pytest.raises(InvalidArgumentError, match=why):
        bind(parse(f"{name}:x").node, fields)
