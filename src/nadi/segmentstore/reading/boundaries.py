"""Finds the boundaries and sizes of events in the stored bytes, as the server has no index of events.

Extents start at boundaries, since an append contains complete events; except those that continue an event too large for
one append, which are marked (`Extent.continues`). From one boundary all later ones are found by following the headers.
If the bytes aren't events, the next extent's start counts as a boundary. At damaged bytes, a walk resumes where readers
do; a list of sizes ends there, as at the segment's end, and the caller continues.

Either may take long, since an append may contain a million events, and any reader can request one. So only a few run at
a time, first come first served; each advances a little per turn of the loop, and a response is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nadi import limits
from nadi.errors import DamagedDataError, InvalidArgumentError, ProtocolError
from nadi.limits import HOPS_A_COMMAND, HOPS_A_TURN
from nadi.model.framing import HEADER, HEADER_BYTES, event_starts
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from nadi.wire.event_sizes import Numbers, packed_sizes
from nadi.wire.fields import Buffer

Read = Callable[[int, int], Awaitable[Buffer]]  # (offset, approximate length) -> bytes, empty at the segment's end


async def event_begins(extent: Extent, chunks: ChunkStore) -> list[int]:
    """Return the positions in an extent where events may begin, as far as known; for a small chunk only its start."""
    begins = [] if extent.continues else [0]
    if extent.chunk and (extent.continues or extent.length > BLOCK_BYTES):
        described = await chunks.describe(extent.chunk, extent.length)
        inner = sorted(set(described.boundaries)) if described is not None else []
        begins += [begin for begin in inner if 0 < begin < extent.length]
    return begins


def edges_around(record: SegmentRecord, target: int) -> tuple[int, int]:
    """Return the last boundary at or before an offset in the segment, and the first one after it, as known from
    extents. Both are the latter if the offset is in an event of more extents than any event has."""
    extents, holding = record.extents, record.extent_index(target)
    first, last = holding, holding + 1
    while first and extents[first].continues and holding - first < limits.LOCATE_EXTENTS:
        first -= 1
    while last < len(extents) and extents[last].continues and last - holding <= limits.LOCATE_EXTENTS:
        last += 1
    end = record.length if last == len(extents) or extents[last].continues else extents[last].offset
    if first and extents[first].continues:
        return end, end
    return max(extents[first].offset, record.start_offset), end  # its start after truncation


class Walks:
    """The walks of one store; each caller takes one of `places`."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self.places = asyncio.Semaphore(limits.WALKS_AT_ONCE)

    async def boundary_from(self, target: int, begin: int, end: int, read: Read) -> int:
        """Return the first event boundary at or after `target`; `end` if the bytes from `begin` to there aren't events.
        begin, end: the nearest known boundaries, at or before `target`, and at or after it. The walk crosses damage as
        readers do, so both ends of the damage reported to readers are boundaries. DamagedDataError: `target` is in
        damaged bytes."""
        at, boundary = begin, None
        block, block_at = memoryview(b""), begin
        while at < end:
            if boundary is None and at >= target:
                boundary = at
            if at + HEADER_BYTES > end:
                return end
            if at + HEADER_BYTES > block_at + len(block):
                try:
                    block, block_at = await _with_header(at, min(limits.LOCATE_BLOCK_BYTES, end - at), read), at
                except DamagedDataError as error:
                    if boundary is not None:
                        return boundary
                    if error.end_offset > target:
                        raise
                    at = error.end_offset
                    continue
                if len(block) < HEADER_BYTES:  # the segment was deleted and recreated, and is shorter now
                    return end
            try:
                ends = at + await self._ends(block[at - block_at :])
            except ProtocolError:
                return end
            if boundary is None and (later := ends[ends >= target]).size:
                boundary = int(later[0])
            at = int(ends[-1])
        return end if boundary is None or at > end else boundary

    async def _ends(self, block: memoryview) -> Numbers:
        """Return the ends of events at the start of the block, at least of the first one, even if incomplete, as far as
        one turn of the loop allows; ProtocolError if they aren't events."""
        import numpy as np

        ends: list[Numbers] = []

        def work() -> int:
            starts, size = event_starts(block, max_steps=HOPS_A_TURN)
            ends.append(np.append(starts[1:], size or HEADER_BYTES + HEADER.unpack_from(block)[1]))
            return min(len(starts), HOPS_A_TURN) // HOPS_A_COMMAND

        await self._scheduler.do(work)
        return ends[0]


