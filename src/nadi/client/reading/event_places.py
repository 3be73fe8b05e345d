"""Where a segment's events lie, told by its store: for callers that need none of their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.segment_range import ReadBytes, read_segment_range
from nadi.client.segments.located import list_event_sizes
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import InvalidArgumentError, TruncatedError
from nadi.limits import EVENT_SIZES_LISTED
from nadi.model.event import EventBlock, EventPlaces
from nadi.wire.event_sizes import EventSizes


async def event_places(
    stores: SegmentStores,
    segment: str,
    start: int,
    end: int,
    on_damage: OnDamage = RAISE,
    *,
    most: int | None = None,
    read: ReadBytes = read_bytes,
) -> AsyncGenerator[EventPlaces | EventBlock, None]:
    """Where the events between two event boundaries lie, as `segment_range.read_segment_range` would give them, with
    the same errors; about the first `most` of them alone, if that is given.

    From where the store doesn't know, or can't say, it is read after all, with `read`: so blocks come.
    """
    import numpy as np

    reached = checked = start
    left = most
    asked: asyncio.Task[EventSizes | None] | None = None

    def ask() -> asyncio.Task[EventSizes | None]:
        wanted = EVENT_SIZES_LISTED if left is None else left
        return asyncio.create_task(list_event_sizes(stores, segment, reached, checked, end, wanted))

    try:
        while reached < end and left != 0:
            asked = asked or ask()
            try:
                page = await asked
            except (TruncatedError, InvalidArgumentError):
                break  # a reader knows what is wrong, and where to go on
            asked = None
            if page is None or (page.reached, page.checked) <= (reached, checked):
                break
            places = EventPlaces(np.cumsum(page.sizes) - page.sizes, reached, page.reached - reached)
            reached, checked = page.reached, page.checked
            left = None if left is None else left - len(places)
            if reached < end and left != 0:
                asked = ask()  # the store finds them while these are used
            if len(places):
                yield places
    finally:
        if asked is not None:
            asked.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await asked
    if reached < end and left != 0:
        async with aclosing(read_segment_range(stores, segment, reached, end, on_damage, read=read)) as blocks:
            async for block in blocks:
                yield block
