"""Counts of events by what a field holds, or by time. All of this blocks: call it in a thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_BUCKETS
from nadi.search.analysis import ORDER, ORDER_BITS, name_of
from nadi.search.fields import Field

if TYPE_CHECKING:
    from tantivy import Query, Searcher

CAME = "_came"
_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    found = next(((number, field) for number, field in enumerate(fields) if field.name == by), None)
    if found is None and by != CAME:
        raise InvalidArgumentError(f"the index has no field {by[:60]!r} to count by: {CAME} is when events came")
    name, kind, unit = (ORDER, "date", _US << ORDER_BITS) if found is None else (name_of(found[0]), found[1].kind, _US)
    if kind in ("text", "facet"):
        raise InvalidArgumentError(f"{by} is a {kind}: counts are by keywords, bools, numbers and times")
    if kind == "date" and interval_s is None:
        raise InvalidArgumentError(f"{by} is a time: say by which interval it counts")
    if interval_s is None:
        return _by_value(searcher, asked, name, kind, limit)
    if kind in ("keyword", "bool") or not interval_s > 0:
        raise InvalidArgumentError(f"an interval is a number above 0, of a time or a number: not {interval_s} of {by}")
    return _by_interval(searcher, asked, name, kind, interval_s, unit)


def _by_value(searcher: Searcher, asked: Query, name: str, kind: str, limit: int) -> dict[Any, int]:
    terms = {"terms": {"field": name, "size": limit, "segment_size": SEARCH_BUCKETS}}
    buckets = searcher.aggregate(asked, {"by": terms})["by"]["buckets"]
    made = {"bool": bool, "long": int, "double": float, "keyword": str}[kind]
    return {made(bucket["key"]): bucket["doc_count"] for bucket in buckets}


def _by_interval(searcher: Searcher, asked: Query, name: str, kind: str, interval: float, unit: int) -> dict[Any, int]:
    step = float(interval * unit) if kind == "date" else float(interval)
    histogram = {"histogram": {"field": name, "interval": step, "min_doc_count": 1}}
    try:
        buckets = searcher.aggregate(asked, {"by": histogram})["by"]["buckets"]
    except ValueError as error:
        raise InvalidArgumentError(
            f"the count has more than {SEARCH_BUCKETS:,} buckets: take a longer interval ({error})"
        ) from error
    if kind != "date":
        return {bucket["key"]: bucket["doc_count"] for bucket in buckets}
    return {
        _EPOCH + timedelta(microseconds=round(bucket["key"] / unit * _US)): bucket["doc_count"] for bucket in buckets
    }
