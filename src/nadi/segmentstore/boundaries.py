"""Where events begin: found in the stored bytes, for the server keeps no index of events.

Every event has a header of 8 bytes, type 0 and the length of its payload, so from one boundary all later
ones follow by hopping. Extents begin at boundaries, for an append holds whole events; except those in the
midst of an event that was too large for one append. So a walk counts only if it comes out at an
extent's end, and otherwise starts one extent earlier.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence

from nadi.errors import DamagedDataError
from nadi.limits import LOCATE_EXTENTS_BACK, READ_REPLY_MAX_BYTES
from nadi.wire.fields import Buffer

_HEADER = struct.Struct(">ii")

Read = Callable[[int, int], Awaitable[Buffer]]  # up to so many bytes from an offset, at least one


async def boundary_from(target: int, edges: Sequence[int], read: Read) -> int:
    """The first event boundary at or after `target`, which lies within the extents.

    edges: where the extents begin, in order, and where the last one ends. Where the bytes are no events, the
    answer is the first of these at or after `target`.
    """
    holding = bisect_right(edges, target) - 1
    for first in range(holding, max(-1, holding - LOCATE_EXTENTS_BACK), -1):
        found = await _walk(target, edges[first:], read)
        if found is not None:
            return found
    return edges[bisect_left(edges, target)]


async def first_event_at(edges: Sequence[int], read: Read) -> int:
    """The first of the edges, which are places where appends begin and the last one's end, where an event begins.

    From there events go on to another edge. A large event is appended in pieces, which begin within it. Where the
    bytes are no events, or not soon, the answer is the first edge.
    """
    for first in range(min(len(edges) - 1, LOCATE_EXTENTS_BACK)):
        try:
            if await _walk(edges[first], edges[first:], read) is not None:
                return edges[first]
        except DamagedDataError:
            return edges[first]  # whoever reads on is told of that too
    return edges[0]


async def _walk(target: int, edges: Sequence[int], read: Read) -> int | None:
    """Hop from the first edge over `target` to the next edge; None if the bytes there are no events."""
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
            block, begin = await _block(at, edges[-1], read), at
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
