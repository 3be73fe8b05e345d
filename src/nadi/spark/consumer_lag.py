"""The lag of a query for programs: `nadi.spark.lag(query)`, read from what Spark reports of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far a query is behind the tails of the streams that it reads, as of its latest trigger.

    size_bytes: what it has not read, events' headers included. events: about how many these are; None if nothing is
    known of their size. seconds: for how long the oldest of them has waited; None if unknown. skipped_bytes: of
    truncated events that it had not read, at least, since it was started.
    """

    size_bytes: int
    events: int | None
    seconds: float | None
    skipped_bytes: int = 0


def lag(query: Any) -> QueryLag | None:
    """Return the lag of a streaming query; None before its first trigger, or if no source of it is nadi's.

    query: a `StreamingQuery`, or what a `StreamingQueryListener` gets as `event.progress`. Of several sources of nadi's
    bytes and events are summed, and the longest wait is told.

    >>> from nadi.spark import lag
    >>> behind = {"bytes": 5000, "events": 50, "seconds": 1.5}
    >>> lag({"sources": [{"latestOffset": {"cut": "...", "behind": behind}}]})
    QueryLag(size_bytes=5000, events=50, seconds=1.5, skipped_bytes=0)
    """
    progress = getattr(query, "lastProgress", query)
    if progress is None:
        return None
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    latest = [one for source in sources if (one := _latest(source)) is not None]
    if not latest:
        return None
    size, events, seconds = together(one["behind"] for one in latest).values()
    return QueryLag(size, events, seconds, sum(one.get("skipped_bytes", 0) for one in latest))


def together(behind: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several lags, as queries report them, as one; None is unknown."""
    lags = list(behind)
    events, seconds = [one["events"] for one in lags], [one["seconds"] for one in lags]
    return {
        "bytes": sum(one["bytes"] for one in lags),
        "events": None if None in events else sum(events),
        "seconds": None if None in seconds else max(seconds, default=0.0),
    }


def _latest(source: Any) -> Mapping[str, Any] | None:
    """A source's latest offset, if it is one of nadi's."""
    offset = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    return offset if isinstance(offset, Mapping) and isinstance(offset.get("behind"), Mapping) else None
