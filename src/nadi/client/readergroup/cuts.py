"""Stream cuts as a group's state holds them: by full segment names, with the segments' keys."""

from __future__ import annotations

from nadi.client.readergroup.state import NamedRange
from nadi.client.reading.boundary import check_boundary, segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name


async def pieces_of(stores: SegmentStores, cut: StreamCut) -> list[tuple[NamedRange, int]]:
    """Return a cut's segments with keys and offsets; InvalidStreamCutError if it isn't a boundary of the stream."""
    ranges = await segment_ranges(stores, cut.scope, cut.stream, cut)
    await check_boundary(stores, cut)
    return [
        (NamedRange(segment_name(cut.scope, cut.stream, r.segment_id), r.low, r.high), cut.positions[r.segment_id])
        for r in ranges
    ]
