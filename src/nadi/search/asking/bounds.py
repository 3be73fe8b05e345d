"""What a query leaves out by where events lie: before the stream's head, outside of its cuts, or in segments of other
keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nadi.model.frontier import Bound
from nadi.search.fields import Field
from nadi.search.query.translation import outside
from nadi.search.shards.manifest import Manifest

if TYPE_CHECKING:
    from tantivy import Query


def within(
    asked: Query,
    fields: tuple[Field, ...],
    manifest: Manifest,
    lows: Sequence[Bound],
    highs: Bound | None,
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
    return Query.boolean_query([(Occur.Must, asked), *((Occur.MustNot, one) for one in outside(excluded, fields))])


def _spans(manifest: Manifest) -> dict[int, tuple[int, int]]:
    """From where up to where shards may have events, by segment."""
    found: dict[int, tuple[int, int]] = {}
    for shard in manifest.shards:
        for segment, start, end in shard.spans:
            low, high = found.get(segment, (start, end))
            found[segment] = (min(low, start), max(high, end))
    return found
