"""Where events begin: found in the stored bytes, for the server keeps no index of events.

Every event has a header of 8 bytes, type 0 and the length of its payload, so from one boundary all later
ones follow by hopping. Extents begin at boundaries, for an append holds whole events; except those that go on with an
event that was too large for one append. These are marked (`Extent.continues`), and never taken for a boundary, whatever
their bytes look like. Earlier versions made no marks: so a walk counts only if it comes out at an extent's end, and
otherwise starts one extent earlier. Where the bytes are damaged, a walk goes on where readers do.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence

from nadi.errors import DamagedDataError
from nadi.limits import LOCATE_EXTENTS_BACK, READ_REPLY_MAX_BYTES
from nadi.segmentstore.records import Extent, SegmentRecord
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire.fields import Buffer

_HEADER = struct.Struct(">ii")

Read = Callable[[int, int], Awaitable[Buffer]]  # up to so many bytes from an offset, at least one


async def event_begins(extent: Extent, chunks: ChunkStore) -> list[int]:
    """The positions in an extent where events may begin, as far as is told; of a small chunk its begin is enough."""
    begins = [] if extent.continues else [0]
    if extent.chunk and (extent.continues or extent.length > BLOCK_BYTES):
        described = await chunks.describe(extent.chunk, extent.length)
        inner = sorted(set(described.boundaries)) if described is not None else []
        begins += [begin for begin in inner if 0 < begin < extent.length]
    return begins


def edges_around(record: SegmentRecord, target: int) -> list[int]:
    """For `boundary_from`: where extents begin around an offset that lies in the segment, and where the last ends."""
    first, found = record.extent_index(target), 0
    while first:
        found += not record.extents[first].continues
        if found > LOCATE_EXTENTS_BACK:
            break
        first -= 1
    begins = [extent.offset for extent in record.extents[first:] if not extent.continues]
    if first == 0:  # wherever it was truncated
        begins = [record.start_offset, *(begin for begin in begins if begin > record.start_offset)]
    return [*begins, record.length]


async def boundary_from(target: int, edges: Sequence[int], read: Read) -> int:
    """The first event boundary at or after `target`, which lies within the extents.

    edges: as `edges_around` gives them. Events are followed over damage as readers are, so both ends of what a reader is
    told of are boundaries. Where the bytes are no events, the answer is the first edge at or after `target`.

    Raises:
        DamagedDataError: `target` lies in a damaged stretch.
    """
    holding = bisect_right(edges, target) - 1
    for first in range(holding, max(-1, holding - LOCATE_EXTENTS_BACK), -1):
        found = await _walk(target, edges[first:], read)
        if found is not None:
            return found
    return edges[bisect_left(edges, target)]


async def first_event_at(edges: Sequence[int], read: Read) -> int:
    """The first of the edges, which are places where events may begin and the last one's end, where one does.

    From there events go on to another edge, or to more damage: whoever reads on is told of that too. Where the bytes
    are no events, or not soon, the answer is the first edge.
    """
    for first in range(min(len(edges) - 1, LOCATE_EXTENTS_BACK)):
        if await _walk(edges[first], edges[first:], read) is not None:
            return edges[first]
    return edges[0]


async def _walk(target: int, edges: Sequence[int], read: Read) -> int | None:
    """Hop from the first edge over `target` to the next edge, or to damage; None if the bytes there are no events.

    DamagedDataError if readers would go on behind `target` only.
    """
    at, next_edge, found = edges[0], 1, None
    block, begin = memoryview(b""), at
    while True:
        while edges[next_edge] < at:
            next_edge += 1
            if next_edge == len(edges):
                return None  # an event longer than the segment
        if found is None and at >= target:
            found = at
        if at == edges[next_edge]:
            if found is not None:
                return found
            next_edge += 1
        if at + _HEADER.size > edges[-1]:
            return None
        if at + _HEADER.size > begin + len(block):
            try:
                block, begin = await _block(at, edges[-1], read), at
            except DamagedDataError as error:
                if found is not None:
                    return found
                if error.end_offset > target:
                    raise
                at = error.end_offset
                continue
        kind, length = _HEADER.unpack_from(block, at - begin)
        if kind != 0 or length < 0:
            return None
        at += _HEADER.size + length


async def _block(at: int, end: int, read: Read) -> memoryview:
    """Bytes from `at` on, at least a header; others get their turn meanwhile."""
    await asyncio.sleep(0)
    block = memoryview(await read(at, min(READ_REPLY_MAX_BYTES, end - at)))
    while len(block) < _HEADER.size:
        block = memoryview(bytes(block) + bytes(await read(at + len(block), end - at - len(block))))
    return block
