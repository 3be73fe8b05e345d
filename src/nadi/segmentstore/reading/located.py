"""Which chunks have a segment's bytes, for those who read them without the store."""

from __future__ import annotations

from nadi.errors import TruncatedError
from nadi.limits import CHUNKS_LOCATED
from nadi.model.chunks import ChunkPart
from nadi.segmentstore.state.records import SegmentRecord


def located(record: SegmentRecord, start: int, end: int) -> tuple[list[ChunkPart], bool]:
    """The first chunks that have bytes from `start` to `end`, at most `CHUNKS_LOCATED`, and whether these are all.

    Without those that can't be checked, or were damaged when they were last looked at: what these have, the store gives
    out, or tells what is wrong with it. TruncatedError if the segment no longer has `start`.
    """
    if start < record.start_offset:
        raise TruncatedError(record.name, start, record.start_offset)
    parts: list[ChunkPart] = []
    if start >= record.length:
        return parts, True
    extents = record.extents
    for index in range(record.extent_index(start), len(extents)):
        extent = extents[index]
        if extent.offset >= end:
            break
        if extent.chunk and extent.checksums and not extent.aside:
            if len(parts) == CHUNKS_LOCATED:
                return parts, False
            parts.append(ChunkPart(extent.chunk, extent.offset, extent.length, extent.checksums))
    return parts, True
