"""Hits in order, from tantivy. All of this blocks: call it in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nadi.limits import SEARCH_BEST_HITS, SEARCH_BUCKETS
from nadi.search.analysis import OFFSET, ORDER, SEGMENT, SIZE, schema_of
from nadi.search.asking.pages import After
from nadi.search.fields import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tantivy import DocAddress, Query, Searcher

_LARGEST = (1 << 63) - 1


class Placed(NamedTuple):
    """Where an event is, and where it ends; order: see `shards.building`."""

    order: int
    segment: int
    offset: int
    end: int

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset


def listed(
    searcher: Searcher, asked: Query, fields: tuple[Field, ...], most: int, after: After | None, newest: bool
) -> tuple[list[Placed], int]:
    """The newest, or the oldest, behind where a page ended; and how many there are on all pages.

    Few events have the same order, if any, and those are listed by their places.
    """
    count = searcher.search(asked, 1).count
    found: list[Placed] = []
    rest = asked
    if after is not None:
        same = _same(searcher, asked, fields, after.order)
        found = [one for one in same if one.place > (after.segment, after.offset)][:most]
        low, high = (None, after.order - 1) if newest else (after.order + 1, None)
        rest = _within(asked, fields, low, high)
    left = most - len(found)
    if left:
        some = _placed(searcher, _addresses(searcher, rest, left, newest))
        if len(some) == left:  # the last may be some of those with one order
            last = some[-1].order
            some = [one for one in some if one.order != last] + _same(searcher, asked, fields, last)
        found += sorted(some, key=lambda one: (-one.order if newest else one.order, one.place))[:left]
    return found, count


def best(
    searcher: Searcher, asked: Query, first: int, most: int
) -> tuple[list[tuple[Placed, float | None]], int, bool]:
    """`most` of the hits that fit best, from the one with number `first` on, the newest first of those that do so
    alike; how many there are; and whether there are more to be had."""
    result = searcher.search(asked, SEARCH_BEST_HITS)
    addresses = [address for _, address in result.hits]
    orders = searcher.fast_field_values(ORDER, addresses) if addresses else []
    ranked = sorted(
        (
            (round(float(score), 4), int(order), address)
            for (score, address), order in zip(result.hits, orders, strict=True)
        ),
        key=lambda one: (-one[0], -one[1]),
    )
    page = ranked[first : first + most]
    placed = _placed(searcher, [address for _, _, address in page])
    pairs: list[tuple[Placed, float | None]] = [(one, score) for one, (score, _, _) in zip(placed, page, strict=True)]
    return pairs, result.count, len(ranked) > first + most


def _same(searcher: Searcher, asked: Query, fields: tuple[Field, ...], order: int) -> list[Placed]:
    """All with that order, by their places."""
    hits = searcher.search(_within(asked, fields, order, order), SEARCH_BUCKETS, count=False).hits
    return sorted(_placed(searcher, [address for _, address in hits]), key=lambda one: one.place)


def _within(asked: Query, fields: tuple[Field, ...], low: int | None, high: int | None) -> Query:
    from tantivy import FieldType, Occur, Query

    orders = Query.range_query(
        schema_of(fields), ORDER, FieldType.Unsigned, low or 0, _LARGEST if high is None else high
    )
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
