"""Where events begin: found in the stored bytes, for the server keeps no index of events.

Every event has a header of 8 bytes, type 0 and the length of its payload, so from one boundary all later
ones follow by hopping. Extents begin at boundaries, since an append holds complete events; except those that continue
an event too large for one append. These are marked (`Extent.continues`), and never taken for a boundary, whatever
their bytes look like. Earlier versions made no marks, so a walk counts only if it ends at an extent's end;
otherwise it starts again one extent earlier. Where the bytes are damaged, a walk resumes where readers do.

A walk may be long, for an append may hold a million events, and anyone who may read can ask for one. So only a few run
at a time, first come first served; each advances a little per turn of the loop, and how far a walk may go beyond the
extent that holds the place is limited.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np

from nadi.errors import DamagedDataError
from nadi.limits import (
    HOPS_A_COMMAND,
    HOPS_A_TURN,
    LOCATE_ASTRAY_HOPS,
    LOCATE_BLOCK_BYTES,
    LOCATE_EXTENTS_BACK,
    WALKS_AT_ONCE,
)
from nadi.segmentstore.rota import Rota
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire.fields import Buffer

_MOST_LOOKED_AT = 10 * LOCATE_EXTENTS_BACK
_READ_HOPS = 500  # what reading a block costs, counted in hops

Read = Callable[[int, int], Awaitable[Buffer]]  # up to so many bytes from an offset, at least one


HEADER = struct.Struct(">ii")
_ROW = 16  # events of one size, after which to try whether more of them follow
_TRY_HOPS = 30  # what that costs, counted in hops,
_COMPARED_A_HOP = 40  # and how many compared headers count as one hop


class Hopped(NamedTuple):
    """Where it arrived, how many hops that was worth, and whether the bytes there may be an event."""

    at: int
    hops: int
    is_event: bool


def hop(block: memoryview, at: int, stop: int) -> Hopped:
    """Hop from the header at `at` to the first one at or after `stop`, or past the block, or as far as one turn
    allows.

    >>> events = memoryview(HEADER.pack(0, 3) + b"abc" + HEADER.pack(0, 1) + b"d" + HEADER.pack(1, 1))
    >>> hop(events, 0, 5)
    Hopped(at=11, hops=1, is_event=True)
    >>> hop(events, 0, 50)
    Hopped(at=20, hops=2, is_event=False)
    """
    end = min(stop, len(block) - HEADER.size + 1)
    hops = row = previous = 0
    needed = _ROW
    while at < end and hops < HOPS_A_TURN:
        kind, length = HEADER.unpack_from(block, at)
        if kind != 0 or length < 0:
            return Hopped(at, hops, False)
        size = HEADER.size + length
        at += size
        hops += 1
        row = row + 1 if size == previous else 0
        previous = size
        if row >= needed and at < end:
            count = _row(block, at - size, size, min(-(-(end - at) // size), _COMPARED_A_HOP * HOPS_A_TURN))
            at += count * size
            hops += _TRY_HOPS + count // _COMPARED_A_HOP
            row, needed = 0, _ROW if count > _ROW else 4 * needed
    return Hopped(at, hops, True)


def _row(block: memoryview, at: int, size: int, most: int) -> int:
    """How many of the next `most` headers, one every `size` bytes, equal the one at that position."""
    headers = np.ndarray((most + 1,), np.uint64, block, at, (size,))
    differs = headers != headers[0]
    first = int(differs.argmax())
    return first - 1 if differs[first] else most


async def event_begins(extent: Extent, chunks: ChunkStore) -> list[int]:
    """The positions in an extent where events may begin, as far as known; for a small chunk its start is enough."""
    begins = [] if extent.continues else [0]
    if extent.chunk and (extent.continues or extent.length > BLOCK_BYTES):
        described = await chunks.describe(extent.chunk, extent.length)
        inner = sorted(set(described.boundaries)) if described is not None else []
        begins += [begin for begin in inner if 0 < begin < extent.length]
    return begins


def edges_around(record: SegmentRecord, target: int) -> list[int]:
    """For `Walks.boundary_from`: where extents begin around an offset that lies in the segment, and an end.

    As many as count on each side, and no more are checked; before it, those that continue a large event count too.
    """
    holding = first = record.extent_index(target)
    while first and (
        holding - first < LOCATE_EXTENTS_BACK or (record.extents[first].continues and holding - first < _MOST_LOOKED_AT)
    ):
        first -= 1
    begins = [extent.offset for extent in record.extents[first : holding + 1] if not extent.continues]
    if first == 0:  # wherever it was truncated
        begins = [record.start_offset, *(begin for begin in begins if begin > record.start_offset)]
    later = record.extents[holding + 1 : holding + 1 + _MOST_LOOKED_AT]
    ends = [extent.offset for extent in later if not extent.continues]
    if len(ends) <= LOCATE_EXTENTS_BACK and holding + 1 + len(later) == len(record.extents):
        ends.append(record.length)
    return [*begins, *(ends[: LOCATE_EXTENTS_BACK + 1] or [record.length])]


class Walks:
    """The walks of one store. Each caller holds a place of `to_offsets` or of `behind_damage`: a walk to an offset may
    find damage and wait for a place of the latter, which never wait for one of the former."""

    def __init__(self, rota: Rota) -> None:
        self._rota = rota
        self.to_offsets = asyncio.Semaphore(WALKS_AT_ONCE)
        self.behind_damage = asyncio.Semaphore(WALKS_AT_ONCE)

    async def boundary_from(self, target: int, edges: Sequence[int], read: Read) -> int:
        """Return the first event boundary at or after `target`, which lies within the extents.

        edges: those from `edges_around`, and any others that are known. Events are followed across damage as readers
        are, so both ends of the damage reported to readers are boundaries. Where the bytes aren't events, return the
        first edge at or after `target`.

        Raises:
            DamagedDataError: `target` lies in a damaged stretch.
        """
        search = _Search(edges, read, self._rota)
        holding = bisect_right(edges, target) - 1
        for first in range(holding, max(-1, holding - LOCATE_EXTENTS_BACK), -1):
            found = await search.walk(first, target, holding)
            if found is not None:
                return found
            if search.is_spent:
                break
        return edges[bisect_left(edges, target)]

    async def first_event_at(self, edges: Sequence[int], read: Read) -> int:
        """Return the first edge where an event does begin; edges are places where one may, and the last one's end.

        From there events run to another edge, or to more damage, which is reported to whoever reads on. Where the
        bytes aren't events, or not soon, return the first edge.
        """
        search = _Search(edges, read, self._rota)
        for first in range(min(len(edges) - 1, LOCATE_EXTENTS_BACK)):
            if await search.walk(first, edges[first], first) is not None:
                return edges[first]
            if search.is_spent:
                break
        return edges[0]


class _Search:
    """The walks for one answer. `is_spent`: they went as far as they may beyond the first one's extent."""

    def __init__(self, edges: Sequence[int], read: Read, rota: Rota) -> None:
        self._edges, self._read, self._rota = edges, read, rota
        self._left = LOCATE_ASTRAY_HOPS
        self._is_first = True

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    async def walk(self, first: int, target: int, holding: int) -> int | None:
        """Hop from that edge over `target` to the next edge, or to damage; None if the bytes there aren't events.

        holding: from the edges after the first one and up to it, walks came to nothing.
        Raises DamagedDataError if readers would resume only after `target`.
        """
        edges, at, next_edge, found = self._edges, self._edges[first], first + 1, None
        block, begin = memoryview(b""), at
        is_first, self._is_first = self._is_first, False
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
                if next_edge <= holding:
                    return None
                next_edge += 1
            if at + HEADER.size > edges[-1]:
                return None
            is_astray = not is_first or next_edge > first + 1
            if is_astray and self.is_spent:
                return None
            if at + HEADER.size > begin + len(block):
                self._left -= _READ_HOPS * is_astray
                try:
                    block, begin = await self._block(at), at
                except DamagedDataError as error:
                    if found is not None:
                        return found
                    if error.end_offset > target:
                        raise
                    at = error.end_offset
                    continue
                if len(block) < HEADER.size:  # the segment was deleted and recreated, and is shorter now
                    return None
            stop = edges[next_edge] if found is not None else min(target, edges[next_edge])
            hopped = await self._hop(block, at - begin, stop - begin)
            at = begin + hopped.at
            self._left -= hopped.hops * is_astray
            if not hopped.is_event:
                return None

    async def _block(self, at: int) -> memoryview:
        """Bytes from `at` on, at least a header, unless the segment ends before."""
        left = self._edges[-1] - at
        block = more = memoryview(await self._read(at, min(LOCATE_BLOCK_BYTES, left)))
        while len(block) < HEADER.size and more:
            more = memoryview(await self._read(at + len(block), left - len(block)))
            block = memoryview(bytes(block) + bytes(more))
        return block

    async def _hop(self, block: memoryview, at: int, stop: int) -> Hopped:
        """Hop in a turn of the loop, as far as one allows."""
        hopped: list[Hopped] = []

        def work() -> int:
            hopped.append(hop(block, at, stop))
            return hopped[0].hops // HOPS_A_COMMAND

        await self._rota.do(work)
        return hopped[0]
