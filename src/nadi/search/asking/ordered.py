"""Hits in order, from tantivy. All of this blocks: call it in a thread."""

from __future__ import annotations

from bisect import bisect_left
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


def best(searcher: Searcher, asked: Query, most: int, after: After | None) -> tuple[list[tuple[Placed, float]], int]:
    """`most` of the hits that fit best, the newest first of those that do so alike, behind where a page ended; and how
    many fit.

    Where the index has changed meanwhile, so may have the scores: they go on behind the event that was the last.
    """
    result = searcher.search(asked, SEARCH_BEST_HITS)
    addresses = [address for _, address in result.hits]
    orders = searcher.fast_field_values(ORDER, addresses) if addresses else []
    ranked = sorted(
        (-round(float(score), 4), -int(order), number)
        for number, ((score, _), order) in enumerate(zip(result.hits, orders, strict=True))
    )

    def placed(low: int, high: int) -> list[tuple[Placed, float]]:
        """With all that share score and order with the first or the last of these, which are ranked by their places."""
        low = bisect_left(ranked, ranked[low][:2]) if low < len(ranked) else low
        high = bisect_left(ranked, (ranked[high - 1][0], ranked[high - 1][1] + 1)) if high > low else low
        some = _placed(searcher, [addresses[number] for _, _, number in ranked[low:high]])
        return sorted(zip(some, [-score for score, _, _ in ranked[low:high]], strict=True), key=_rank)

    if after is None:
        return placed(0, min(most, len(ranked)))[:most], result.count
    last = _rank((Placed(after.order, after.segment, after.offset, 0), after.score))
    alike = {rank[:2]: number for number, rank in enumerate(ranked) if -rank[1] == after.order}
    for number in alike.values():
        for one in placed(number, number + 1):
            if one[0].place == (after.segment, after.offset):
                last = _rank(one)
    low = bisect_left(ranked, last[:2])
    shown = bisect_left(ranked, (last[0], last[1] + 1)) - low  # at most: those alike
    found = [one for one in placed(low, min(low + shown + most, len(ranked))) if _rank(one) > last]
    return found[:most], result.count


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
