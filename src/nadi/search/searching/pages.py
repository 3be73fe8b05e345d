"""The hits of a page, and counts, as tantivy gives them; and where a page ends, as a text that the next begins with: it
stays right whatever is indexed, merged or deleted meanwhile.

The newest are listed by their orders, and go on behind the last one. So do the best, by how well they fit, as of one
cut that the text has with it. Their weights change with each event that is indexed; so whoever made the first page
keeps the index as it was for the next ones, a few such, and elsewhere two hits that fit about alike may change places
between two pages.
"""

from __future__ import annotations

import base64
import binascii
import math
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_BEST_HITS, SEARCH_BUCKETS, SEARCH_PAGE_BYTES
from nadi.search.fields import OFFSET, ORDER, ORDER_BITS, SEGMENT, SIZE, TIMES, Field, name_of, number_of, schema_of

if TYPE_CHECKING:
    from tantivy import DocAddress, Query, Searcher

_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Placed(NamedTuple):
    """Where an event is, and where it ends; order: see `shards.building`. score: of the best, how well it fits."""

    order: int
    segment: int
    offset: int
    end: int
    score: float | None = None

    @property
    def came(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.order >> ORDER_BITS)

    @property
    def rank(self) -> tuple[float, int, int, int]:
        return -(self.score or 0.0), -self.order, -self.segment, -self.offset

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset


class After(msgspec.Struct, frozen=True, array_like=True):
    """question: a digest of what was asked. order, segment, offset: of the last hit. Of the best also its score, the
    cut as of which they are listed, and the generation of the manifest."""

    question: str
    order: _Number = 0
    segment: _Number = 0
    offset: _Number = 0
    score: float = 0.0
    as_of: str = ""
    generation: _Number = 0

    def as_text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def after_of(text: str, question: str) -> After:
    """What `After.as_text` wrote; InvalidArgumentError if it is something else, or of another question."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.msgpack.decode(raw, type=After)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise InvalidArgumentError(f"{text[:40]!r} is not where a page ended: give the `next` of one") from error
    if found.question != question:
        raise InvalidArgumentError("the page is of another query: ask the same, with the same order and bounds")
    return found


def fitting(found: Sequence[Placed]) -> Sequence[Placed]:
    """The first, and those after it with which a page's events have no more bytes than a page may."""
    size = 0
    for number, one in enumerate(found):
        size += one.end - one.offset
        if number and size > SEARCH_PAGE_BYTES:
            return found[:number]
    return found


_LARGEST = (1 << 63) - 1


def listed(
    searcher: Searcher, asked: Query, fields: tuple[Field, ...], most: int, after: After | None, newest: bool
) -> tuple[list[Placed], int]:
    """The newest, or the oldest, behind where a page ended; and how many there are on all pages.

    Few events have the same order, if any, and those are listed by their places.
    """
    from tantivy import Order

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
        direction = Order.Desc if newest else Order.Asc
        hits = searcher.search(rest, left, count=False, order_by_field=ORDER, order=direction).hits
        some = _placed(searcher, [address for _, address in hits])
        if len(some) == left:  # the last may be some of those with one order
            last = some[-1].order
            some = [one for one in some if one.order != last] + _same(searcher, asked, fields, last, newest)
        found += sorted(some, reverse=newest)[:left]
    return found, count


def best(searcher: Searcher, asked: Query, most: int, after: After | None) -> tuple[list[Placed], int]:
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

    def placed(low: int, high: int) -> list[Placed]:
        """With all that share score and order with the first or the last of these, which are ranked by their places."""
        low = bisect_left(ranked, ranked[low][:2]) if low < len(ranked) else low
        high = bisect_left(ranked, (ranked[high - 1][0], ranked[high - 1][1] + 1)) if high > low else low
        some = _placed(searcher, [addresses[number] for _, _, number in ranked[low:high]])
        scored = [one._replace(score=-score) for one, (score, _, _) in zip(some, ranked[low:high], strict=True)]
        return sorted(scored, key=lambda one: one.rank)

    if after is None:
        return placed(0, min(most, len(ranked)))[:most], result.count
    last = Placed(after.order, after.segment, after.offset, 0, after.score).rank
    alike = {rank[:2]: number for number, rank in enumerate(ranked) if -rank[1] == after.order}
    for number in alike.values():
        for one in placed(number, number + 1):
            if one.place == (after.segment, after.offset):
                last = one.rank
    low = bisect_left(ranked, last[:2])
    shown = bisect_left(ranked, (last[0], last[1] + 1)) - low  # at most: those alike
    found = [one for one in placed(low, min(low + shown + most, len(ranked))) if one.rank > last]
    return found[:most], result.count


def _same(searcher: Searcher, asked: Query, fields: tuple[Field, ...], order: int, newest: bool) -> list[Placed]:
    """All with that order, by their places; as a segment has them, or the other way round."""
    hits = searcher.search(_within(asked, fields, order, order), SEARCH_BUCKETS, count=False).hits
    return sorted(_placed(searcher, [address for _, address in hits]), reverse=newest)


