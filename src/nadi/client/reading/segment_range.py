"""Part of one segment, as fast as its store sends it: for callers that read each segment of a slice separately.

Where they need none of the events' bytes, the store tells how long the events are: `event_places`.
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
from nadi.model.event import EventBlock, EventPlaces
from nadi.naming import parse_segment_name
from nadi.wire.event_sizes import EventSizes

_ids = itertools.count()


class ReadBytes(Protocol):
    """As `segment_input.read_bytes`: the bytes of a segment in order, or an error from where those given out end."""

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
    """The events of one segment between two event boundaries, as fast as its store sends them; or from wherever else
    `read` has its bytes."""
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
            f"{end:,} is not an event boundary of segment {segment}, or lies past its end ({reached:,})"
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
) -> AsyncGenerator[EventPlaces | EventBlock, None]:
    """Where the events between two event boundaries lie, as `read_segment_range` would give them, with
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
