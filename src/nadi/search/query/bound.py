"""Binds a query to the fields of an index: texts become values, and words are split as in events.

Both tantivy and standing queries evaluate the result. A term without a field searches all texts of the index, or all
keywords if it doesn't have texts.

`translated` makes a tantivy query of a bound query; `within` excludes events before the stream's head, outside the
query's cuts, or in segments of other keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_PREFIX_BYTES, SEARCH_QUERY_PARTS, SEARCH_TOKEN_BYTES
from nadi.model.frontier import Bound as CutBound
from nadi.search.fields import (
    OFFSET,
    RANGES,
    SEGMENT,
    Field,
    Value,
    facet_of,
    name_of,
    number_of,
    schema_of,
    value_of,
    words_in,
)
from nadi.search.query.parser import And, Node, Not, Or, Range, Term
from nadi.search.shards.manifest import ShardManifest

if TYPE_CHECKING:
    from tantivy import Query


@dataclass(frozen=True, slots=True)
class Has:
    """The field has that value; a text that word, a facet that path or a child of it."""

    field: int
    value: Value


@dataclass(frozen=True, slots=True)
class Follow:
    """The text has these words in a row."""

    field: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """The text has both words, at most `apart` words apart, in any order."""

    field: int
    words: tuple[str, str]
    apart: int


@dataclass(frozen=True, slots=True)
class Starts:
    """The text has a word with that prefix, or the keyword has it."""

    field: int
    prefix: str


@dataclass(frozen=True, slots=True)
class Between:
    field: int
    low: Value | None
    high: Value | None
    with_low: bool
    with_high: bool


Leaf: TypeAlias = Has | Follow | Close | Starts | Between
Bound: TypeAlias = "Leaf | And[Bound] | Or[Bound] | Not[Bound]"


def bind(node: Node, fields: tuple[Field, ...]) -> Bound:
    """Bind a parsed query; InvalidArgumentError for unknown fields, or values that a kind can't have."""
    bound = _bound(node, fields)
    terms = (2 * leaf.apart if isinstance(leaf, Close) else 1 for leaf in leaves(bound))  # tantivy only has phrases
    if (count := sum(terms)) > SEARCH_QUERY_PARTS:
        raise InvalidArgumentError(f"the query has {count:,} terms: use at most {SEARCH_QUERY_PARTS:,}")
    return bound


def leaves(bound: Bound, *, excluded: bool = True) -> Iterator[Leaf]:
    """Yield the leaves of a query, with or without excluded ones."""
    if isinstance(bound, And | Or):
        for part in bound.parts:
            yield from leaves(part, excluded=excluded)
    elif not isinstance(bound, Not):
        yield bound
    elif excluded:
        yield from leaves(bound.part)


def _bound(node: Node, fields: tuple[Field, ...]) -> Bound:
    match node:
        case And(parts):
            return And(tuple(_bound(part, fields) for part in parts))
        case Or(parts):
            return Or(tuple(_bound(part, fields) for part in parts))
        case Not(part):
            return Not(_bound(part, fields))
        case Range():
            return _range(node, fields)
        case Term(field):
            bound = tuple(_leaf(number, fields[number], node) for number in _about(field, fields))
            return bound[0] if len(bound) == 1 else Or(bound)


def _about(name: str | None, fields: tuple[Field, ...]) -> list[int]:
    """Return the numbers of a term's fields: of the name, or all fields searched without one."""
    if name is None:
        kinds = [field.kind for field in fields]
        usual = "text" if "text" in kinds else "keyword"
        if usual not in kinds:
            raise InvalidArgumentError("the index doesn't have texts or keywords: name a field, as in name:value")
        return [number for number, kind in enumerate(kinds) if kind == usual]
    number = number_of(fields, name)
    if number is None:
        names = ", ".join(field.name for field in fields)
        raise InvalidArgumentError(
            f"the index doesn't have the field {name[:60]!r}, only {names}; quote a text with a colon"
        )
    return [number]


def _leaf(number: int, field: Field, node: Term) -> Bound:
    if field.kind == "text":
        return _of_text(number, field, node)
    if node.apart:
        raise InvalidArgumentError(f"{field.name} is a {field.kind}: ~ needs a text")
    if not node.is_prefix:
        return Has(number, _value(field, node.text))
    if field.kind != "keyword":
        raise InvalidArgumentError(f"{field.name} is a {field.kind}: {node.text!r}* needs a text or keyword")
    return _starts(number, node.text)


def _range(node: Range, fields: tuple[Field, ...]) -> Bound:
    (number,) = _about(node.field, fields)
    field = fields[number]
    if field.kind not in RANGES:
        raise InvalidArgumentError(f"{field.name} is a {field.kind}: a range needs one of {', '.join(RANGES)}")
    low, high = (None if text is None else _value(field, text) for text in (node.low, node.high))
    return Between(number, low, high, node.with_low, node.with_high)


def _value(field: Field, text: str) -> Value:
    try:
        return value_of(field.kind, text)
    except ValueError as error:
        raise InvalidArgumentError(f"the query's value of {field.name} is {error}") from None


