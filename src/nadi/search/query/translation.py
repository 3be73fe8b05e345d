"""A bound query as one of tantivy's; and what it leaves out by where events lie: before the stream's head, outside of
its cuts, or in segments of other keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nadi.model.frontier import Bound as CutBound
from nadi.search.analysis import OFFSET, SEGMENT, facet_of, name_of, schema_of
from nadi.search.fields import Field
from nadi.search.query.bound import Between, Bound, Close, Follow, Has, Starts
from nadi.search.query.parser import And, Not, Or
from nadi.search.shards.manifest import Manifest

if TYPE_CHECKING:
    from tantivy import Query

_SPECIAL = re.compile(r"[][.*+?(){}|^$\\&~#-]")  # of tantivy's regular expressions


def translated(bound: Bound, fields: tuple[Field, ...]) -> Query:
    """The query for shards with these fields."""
    from tantivy import FieldType, Occur, Query

    schema = schema_of(fields)

    def of(part: Bound) -> Query:
        match part:
            case And(()):
                return Query.all_query()
            case And(parts):
                made = [(Occur.MustNot, of(p.part)) if isinstance(p, Not) else (Occur.Must, of(p)) for p in parts]
                if all(isinstance(p, Not) for p in parts):
                    made.append((Occur.Must, Query.all_query()))
                return Query.boolean_query(made)
            case Or(parts):
                return Query.boolean_query([(Occur.Should, of(p)) for p in parts])
            case Not(inner):
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


def _outside(excluded: dict[int, list[tuple[int | None, int | None]]], fields: tuple[Field, ...]) -> list[Query]:
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


def within(
    asked: Query,
    fields: tuple[Field, ...],
    manifest: Manifest,
    lows: Sequence[CutBound],
    highs: CutBound | None,
    keys: tuple[str, ...] | None,
) -> Query:
    """What is asked, of events behind all of `lows`, before `highs`, in segments that may have one of the keys."""
    from tantivy import Occur, Query

    excluded: dict[int, list[tuple[int | None, int | None]]] = {}
    for segment, (start, end) in _spans(manifest).items():
        reach = manifest.segments[segment]
        runs: list[tuple[int | None, int | None]] = []
        low = max((end if limit is None else limit for limit in (one.limit(reach.range) for one in lows)), default=0)
        high = end
        if highs is not None and (limit := highs.limit(reach.range)) is not None:
            high = limit
        if keys is not None and not reach.range.takes_any(keys):
            high = start
        if low >= end or high <= start:
            runs = [(None, None)]
        else:
            runs += [(None, low)] if low > start else []
            runs += [(high, None)] if high < end else []
        if runs:
            excluded[segment] = runs
    if not excluded:
        return asked
    return Query.boolean_query([(Occur.Must, asked), *((Occur.MustNot, one) for one in _outside(excluded, fields))])


def _spans(manifest: Manifest) -> dict[int, tuple[int, int]]:
    """From where up to where shards may have events, by segment."""
    found: dict[int, tuple[int, int]] = {}
    for shard in manifest.shards:
        for segment, start, end in shard.spans:
            low, high = found.get(segment, (start, end))
            found[segment] = (min(low, start), max(high, end))
    return found