def _within(asked: Query, fields: tuple[Field, ...], low: int, high: int) -> Query:
    from tantivy import FieldType, Occur, Query

    orders = Query.range_query(schema_of(fields), ORDER, FieldType.Unsigned, low, high)
    return Query.boolean_query([(Occur.Must, asked), (Occur.Must, Query.const_score_query(orders, 0.0))])


def _placed(searcher: Searcher, addresses: Sequence[DocAddress]) -> list[Placed]:
    if not addresses:
        return []
    columns = [searcher.fast_field_values(name, list(addresses)) for name in (ORDER, SEGMENT, OFFSET, SIZE)]
    return [
        Placed(int(order), int(segment), int(offset), int(offset) + int(size))
        for order, segment, offset, size in zip(*columns, strict=True)
    ]


CAME = "_came"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = 1_000_000
_ALL = (1 << 32) - 1  # values of a segment of tantivy


def counted(
    searcher: Searcher, asked: Query, fields: tuple[Field, ...], by: str | None, interval_s: float | None, limit: int
) -> dict[Any, int]:
    """How many there are, by `by`: of a keyword, a bool or a long the most frequent values; of a date, or of `_came`,
    when they came, by intervals, each named by when it begins, those without any left out; of a number by intervals."""
    if by is None:
        if interval_s is not None:
            raise InvalidArgumentError("an interval is of times: say of which field, or of _came, by which it counts")
        return {"all": searcher.search(asked, 1).count}
    if not isinstance(limit, int) or not 0 < limit <= SEARCH_BUCKETS:
        raise InvalidArgumentError(f"a count has 1 to {SEARCH_BUCKETS:,} buckets, not {limit}")
    found = None if by == CAME else number_of(fields, by)
    if found is None and by != CAME:
        raise InvalidArgumentError(f"the index has no field {by[:60]!r} to count by: {CAME} is when events came")
    name, kind, unit = ORDER, "date", _US << ORDER_BITS
    if found is not None:
        name, kind, unit = name_of(found), fields[found].kind, _US
    if kind in ("text", "facet"):
        raise InvalidArgumentError(f"{by} is a {kind}: counts are by keywords, bools, numbers and times")
    if kind in TIMES and interval_s is None:
        raise InvalidArgumentError(f"{by} is a time: say by which interval it counts")
    if interval_s is None:
        return _by_value(searcher, asked, name, kind, limit)
    if kind in ("keyword", "bool") or not 0 < interval_s < math.inf:
        raise InvalidArgumentError(
            f"an interval is a finite number above 0, of a time or a number: not {interval_s} of {by}"
        )
    return _by_interval(searcher, asked, name, kind, interval_s, unit)


def _by_value(searcher: Searcher, asked: Query, name: str, kind: str, limit: int) -> dict[Any, int]:
    """Of each segment of tantivy's all values are taken: the most frequent of all may be rare in each."""
    terms = {"terms": {"field": name, "size": limit, "segment_size": _ALL}}
    buckets = _buckets(searcher, asked, terms, "ask for fewer events")
    made = {"bool": bool, "long": int, "double": float, "keyword": str}[kind]
    return {made(bucket["key"]): bucket["doc_count"] for bucket in buckets}


def _by_interval(searcher: Searcher, asked: Query, name: str, kind: str, interval: float, unit: int) -> dict[Any, int]:
    step = float(interval * unit) if kind in TIMES else float(interval)
    histogram = {"histogram": {"field": name, "interval": step, "min_doc_count": 1}}
    buckets = _buckets(searcher, asked, histogram, "take a longer interval")
    if len(buckets) > SEARCH_BUCKETS:
        raise InvalidArgumentError(
            f"the count has {len(buckets):,} buckets, and {SEARCH_BUCKETS:,} are the most: take a longer interval"
        )
    if kind not in TIMES:
        return {bucket["key"]: bucket["doc_count"] for bucket in buckets}
    counts: dict[Any, int] = {}
    for bucket in buckets:
        begins = _moment(bucket["key"] / unit)
        counts[begins] = counts.get(begins, 0) + bucket["doc_count"]
    return counts


def _buckets(searcher: Searcher, asked: Query, what: dict[str, Any], hint: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = searcher.aggregate(asked, {"by": what})["by"]["buckets"]
    except ValueError as error:  # it is given so much memory
        raise InvalidArgumentError(f"the count has too many buckets: {hint} ({error})") from error
    return found


def _moment(seconds: float) -> datetime:
    """A bucket may begin before the first datetime there is, though its events don't."""
    low, high = ((one.replace(tzinfo=UTC) - EPOCH).total_seconds() for one in (datetime.min, datetime.max))
    if not low < seconds < high:
        return (datetime.min if seconds <= low else datetime.max).replace(tzinfo=UTC)
    return EPOCH + timedelta(microseconds=round(seconds * _US))
