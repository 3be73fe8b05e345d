"""What a segment's store tells of its bytes: which are in tier 2, and where; when they came; and how long
the events in them are."""

from __future__ import annotations

from nadi.client.segments.stores import SegmentStores
from nadi.errors import ProtocolError, TruncatedError, UnavailableError
from nadi.limits import EVENT_SIZES_LISTED
from nadi.wire import commands as wire
from nadi.wire.chunks import Located, located_in
from nadi.wire.event_sizes import EventSizes, sizes_in
from nadi.wire.time_index import ARRIVAL, Moments, moments_in


async def locate_chunks(stores: SegmentStores, segment: str, start: int, end: int) -> Located:
    """The first chunks with bytes of the segment from `start` to `end`; none from a server that doesn't know the
    question. SegmentNotFoundError, TruncatedError, PermissionDeniedError as for a read."""
    if not await _knows(stores, segment, "locates_chunks"):
        return Located()
    try:
        return located_in(await stores.ask(wire.LocateChunks(0, segment, start, end, ""), wire.ChunksLocated))
    except TruncatedError as error:  # the reply doesn't say what was asked for
        raise TruncatedError(segment, start, error.start_offset) from error


async def list_moments(
    stores: SegmentStores, segment: str, start: int, end: int, clock: int = ARRIVAL
) -> Moments | None:
    """The first entries of a clock in the segment's time index for the bytes from `start` to `end`; None from a server
    that doesn't know the question. SegmentNotFoundError, PermissionDeniedError as for a read."""
    if not await _knows(stores, segment, "lists_moments"):
        return None
    found = moments_in(await stores.ask(wire.ListMoments(0, segment, start, end, "", clock), wire.MomentsListed))
    if len(found.offsets) and found.offsets[0] <= start:
        raise ProtocolError(
            f"moments of {segment} behind {start:,} were asked for, and others told: it would never end"
        )
    return found


async def list_event_sizes(
    stores: SegmentStores, segment: str, start: int, checked: int, end: int, most: int
) -> EventSizes | None:
    """How long the events from `start` to `end` are, a page of them, as `wire.ListEventSizes` says; None from a server
    that doesn't know the question. SegmentNotFoundError, TruncatedError, PermissionDeniedError as for a read; damage
    ends the page."""
    if not await _knows(stores, segment, "lists_event_sizes"):
        return None
    request = wire.ListEventSizes(0, segment, start, checked, end, min(most, EVENT_SIZES_LISTED), "")
    return sizes_in(request, await stores.ask(request, wire.EventSizesListed))


async def _knows(stores: SegmentStores, segment: str, question: str) -> bool:
    """Whether the segment's server knows it; True while that can't be reached, for whoever asks waits for it."""
    try:
        return bool(getattr(await stores.connection(segment), question))
    except UnavailableError:
        return True
