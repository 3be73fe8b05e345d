"""A bound query as one of tantivy's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nadi.search.analysis import OFFSET, SEGMENT, facet_of, name_of, schema_of
from nadi.search.fields import Field
from nadi.search.query.bound import All, Any, Between, Bound, Close, Follow, Has, Starts, Without

if TYPE_CHECKING:
    from tantivy import Query

_SPECIAL = re.compile(r"[][.*+?(){}|^$\\&~#-]")  # of tantivy's regular expressions


def translated(bound: Bound, fields: tuple[Field, ...]) -> Query:
    """The query for shards with these fields."""
    from tantivy import FieldType, Occur, Query

    schema = schema_of(fields)

    def of(part: Bound) -> Query:
        match part:
            case All(()):
                return Query.all_query()
            case All(parts):
                made = [(Occur.MustNot, of(p.part)) if isinstance(p, Without) else (Occur.Must, of(p)) for p in parts]
                if all(isinstance(p, Without) for p in parts):
                    made.append((Occur.Must, Query.all_query()))
                return Query.boolean_query(made)
            case Any(parts):
                return Query.boolean_query([(Occur.Should, of(p)) for p in parts])
            case Without(inner):
                return Query.boolean_query([(Occur.Must, Query.all_query()), (Occur.MustNot, of(inner))])
            case Follow(number, words):
                return Query.phrase_query(schema, name_of(number), list(words))
            case Close(number, words, apart):
                places = [[(0, one), (by, other)] for one, other in (words, words[::-1]) for by in range(1, apart + 1)]
                phrases = [Query.phrase_query(schema, name_of(number), place) for place in places]
                return Query.boolean_query([(Occur.Should, phrase) for phrase in phrases])
            case Starts(number, prefix):
                escaped = _SPECIAL.sub(lambda found: "\\" + found[0], prefix)
                return Query.regex_query(schema, name_of(number), f"{escaped}(?s:.*)")
            case Between(number, None, None, _, _):
                return Query.exists_query(name_of(number))
            case Between(number, low, high, with_low, with_high):
                kind = FieldType.Float if fields[number].kind == "double" else FieldType.Integer
                borders = (with_low or low is None, with_high or high is None)  # tantivy wants no bound to be included
                return Query.range_query(schema, name_of(number), kind, low, high, *borders)
            case Has(number, value):
                meant = facet_of(str(value)) if fields[number].kind == "facet" else value
                return Query.term_query(schema, name_of(number), meant)

    return of(bound)


def outside(excluded: dict[int, list[tuple[int | None, int | None]]], fields: tuple[Field, ...]) -> list[Query]:
    """One query for each run of a segment's bytes whose events don't count: from an offset, up to before another."""
    from tantivy import FieldType, Occur, Query

    schema = schema_of(fields)

    def between(name: str, low: int | None, high: int | None) -> tuple[Occur, Query]:
        return Occur.Must, Query.range_query(schema, name, FieldType.Unsigned, low, high)

    found = []
    for segment, runs in excluded.items():
        for low, high in runs:
            parts = [between(SEGMENT, segment, segment)]
            if (low, high) != (None, None):
                parts.append(between(OFFSET, low, None if high is None else high - 1))
            found.append(Query.boolean_query(parts))
    return found
