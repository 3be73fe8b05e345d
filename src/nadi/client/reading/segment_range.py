"""Read part of one segment at full speed, for callers that read each segment of a slice separately.

Callers that don't need the events' bytes get the sizes of the events from the store: `event_places`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Protocol

from nadi.client.reading.damage import RAISE, OnDamage, check_on_damage, note_skipped
from nadi.client.segments.assemble import events_in
from nadi.client.segments.byte_locations import list_event_sizes
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import DamagedDataError, InvalidArgumentError, TruncatedError
from nadi.limits import EVENT_SIZES_LISTED
from nadi.model.event import EventBlock, EventPositions
from nadi.naming import parse_segment_name
from nadi.wire.event_sizes import EventSizes

_ids = itertools.count()


class ReadBytes(Protocol):
    """A function like `segment_input.read_bytes`: yields a segment's bytes in order; its error applies behind them."""

    def __call__(
        self, stores: SegmentStores, segment: str, start: int, end: int, /, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]: ...


async def read_segment_range(
    stores: SegmentStores,
    segment: str,
    start: int,
    end: int,
    on_damage: OnDamage = RAISE,
    *,
    read: ReadBytes = read_bytes,
) -> AsyncGenerator[EventBlock, None]:
    """Yield the events of one segment between two event boundaries. read: the source of the bytes, by default the
    segment's store."""
    parse_segment_name(segment)
    check_on_damage(on_damage)
    purpose = f"segment reader {next(_ids)}"
    reached, is_over = start, False
    try:
        while reached < end and not is_over:
            pieces = read(stores, segment, reached, end, purpose=purpose)
            try:
                async with aclosing(events_in(pieces, segment, reached, end)) as blocks:
                    async for block in blocks:
                        yield block
                        reached = block.offset + block.size_bytes
                is_over = True
            except DamagedDataError as error:
                if on_damage == RAISE:
                    raise
                note_skipped([], error)
                reached = min(error.end_offset, end)
    finally:
        stores.release(purpose)
    if reached != end:
        raise InvalidArgumentError(
            f"offset {end:,} of segment {segment} is not an event boundary, or is past its end ({reached:,})"
        )


async def event_places(
    stores: SegmentStores,
    segment: str,
    start: int,
    end: int,
    on_damage: OnDamage = RAISE,
    *,
    most: int | None = None,
    read: ReadBytes = read_bytes,
) -> AsyncGenerator[EventPositions | EventBlock, None]:
    """Yield the offsets of the events between two event boundaries, with the errors of `read_segment_range`.

    most: stop after about this many events. From the offset where the store can't return the sizes, the events
    themselves are read with `read` and yielded as blocks.
    """
    import numpy as np

    reached = checked = start
    remaining = most
    request: asyncio.Task[EventSizes | None] | None = None

    def send_request() -> asyncio.Task[EventSizes | None]:
        count = EVENT_SIZES_LISTED if remaining is None else remaining
        return asyncio.create_task(list_event_sizes(stores, segment, reached, checked, end, count))

    try:
        while reached < end and remaining != 0:
            request = request or send_request()
            try:
                page = await request
            except (TruncatedError, InvalidArgumentError):
                break  # a reader determines the reason and where to resume
            request = None
            if page is None or (page.reached, page.checked) <= (reached, checked):
                break
            places = EventPositions(np.cumsum(page.sizes) - page.sizes, reached, page.reached - reached)
            reached, checked = page.reached, page.checked
            remaining = None if remaining is None else remaining - len(places)
            if reached < end and remaining != 0:
                request = send_request()  # the store works on the next page while the caller uses this one
            if len(places):
                yield places
    finally:
        if request is not None:
            request.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await request
    if reached < end and remaining != 0:
        async with aclosing(read_segment_range(stores, segment, reached, end, on_damage, read=read)) as blocks:
            async for block in blocks:
                yield block
