"""Gets the hits of a page, and counts, from tantivy. The end of a page is a text from which the next page continues,
whatever is indexed, merged or deleted meanwhile.

The newest hits are listed by their orders and continue after the last order. The best continue after the last score,
ranked up to one cut, which the text contains. Scores change with each indexed event, so the process that made the first
page keeps that version of the index open for the next pages (a few versions). In another process, two hits with similar
scores may change places between two pages.
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


class HitPosition(NamedTuple):
    """An event's position and end; order: see `shards.building`. score: its relevance, for `best`."""

    order: int
    segment: int
    offset: int
    end: int
    score: float | None = None

    @property
    def arrival_time(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.order >> ORDER_BITS)

    @property
    def rank(self) -> tuple[float, int, int, int]:
        return -(self.score or 0.0), -self.order, -self.segment, -self.offset

    @property
    def position(self) -> tuple[int, int]:
        return self.segment, self.offset


class PageCursor(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page. question: a digest of the query and its arguments. order, segment, offset: of the last hit.
    For `best` also its score, the cut up to which hits are ranked, and the generation of the manifest."""

    question: str
    order: _Number = 0
    segment: _Number = 0
    offset: _Number = 0
    score: float = 0.0
    as_of: str = ""
    generation: _Number = 0

    def as_text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def after_of(text: str, question: str) -> PageCursor:
    """Decode `PageCursor.as_text`; InvalidArgumentError for other texts, or the page of another query."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        after = msgspec.msgpack.decode(raw, type=PageCursor)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise InvalidArgumentError(f"{text[:40]!r} is not the `next` of a page: pass `next` as `after`") from error
    if after.question != question:
        raise InvalidArgumentError("the page is of another query: repeat the same query, order and bounds")
    return after


def fitting(hits: Sequence[HitPosition]) -> Sequence[HitPosition]:
    """Return as many of the first hits as fit in a page's bytes, at least one."""
    size = 0
    for number, hit in enumerate(hits):
        size += hit.end - hit.offset
        if number and size > SEARCH_PAGE_BYTES:
            return hits[:number]
    return hits


_LARGEST = (1 << 63) - 1


def listed(
    searcher: Searcher, query: Query, fields: tuple[Field, ...], most: int, after: PageCursor | None, newest: bool
) -> tuple[list[HitPosition], int]:
    """Return the newest, or oldest, hits after a page's end, and the number of hits on all pages.

    The few hits that share an order are listed by position.
    """
    from tantivy import Order

    count = searcher.search(query, 1).count
    hits_found: list[HitPosition] = []
    low, high = 0, _LARGEST
    if after is not None:
        same = _same(searcher, query, fields, after.order, newest)
        position = (after.segment, after.offset)
        hits_found = [hit for hit in same if (hit.position < position if newest else hit.position > position)][:most]
        low, high = (0, after.order - 1) if newest else (after.order + 1, _LARGEST)
    missing = most - len(hits_found)
    if missing and low <= high:
        page_query = query if after is None else _within(query, fields, low, high)
        direction = Order.Desc if newest else Order.Asc
        hits = searcher.search(page_query, missing, count=False, order_by_field=ORDER, order=direction).hits
        page = _placed(searcher, [address for _, address in hits])
        if len(page) == missing:  # more hits may have the last order
            last = page[-1].order
            page = [hit for hit in page if hit.order != last] + _same(searcher, query, fields, last, newest)
        hits_found += sorted(page, reverse=newest)[:missing]
    return hits_found, count


def best(searcher: Searcher, query: Query, most: int, after: PageCursor | None) -> tuple[list[HitPosition], int]:
    """Return up to `most` of the best hits after a page's end, those with equal scores newest first, and the number of
    hits.

    If the index and so the scores have changed meanwhile, the page continues after the last event's new rank.
    """
    result = searcher.search(query, SEARCH_BEST_HITS)
    addresses = [address for _, address in result.hits]
    orders = searcher.fast_field_values(ORDER, addresses) if addresses else []
    ranked = sorted(
        (-round(float(score), 4), -int(order), number)
        for number, ((score, _), order) in enumerate(zip(result.hits, orders, strict=True))
    )

    def placed(low: int, high: int) -> list[HitPosition]:
        """Return these hits and all that share score and order with the first or last of them, sorted by position."""
        low = bisect_left(ranked, ranked[low][:2]) if low < len(ranked) else low
        high = bisect_left(ranked, (ranked[high - 1][0], ranked[high - 1][1] + 1)) if high > low else low
        hits = _placed(searcher, [addresses[number] for _, _, number in ranked[low:high]])
        scored = [hit._replace(score=-score) for hit, (score, _, _) in zip(hits, ranked[low:high], strict=True)]
        return sorted(scored, key=lambda hit: hit.rank)

    if after is None:
        return placed(0, min(most, len(ranked)))[:most], result.count
    last = HitPosition(after.order, after.segment, after.offset, 0, after.score).rank
    alike = {rank[:2]: number for number, rank in enumerate(ranked) if -rank[1] == after.order}
    for number in alike.values():
        for hit in placed(number, number + 1):
            if hit.position == (after.segment, after.offset):
                last = hit.rank
    low = bisect_left(ranked, last[:2])
    shown = bisect_left(ranked, (last[0], last[1] + 1)) - low  # an upper limit: hits of the same score and order
    hits_found = [hit for hit in placed(low, min(low + shown + most, len(ranked))) if hit.rank > last]
    return hits_found[:most], result.count


def _same(searcher: Searcher, query: Query, fields: tuple[Field, ...], order: int, newest: bool) -> list[HitPosition]:
    """Return all hits with that order, sorted by position, ascending or descending."""
    hits = searcher.search(_within(query, fields, order, order), SEARCH_BUCKETS, count=False).hits
    return sorted(_placed(searcher, [address for _, address in hits]), reverse=newest)


def _within(query: Query, fields: tuple[Field, ...], low: int, high: int) -> Query:
    from tantivy import FieldType, Occur, Query

    orders = Query.range_query(schema_of(fields), ORDER, FieldType.Unsigned, low, high)
    return Query.boolean_query([(Occur.Must, query), (Occur.Must, Query.const_score_query(orders, 0.0))])


def _placed(searcher: Searcher, addresses: Sequence[DocAddress]) -> list[HitPosition]:
    if not addresses:
        return []
    columns = [searcher.fast_field_values(name, list(addresses)) for name in (ORDER, SEGMENT, OFFSET, SIZE)]
    return [
        HitPosition(int(order), int(segment), int(offset), int(offset) + int(size))
        for order, segment, offset, size in zip(*columns, strict=True)
    ]


ARRIVAL_TIME = "_arrival_time"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = 1_000_000
_ALL = (1 << 32) - 1  # more than the values in a tantivy segment


def counted(
    searcher: Searcher, query: Query, fields: tuple[Field, ...], by: str | None, interval_s: float | None, limit: int
) -> dict[Any, int]:
    """Count hits by `by`: the most frequent values of a keyword, bool or long; intervals of a date or of
    `_arrival_time`, the arrival time, named by their start, without empty ones; or intervals of a number."""
    if by is None:
        if interval_s is not None:
            raise InvalidArgumentError("interval_s needs `by`: name a field, or _arrival_time")
        return {"all": searcher.search(query, 1).count}
    if not isinstance(limit, int) or not 0 < limit <= SEARCH_BUCKETS:
        raise InvalidArgumentError(f"limit must be 1 to {SEARCH_BUCKETS:,}, not {limit}")
    number = None if by == ARRIVAL_TIME else number_of(fields, by)
    if number is None and by != ARRIVAL_TIME:
        raise InvalidArgumentError(
            f"the index doesn't have the field {by[:60]!r}: name one of its fields, or {ARRIVAL_TIME} for arrival times"
        )
    name, kind, unit = ORDER, "date", _US << ORDER_BITS
    if number is not None:
        name, kind, unit = name_of(number), fields[number].kind, _US
    if kind in ("text", "facet"):
        raise InvalidArgumentError(f"{by} is a {kind}: count by a keyword, bool, number or time")
    if kind in TIMES and interval_s is None:
        raise InvalidArgumentError(f"{by} is a time: pass interval_s")
    if interval_s is None:
        return _by_value(searcher, query, name, kind, limit)
    if kind in ("keyword", "bool") or not 0 < interval_s < math.inf:
        raise InvalidArgumentError(
            f"interval_s must be finite and above 0, for a time or a number: not {interval_s} for {by}"
        )
    return _by_interval(searcher, query, name, kind, interval_s, unit)


def _by_value(searcher: Searcher, query: Query, name: str, kind: str, limit: int) -> dict[Any, int]:
    """Count all values in each tantivy segment: the most frequent value of all may be rare in each."""
    terms = {"terms": {"field": name, "size": limit, "segment_size": _ALL}}
    buckets = _buckets(searcher, query, terms, "narrow the query")
    convert = {"bool": bool, "long": int, "double": float, "keyword": str}[kind]
    return {convert(bucket["key"]): bucket["doc_count"] for bucket in buckets}


def _by_interval(searcher: Searcher, query: Query, name: str, kind: str, interval: float, unit: int) -> dict[Any, int]:
    step = float(interval * unit) if kind in TIMES else float(interval)
    histogram = {"histogram": {"field": name, "interval": step, "min_doc_count": 1}}
    buckets = _buckets(searcher, query, histogram, "use a longer interval")
    if len(buckets) > SEARCH_BUCKETS:
        raise InvalidArgumentError(
            f"the count has {len(buckets):,} buckets, more than {SEARCH_BUCKETS:,}: use a longer interval"
        )
    if kind not in TIMES:
        return {bucket["key"]: bucket["doc_count"] for bucket in buckets}
    counts: dict[Any, int] = {}
    for bucket in buckets:
        begins = _moment(bucket["key"] / unit)
        counts[begins] = counts.get(begins, 0) + bucket["doc_count"]
    return counts


def _buckets(searcher: Searcher, query: Query, aggregation: dict[str, Any], hint: str) -> list[dict[str, Any]]:
    try:
        buckets: list[dict[str, Any]] = searcher.aggregate(query, {"by": aggregation})["by"]["buckets"]
    except ValueError as error:  # tantivy's memory limit
        raise InvalidArgumentError(f"the count has too many buckets: {hint} ({error})") from error
    return buckets


def _moment(seconds: float) -> datetime:
    """Return the start of a bucket, which may be before the first datetime."""
    low, high = ((limit.replace(tzinfo=UTC) - EPOCH).total_seconds() for limit in (datetime.min, datetime.max))
    if not low < seconds < high:
        return (datetime.min if seconds <= low else datetime.max).replace(tzinfo=UTC)
    return EPOCH + timedelta(microseconds=round(seconds * _US))