def _starts(number: int, prefix: str) -> Starts:
    if len(prefix.encode()) > SEARCH_PREFIX_BYTES:
        raise InvalidArgumentError(f"the prefix {prefix[:40]!r}… is too long: use at most {SEARCH_PREFIX_BYTES} bytes")
    return Starts(number, prefix)


def _of_text(number: int, field: Field, node: Term) -> Bound:
    words = words_in(node.text)
    if not words and any(char.isalnum() for char in node.text):
        raise InvalidArgumentError(
            f"{node.text[:60]!r}… is too long for a word of {field.name}: words have at most {SEARCH_TOKEN_BYTES} bytes"
        )
    if not words:
        raise InvalidArgumentError(f"{node.text[:60]!r} is not a word: {field.name} needs letters or digits")
    if node.apart:
        if len(words) != 2:
            raise InvalidArgumentError(f"{node.text[:60]!r}~{node.apart} needs two words, not {len(words)}")
        return Close(number, (words[0], words[1]), node.apart)
    if node.is_prefix:
        if len(words) > 1:
            raise InvalidArgumentError(f"{node.text[:60]!r} is several words: a prefix is of one word")
        return _starts(number, words[0])
    return Has(number, words[0]) if len(words) == 1 else Follow(number, tuple(words))


_SPECIAL = re.compile(r"[][.*+?(){}|^$\\&~#-]")  # special in tantivy's regular expressions


def translated(bound: Bound, fields: tuple[Field, ...]) -> Query:
    """Return tantivy's query for shards with these fields."""
    from tantivy import FieldType, Occur, Query

    schema = schema_of(fields)

    def of(part: Bound) -> Query:
        match part:
            case And(()):
                return Query.all_query()
            case And(parts):
                clauses = [(Occur.MustNot, of(p.part)) if isinstance(p, Not) else (Occur.Must, of(p)) for p in parts]
                if all(isinstance(p, Not) for p in parts):
                    clauses.append((Occur.Must, Query.all_query()))
                return Query.boolean_query(clauses)
            case Or(parts):
                return Query.boolean_query([(Occur.Should, of(p)) for p in parts])
            case Not(inner):
                return Query.boolean_query([(Occur.Must, Query.all_query()), (Occur.MustNot, of(inner))])
            case Follow(number, words):
                return Query.phrase_query(schema, name_of(number), list(words))
            case Close(number, words, apart):
                distances = [
                    [(0, first), (by, other)] for first, other in (words, words[::-1]) for by in range(1, apart + 1)
                ]
                phrases = [Query.phrase_query(schema, name_of(number), distance) for distance in distances]
                return Query.boolean_query([(Occur.Should, phrase) for phrase in phrases])
            case Starts(number, prefix):
                escaped = _SPECIAL.sub(lambda match: "\\" + match[0], prefix)
                return Query.regex_query(schema, name_of(number), f"{escaped}(?s:.*)")
            case Between(number, None, None, _, _):
                return Query.exists_query(name_of(number))
            case Between(number, low, high, with_low, with_high):
                kind = FieldType.Float if fields[number].kind == "double" else FieldType.Integer
                borders = (with_low or low is None, with_high or high is None)  # tantivy: missing bounds are inclusive
                return Query.range_query(schema, name_of(number), kind, low, high, *borders)
            case Has(number, value):
                meant = facet_of(str(value)) if fields[number].kind == "facet" else value
                return Query.term_query(schema, name_of(number), meant)

    return of(bound)


def within(
    query: Query,
    fields: tuple[Field, ...],
    manifest: ShardManifest,
    lows: Sequence[CutBound],
    highs: CutBound | None,
    keys: tuple[str, ...] | None,
) -> Query:
    """Restrict `asked` to events after all of `lows`, before `highs`, in segments that may have one of the keys."""
    from tantivy import FieldType, Occur, Query

    def between(name: str, low: int | None, high: int | None) -> tuple[Occur, Query]:
        return Occur.Must, Query.range_query(schema_of(fields), name, FieldType.Unsigned, low, high)

    spans: dict[int, tuple[int, int]] = {}  # by segment, the range of events that shards may have
    for shard in manifest.shards:
        for segment, start, end in shard.spans:
            low, high = spans.get(segment, (start, end))
            spans[segment] = min(low, start), max(high, end)
    outside = []
    for segment, (start, end) in spans.items():
        own, of_segment = manifest.segments[segment].range, between(SEGMENT, segment, segment)
        low = max((end if limit is None else limit for limit in (bound.limit(own) for bound in lows)), default=0)
        limit = None if highs is None else highs.limit(own)
        high = end if limit is None else limit
        if low >= end or high <= start or (keys is not None and not own.takes_any(keys)):
            outside.append([of_segment])
            continue
        if low > start:
            outside.append([of_segment, between(OFFSET, None, low - 1)])
        if high < end:
            outside.append([of_segment, between(OFFSET, high, None)])
    if not outside:
        return query
    return Query.boolean_query(
        [(Occur.Must, query), *((Occur.MustNot, Query.boolean_query(bound)) for bound in outside)]
    )
