"""A query's first batch, run again: its end is in the checkpoint, its start is not.

So Spark asks for the start of a new query once more. By now the tail is another, a bookmark may be, and the group may
have been another query's: then that start may lie behind the batch's end.
"""

from __future__ import annotations

from collections.abc import Mapping

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segment_ranges
from nadi.errors import ConflictError, InvalidStreamCutError, NotFoundError, TruncatedError
from nadi.model.cutorder import compare
from nadi.model.streamcut import StreamCut
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading.query.offsets import Offset, Offsets


async def first_again(manager: StreamManager, options: ReadOptions, start: Offsets, end: Offsets) -> Offsets:
    """The start of the batch, not behind its end in any stream.

    ConflictError if the start is behind it because another query went on there.
    """
    passed = {name: one for name, one in end.streams.items() if await _is_passed(manager, start.streams, name, one.cut)}
    if passed and options.starts_at_group:
        ends, places = (", ".join(str(of[name].cut) for name in passed) for of in (end.streams, start.streams))
        raise ConflictError(
            f"this query's first batch, which is run again, ends at {ends}, and another query has gone on to {places} "
            f"in its place, in group {options.scope}/{options.group_id}. Start this one with a new checkpoint, if it "
            "is to go on instead"
        )
    return Offsets({**start.streams, **{name: Offset(one.cut) for name, one in passed.items()}})


async def _is_passed(manager: StreamManager, starts: Mapping[str, Offset], name: str, end: StreamCut) -> bool:
    """Whether the start lies behind the end on any key, if only in the successors of the end's segments: a batch that
    was planned from there never ends so."""
    start = starts[name].cut if name in starts else end
    if start == end:
        return False
    stores = stores_of(manager)
    try:
        found = [one for cut in (start, end) for one in await segment_ranges(stores, cut.scope, name, cut)]
    except (InvalidStreamCutError, NotFoundError, TruncatedError):  # who reads the batch says so
        return False
    return not compare(start, end, {one.segment_id: (one.low, one.high) for one in found}).is_at_or_before
