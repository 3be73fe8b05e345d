"""How long the events of a range are, for those who need nothing else of them: found in the stored bytes.

All bytes are read and checked, as if they were sent. Where they are damaged, or aren't events, or the segment ends, the
answer ends too, and whoever asked reads on: so errors are those of a read. An answer covers a bounded number of bytes
and events; only a few are made at a time, and each advances a little per turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from nadi.errors import DamagedDataError, InvalidArgumentError, ProtocolError
from nadi.limits import (
    EVENT_SIZES_A_TURN,
    EVENT_SIZES_AT_ONCE,
    EVENT_SIZES_LISTED,
    EVENT_SIZES_SCANNED_BYTES,
    HOPS_A_COMMAND,
    MAX_LARGE_EVENT_BYTES,
)
from nadi.model.framing import HEADER, HEADER_BYTES, event_starts
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.wire import commands as wire
from nadi.wire.event_sizes import Numbers, packed_sizes
from nadi.wire.fields import Buffer

Read = Callable[[int, int], Awaitable[Buffer]]  # about so many bytes from an offset; none at the segment's end


class SizesOfEvents:
    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self._places = asyncio.Semaphore(EVENT_SIZES_AT_ONCE)

    async def answer(self, command: wire.ListEventSizes, read: Read) -> wire.EventSizesListed:
        """Raises what `read` does, but for damage; InvalidArgumentError where nothing of the kind can be asked."""
        if command.most <= 0 or command.checked < command.start:
            raise InvalidArgumentError("sizes are asked for of no events, or of bytes that were looked at before")
        async with self._places:
            search = _Search(self._scheduler, read, command)
            await search.run()
            sizes = np.concatenate(search.found) if search.found else np.empty(0, np.int64)
            return wire.EventSizesListed(
                command.request_id, command.segment, packed_sizes(sizes), search.reached, search.checked
            )


class _Search:
    """One answer: `found`, which end at `reached`, and the bytes looked at, up to `checked`."""

    def __init__(self, scheduler: FairScheduler, read: Read, command: wire.ListEventSizes) -> None:
        self._scheduler, self._read, self._end = scheduler, read, command.end
        self._left = min(command.most, EVENT_SIZES_LISTED)
        self.reached, self.checked = command.start, command.checked
        self.found: list[Numbers] = []

    async def run(self) -> None:
        try:
            await self._walk()
        except (DamagedDataError, ProtocolError):  # there, or what begins there is no event: a reader says so
            self.checked = self.reached

    async def _walk(self) -> None:
        limit = min(self._end, self.checked + EVENT_SIZES_SCANNED_BYTES)
        begun = self.checked > self.reached
        event_end = await self._end_of_first() if begun else self.reached
        while self._left and self.checked < limit:
            block = await self._block(limit)
            begin = self.checked
            if not len(block) or (len(block) < HEADER_BYTES and begin == self.reached):
                self.checked = self.reached
                return  # the segment's end, or a limit within a header
            self.checked = begin + len(block)
            if event_end > self.reached:
                if event_end > self.checked:
                    continue
                self._add(np.array([event_end - self.reached]))
            event_end = await self._events(block[self.reached - begin :])
            if event_end > self._end:
                break
            if event_end == self.reached:  # a part of a header, to be read again with the rest; or enough of them
                self.checked = self.reached
        if event_end > self._end:
            self.checked = self.reached

    async def _end_of_first(self) -> int:
        """Of the event that was begun; InvalidArgumentError if it isn't such a one."""
        header = await self._at_least_header(self.reached, HEADER_BYTES)
        end = self._event_end(header, 0) if len(header) == HEADER_BYTES else 0
        if not self.checked <= end <= self._end:
            raise InvalidArgumentError(f"no event at {self.reached:,} has bytes up to {self.checked:,} and beyond")
        return end

    async def _block(self, limit: int) -> memoryview:
        if self.checked > self.reached:
            return await self._bytes(self.checked, limit - self.checked)
        return await self._at_least_header(self.checked, limit - self.checked)

    async def _at_least_header(self, at: int, most: int) -> memoryview:
        """Bytes from `at` on, at least a header, unless the segment or what is asked for ends before."""
        block = more = await self._bytes(at, most)
        while len(block) < min(HEADER_BYTES, most) and more:
            more = await self._bytes(at + len(block), most - len(block))
            block = memoryview(bytes(block) + bytes(more))
        return block

    async def _bytes(self, at: int, most: int) -> memoryview:
        return memoryview(await self._read(at, most))[:most]  # a read gives more where few were wanted

    async def _events(self, block: memoryview) -> int:
        """Add the whole events of a block that begins at `reached`; return where the one ends that follows them, or
        `reached` if that isn't known."""
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
        """Add the whole events at the start of the data, in a turn of the loop; return how many bytes they take."""
        sizes: list[int] = []

        def work() -> int:
            starts, size = event_starts(data, self.reached, max_events=self._left, max_steps=EVENT_SIZES_A_TURN)
            sizes.append(size)
            if size:
                self._add(np.diff(starts, append=size))
            return min(len(starts), EVENT_SIZES_A_TURN) // HOPS_A_COMMAND

        await self._scheduler.do(work)
        return sizes[0]

    def _event_end(self, block: memoryview, at: int) -> int:
        kind: int
        length: int
        kind, length = HEADER.unpack_from(block, at)
        if kind != 0 or not 0 <= length <= MAX_LARGE_EVENT_BYTES:
            raise ProtocolError(f"no event begins at offset {self.reached:,}")
        return self.reached + HEADER_BYTES + length

    def _add(self, sizes: Numbers) -> None:
        self.found.append(sizes)
        self._left -= len(sizes)
        self.reached += int(sizes.sum())