async def _with_header(at: int, most: int, read: Read) -> memoryview:
    """Read up to `most` bytes at `at`, at least a header, unless the segment or the range ends earlier."""
    block = more = memoryview(await read(at, most))
    while len(block) < min(HEADER_BYTES, most) and more:
        more = memoryview(await read(at + len(block), most - len(block)))
        block = memoryview(bytes(block) + bytes(more))
    return block[:most]  # a small read may return more bytes


class SizesOfEvents:
    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self._places = asyncio.Semaphore(limits.EVENT_SIZES_AT_ONCE)

    async def answer(self, command: wire.ListEventSizes, read: Read) -> wire.EventSizesListed:
        """Return the sizes of events. Raises as `read`, except for damage; InvalidArgumentError if the range is
        invalid."""
        if command.most <= 0 or command.checked < command.start:
            raise InvalidArgumentError("event sizes: most must be positive, and checked at least start")
        import numpy as np

        async with self._places:
            search = _BoundarySearch(self._scheduler, read, command)
            try:
                await search.walk()
            except (DamagedDataError, ProtocolError):  # readers report this error
                search.checked = search.reached
            sizes = np.concatenate(search.found) if search.found else np.empty(0, np.int64)
            return wire.EventSizesListed(
                command.request_id, command.segment, packed_sizes(sizes), search.reached, search.checked
            )


class _BoundarySearch:
    """One response: `found` sizes, which end at `reached`; the bytes are examined up to `checked`."""

    def __init__(self, scheduler: FairScheduler, read: Read, command: wire.ListEventSizes) -> None:
        self._scheduler, self._read, self._end = scheduler, read, command.end
        self._left = min(command.most, limits.EVENT_SIZES_LISTED)
        self.reached, self.checked = command.start, command.checked
        self.found: list[Numbers] = []

    async def walk(self) -> None:
        import numpy as np

        limit = min(self._end, self.checked + limits.EVENT_SIZES_SCANNED_BYTES)
        event_end = self.reached
        if self.checked > self.reached:  # the first event is partly examined
            header = await _with_header(self.reached, HEADER_BYTES, self._read)
            event_end = self._event_end(header, 0) if len(header) == HEADER_BYTES else 0
            if not self.checked <= event_end <= self._end:
                problem = f"no event at {self.reached:,} has bytes up to {self.checked:,} and beyond"
                raise InvalidArgumentError(problem)
        while self._left and self.checked < limit:
            if self.checked > self.reached:
                block = memoryview(await self._read(self.checked, limit - self.checked))[: limit - self.checked]
            else:
                block = await _with_header(self.checked, limit - self.checked, self._read)
            begin = self.checked
            if not len(block) or (len(block) < HEADER_BYTES and begin == self.reached):
                self.checked = self.reached
                return  # the segment's end, or the limit, is within a header
            self.checked = begin + len(block)
            if event_end > self.reached:
                if event_end > self.checked:
                    continue
                self._add(np.array([event_end - self.reached]))
            event_end = await self._events(block[self.reached - begin :])
            if event_end > self._end:
                break
            if event_end == self.reached:  # a partial header, to be read again; or enough events
                self.checked = self.reached
        if event_end > self._end:
            self.checked = self.reached

    async def _events(self, block: memoryview) -> int:
        """Add the complete events of a block that starts at `reached`; return the end of the next event, or `reached`
        if unknown."""
        import numpy as np

        at = 0
        while self._left and at + HEADER_BYTES <= len(block):
            size = await self._some(block[at:])
            at += size
            if size:
                continue
            end = self._event_end(block, at)
            if end - self.reached > len(block) - at:
                return end
            at += end - self.reached
            self._add(np.array([end - self.reached]))
        return self.reached

    async def _some(self, data: memoryview) -> int:
        """Add the complete events at the start of the data, in a turn of the loop; return their total size."""
        import numpy as np

        sizes: list[int] = []

        def work() -> int:
            starts, size = event_starts(data, self.reached, max_events=self._left, max_steps=limits.EVENT_SIZES_A_TURN)
            sizes.append(size)
            if size:
                self._add(np.diff(starts, append=size))
            return min(len(starts), limits.EVENT_SIZES_A_TURN) // limits.HOPS_A_COMMAND

        await self._scheduler.do(work)
        return sizes[0]

    def _event_end(self, block: memoryview, at: int) -> int:
        kind: int
        length: int
        kind, length = HEADER.unpack_from(block, at)
        if kind != 0 or not 0 <= length <= limits.MAX_LARGE_EVENT_BYTES:
            raise ProtocolError(f"no event begins at offset {self.reached:,}")
        return self.reached + HEADER_BYTES + length

    def _add(self, sizes: Numbers) -> None:
        self.found.append(sizes)
        self._left -= len(sizes)
        self.reached += int(sizes.sum())
