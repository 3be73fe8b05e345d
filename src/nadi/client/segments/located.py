"""What a segment's store tells of its bytes: which are in tier 2, and where; and when they came."""

from __future__ import annotations

from nadi.client.segments.stores import SegmentStores
from nadi.errors import UnavailableError
from nadi.model.chunks import Located
from nadi.wire import commands as wire
from nadi.wire.chunks import located_in
from nadi.wire.moments import Moments, moments_in


async def locate_chunks(stores: SegmentStores, segment: str, start: int, end: int) -> Located:
    """The first chunks with bytes of the segment from `start` to `end`; none from a server that doesn't know the
    question. SegmentNotFoundError, TruncatedError, PermissionDeniedError as for a read."""
    try:
        connection = await stores.connection(segment)
    except UnavailableError:
        pass  # asking waits for the server
    else:
        if not connection.locates_chunks:
            return Located()
    return located_in(await stores.ask(wire.LocateChunks(0, segment, start, end, ""), wire.ChunksLocated))


async def list_moments(stores: SegmentStores, segment: str, start: int, end: int) -> Moments | None:
    """The first entries of the segment's time index for the bytes from `start` to `end`; None from a server that
    doesn't know the question. SegmentNotFoundError, PermissionDeniedError as for a read."""
    try:
        connection = await stores.connection(segment)
    except UnavailableError:
        pass  # asking waits for the server
    else:
        if not connection.lists_moments:
            return None
    return moments_in(await stores.ask(wire.ListMoments(0, segment, start, end, ""), wire.MomentsListed))
