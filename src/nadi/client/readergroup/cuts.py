"""Stream cuts as a group's state has them: by full names of segments, with their keys."""

from __future__ import annotations

from nadi.client.readergroup.state import KeyRange
from nadi.client.reading.reader import check_boundary, segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name


async def pieces_of(stores: SegmentStores, cut: StreamCut) -> list[tuple[KeyRange, int]]:
    """The segments of a cut with their keys; InvalidStreamCutError if it is no boundary of the stream."""
    ranges = await segment_ranges(stores, cut.scope, cut.stream, cut)
    await check_boundary(stores, cut)
    return [
        (KeyRange(segment_name(cut.scope, cut.stream, r.segment_id), r.low, r.high), cut.positions[r.segment_id])
        for r in ranges
    ]
