"""Ask a segment's store about its bytes: their chunks in tier 2, their arrival times, the sizes of their events."""

from __future__ import annotations

from nadi.client.segments.stores import SegmentStores
from nadi.errors import ProtocolError, TruncatedError, UnavailableError
from nadi.limits import EVENT_SIZES_LISTED
from nadi.wire import commands as wire
from nadi.wire.chunks import Located, located_in
from nadi.wire.event_sizes import EventSizes, sizes_in
from nadi.wire.time_index import ARRIVAL, Moments, moments_in


async def locate_chunks(stores: SegmentStores, segment: str, start: int, end: int) -> Located:
    """Return the first chunks with bytes of the segment from `start` to `end`; empty if the server lacks the command.
    Raises SegmentNotFoundError, TruncatedError and PermissionDeniedError like a read."""
    if not await _knows(stores, segment, "locates_chunks"):
        return Located()
    try:
        return located_in(await stores.ask(wire.LocateChunks(0, segment, start, end, ""), wire.ChunksLocated))
    except TruncatedError as error:  # the reply lacks the requested offset
        raise TruncatedError(segment, start, error.start_offset) from error


async def list_moments(
    stores: SegmentStores, segment: str, start: int, end: int, clock: int = ARRIVAL
) -> Moments | None:
    """Return a clock's first entries in the segment's time index for the bytes from `start` to `end`; None if the
    server lacks the command. Raises SegmentNotFoundError and PermissionDeniedError like a read."""
    if not await _knows(stores, segment, "lists_moments"):
        return None
    moments = moments_in(await stores.ask(wire.ListMoments(0, segment, start, end, "", clock), wire.MomentsListed))
    if len(moments.offsets) and moments.offsets[0] <= start:
        raise ProtocolError(
            f"the time index of {segment} returned offset {moments.offsets[0]:,}, not one after the requested {start:,}"
        )
    return moments


async def list_event_sizes(
    stores: SegmentStores, segment: str, start: int, checked: int, end: int, most: int
) -> EventSizes | None:
    """Return a page of the sizes of the events from `start` to `end`, as `wire.ListEventSizes` defines it; None if the
    server lacks the command. Raises SegmentNotFoundError, TruncatedError and PermissionDeniedError like a read; damage
    ends the page."""
    if not await _knows(stores, segment, "lists_event_sizes"):
        return None
    request = wire.ListEventSizes(0, segment, start, checked, end, min(most, EVENT_SIZES_LISTED), "")
    return sizes_in(request, await stores.ask(request, wire.EventSizesListed))


async def _knows(stores: SegmentStores, segment: str, capability: str) -> bool:
    """Return whether the segment's server has the capability; True while it can't be reached, because the request will
    wait for the server."""
    try:
        return bool(getattr(await stores.connection(segment), capability))
    except UnavailableError:
        return True
