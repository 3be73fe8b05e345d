"""The lag of a query for programs: `nadi.spark.lag(query)`, from the progress that Spark reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The distance between a query and the tails of its streams, at its latest trigger.

    size_bytes: the unread bytes, including event headers. events: approximately how many events these are; None if the
    event size is unknown. seconds: how long the oldest of them has waited; None if unknown. skipped_bytes: a lower
    bound of truncated, unread bytes since the query was started.
    """

    size_bytes: int
    events: int | None
    seconds: float | None
    skipped_bytes: int = 0


def lag(query: Any) -> QueryLag | None:
    """Return the lag of a streaming query; None before its first trigger, and if no source is nadi's.

    query: a `StreamingQuery`, or the `event.progress` of a `StreamingQueryListener`. For several sources of nadi's,
    bytes and events are summed, and the longest wait is returned.

    >>> from nadi.spark import lag
    >>> measured = {"bytes": 5000, "events": 50, "seconds": 1.5}
    >>> lag({"sources": [{"latestOffset": {"cut": "...", "lag": measured}}]})
    QueryLag(size_bytes=5000, events=50, seconds=1.5, skipped_bytes=0)
    """
    progress = getattr(query, "lastProgress", query)
    if progress is None:
        return None
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    latest = [offset for source in sources if (offset := _latest(source)) is not None]
    if not latest:
        return None
    size, events, seconds = combined(offset["lag"] for offset in latest).values()
    return QueryLag(size, events, seconds, sum(offset.get("skipped_bytes", 0) for offset in latest))


def combined(lags: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine several lags, in the form that queries report, into one; None is unknown."""
    lags = list(lags)
    events, seconds = [each["events"] for each in lags], [each["seconds"] for each in lags]
    return {
        "bytes": sum(each["bytes"] for each in lags),
        "events": None if None in events else sum(events),
        "seconds": None if None in seconds else max(seconds, default=0.0),
    }


def _latest(source: Any) -> Mapping[str, Any] | None:
    """Return a source's latest offset, if the source is nadi's."""
    offset = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    return offset if isinstance(offset, Mapping) and isinstance(offset.get("lag"), Mapping) else None
