"""Counts of events by what a field holds, or by time. All of this blocks: call it in a thread."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_BUCKETS
from nadi.search.analysis import ORDER, ORDER_BITS, name_of
from nadi.search.fields import TIMES, Field, number_of

if TYPE_CHECKING:
    from tantivy import Query, Searcher

CAME = "_came"
_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALL = (1 << 32) - 1  # values of a segment of tantivy


def counted(
    searcher: Searcher,
    asked: Query,
    fields: tuple[Field, ...],
    by: str | None,
    interval_s: float | None,
    limit: int,
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
    low, high = ((one.replace(tzinfo=UTC) - _EPOCH).total_seconds() for one in (datetime.min, datetime.max))
    if not low < seconds < high:
        return (datetime.min if seconds <= low else datetime.max).replace(tzinfo=UTC)
    return _EPOCH + timedelta(microseconds=round(seconds * _US))
