"""Hits in order, from tantivy. All of this blocks: call it in a thread."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from nadi.limits import SEARCH_BEST_HITS, SEARCH_BUCKETS
from nadi.search.analysis import OFFSET, ORDER, SEGMENT, SIZE, schema_of
from nadi.search.asking.pages import After, Placed
from nadi.search.fields import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tantivy import DocAddress, Query, Searcher

_LARGEST = (1 << 63) - 1


def listed(
    searcher: Searcher, asked: Query, fields: tuple[Field, ...], most: int, after: After | None, newest: bool
) -> tuple[list[Placed], int]:
    """The newest, or the oldest, behind where a page ended; and how many there are on all pages.

    Few events have the same order, if any, and those are listed by their places.
    """
    count = searcher.search(asked, 1).count
    found: list[Placed] = []
    low, high = 0, _LARGEST
    if after is not None:
        same = _same(searcher, asked, fields, after.order, newest)
        place = (after.segment, after.offset)
        found = [one for one in same if (one.place < place if newest else one.place > place)][:most]
        low, high = (0, after.order - 1) if newest else (after.order + 1, _LARGEST)
    left = most - len(found)
    if left and low <= high:
        rest = asked if after is None else _within(asked, fields, low, high)
        some = _placed(searcher, _addresses(searcher, rest, left, newest))
        if len(some) == left:  # the last may be some of those with one order
            last = some[-1].order
            some = [one for one in some if one.order != last] + _same(searcher, asked, fields, last, newest)
        found += sorted(some, reverse=newest)[:left]
    return found, count


def best(searcher: Searcher, asked: Query, after: After | None) -> tuple[list[tuple[Placed, float]], int]:
    """The hits that fit best, the newest first of those that do so alike, behind where a page ended; and how many fit.

    Where the index has changed meanwhile, so may have the scores: they go on behind the event that was the last.
    """
    result = searcher.search(asked, SEARCH_BEST_HITS)
    placed = _placed(searcher, [address for _, address in result.hits])
    scores = [round(float(score), 4) for score, _ in result.hits]
    ranked = sorted(zip(placed, scores, strict=True), key=_rank)
    if after is None:
        return ranked, result.count
    last = (Placed(after.order, after.segment, after.offset, 0), after.score)
    at = next((number + 1 for number, (one, _) in enumerate(ranked) if one.place == last[0].place), None)
    return ranked[bisect_right(ranked, _rank(last), key=_rank) if at is None else at :], result.count


def _rank(one: tuple[Placed, float]) -> tuple[float, int, int, int]:
    placed, score = one
    return -score, -placed.order, -placed.segment, -placed.offset


def _same(searcher: Searcher, asked: Query, fields: tuple[Field, ...], order: int, newest: bool) -> list[Placed]:
    """All with that order, by their places; as a segment has them, or the other way round."""
    hits = searcher.search(_within(asked, fields, order, order), SEARCH_BUCKETS, count=False).hits
    return sorted(_placed(searcher, [address for _, address in hits]), reverse=newest)


def _within(asked: Query, fields: tuple[Field, ...], low: int, high: int) -> Query:
    from tantivy import FieldType, Occur, Query

    orders = Query.range_query(schema_of(fields), ORDER, FieldType.Unsigned, low, high)
    return Query.boolean_query([(Occur.Must, asked), (Occur.Must, Query.const_score_query(orders, 0.0))])


def _addresses(searcher: Searcher, asked: Query, most: int, newest: bool) -> list[DocAddress]:
    from tantivy import Order

    direction = Order.Desc if newest else Order.Asc
    hits = searcher.search(asked, most, count=False, order_by_field=ORDER, order=direction).hits
    return [address for _, address in hits]


def _placed(searcher: Searcher, addresses: Sequence[DocAddress]) -> list[Placed]:
    if not addresses:
        return []
    columns = [searcher.fast_field_values(name, list(addresses)) for name in (ORDER, SEGMENT, OFFSET, SIZE)]
    return [
        Placed(int(order), int(segment), int(offset), int(offset) + int(size))
        for order, segment, offset, size in zip(*columns, strict=True)
    ]
