"""The events of hits, from the stream: an index knows where they are, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.stores import SegmentStores
from nadi.errors import SegmentNotFoundError, TruncatedError
from nadi.limits import SEARCH_HITS_AT_ONCE
from nadi.naming import segment_name

Place = tuple[int, int, int]  # segment, offset, and where the event ends


async def events_at(stores: SegmentStores, scope: str, stream: str, places: Sequence[Place]) -> list[bytes | None]:
    """Each event; None for one that was truncated away meanwhile."""
    turns = asyncio.Semaphore(SEARCH_HITS_AT_ONCE)

    async def event(place: Place) -> bytes | None:
        segment, offset, end = place
        async with turns:
            try:
                blocks = read_segment_range(stores, segment_name(scope, stream, segment), offset, end)
                found = [data async for block in blocks for data in block.events()]
            except (TruncatedError, SegmentNotFoundError):
                return None
            assert len(found) == 1, f"{len(found)} events where one was indexed"
            return found[0]

    return list(await asyncio.gather(*map(event, places)))
