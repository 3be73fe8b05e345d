"""Where events begin: found in the stored bytes, for the server keeps no index of events.

Every event has a header of 8 bytes, type 0 and the length of its payload, so from one boundary all later ones follow by
hopping. Extents begin at boundaries, since an append holds complete events; except those that continue an event too
large for one append, which are marked (`Extent.continues`). Where the bytes aren't events, the next extent's start
counts as a boundary. Where they are damaged, a walk resumes where readers do.

A walk may be long, for an append may hold a million events, and anyone who may read can ask for one. So only a few run
at a time, first come first served; each advances a little per turn of the loop.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np

from nadi.errors import DamagedDataError
from nadi.limits import HOPS_A_COMMAND, HOPS_A_TURN, LOCATE_BLOCK_BYTES, LOCATE_EXTENTS, WALKS_AT_ONCE
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire.fields import Buffer

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


def edges_around(record: SegmentRecord, target: int) -> tuple[int, int]:
    """The last boundary at or before an offset that lies in the segment, and the first after it, as extents show them.
    Both are the latter if the offset lies in an event of more extents than any event has."""
    extents, holding = record.extents, record.extent_index(target)
    first, last = holding, holding + 1
    while first and extents[first].continues and holding - first < LOCATE_EXTENTS:
        first -= 1
    while last < len(extents) and extents[last].continues and last - holding <= LOCATE_EXTENTS:
        last += 1
    end = record.length if last == len(extents) or extents[last].continues else extents[last].offset
    if first and extents[first].continues:
        return end, end
    return max(extents[first].offset, record.start_offset), end  # wherever it was truncated


class Walks:
    """The walks of one store; each caller holds a place of `places`."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self.places = asyncio.Semaphore(WALKS_AT_ONCE)

    async def boundary_from(self, target: int, begin: int, end: int, read: Read) -> int:
        """Return the first event boundary at or after `target`; `end` where the bytes from `begin` to there aren't
        events.

        begin, end: the nearest known boundaries, one at or before `target`, one at or after it. Events are followed
        across damage as readers are, so both ends of the damage reported to readers are boundaries. DamagedDataError:
        `target` lies in a damaged stretch.
        """
        at, found = begin, None
        block, block_at = memoryview(b""), begin
        while at < end:
            if found is None and at >= target:
                found = at
            if at + HEADER.size > end:
                return end
            if at + HEADER.size > block_at + len(block):
                try:
                    block, block_at = await _block(at, end, read), at
                except DamagedDataError as error:
                    if found is not None:
                        return found
                    if error.end_offset > target:
                        raise
                    at = error.end_offset
                    continue
                if len(block) < HEADER.size:  # the segment was deleted and recreated, and is shorter now
                    return end
            stop = end if found is not None else target
            hopped = await self._hop(block, at - block_at, stop - block_at)
            at = block_at + hopped.at
            if not hopped.is_event:
                return end
        return end if found is None or at > end else found

    async def _hop(self, block: memoryview, at: int, stop: int) -> Hopped:
        """Hop in a turn of the loop, as far as one allows."""
        hopped: list[Hopped] = []

        def work() -> int:
            hopped.append(hop(block, at, stop))
            return hopped[0].hops // HOPS_A_COMMAND

        await self._scheduler.do(work)
        return hopped[0]


async def _block(at: int, end: int, read: Read) -> memoryview:
    """Bytes from `at` on, at least a header, unless the segment ends before."""
    left = end - at
    block = more = memoryview(await read(at, min(LOCATE_BLOCK_BYTES, left)))
    while len(block) < HEADER.size and more:
        more = memoryview(await read(at + len(block), left - len(block)))
        block = memoryview(bytes(block) + bytes(more))
    return block
