"""Blocks of one segment, read ahead into a bounded queue by the reader's task: `fill` puts them in, `take` takes out.

Shared by both kinds of readers: of a slice, and of a group. They decide which segments are read, and what a missing
one means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from nadi.client.segments.assemble import EventAssembler
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    ProtocolError,
)
from nadi.limits import READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES, READ_JOINED_BYTES, READ_REPLY_MAX_BYTES
from nadi.model.event import EventBlock, joined


def share_bytes(segments: int) -> int:
    """How many bytes a reader of so many segments reads ahead in each."""
    return max(min(READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES // max(segments, 1)), READ_REPLY_MAX_BYTES)


class ReadAhead:
    """`blocks` wait to be taken; `reached` is where the first event starts that was not read yet."""

    def __init__(self, stores: SegmentStores, segment: str, *, purpose: str, news: Callable[[], None]) -> None:
        self.blocks: deque[EventBlock] = deque()
        self.reached = 0
        self._stores, self._segment, self._purpose, self._news = stores, segment, purpose, news
        self._put_bytes = self._taken_bytes = 0  # so far: the former by the loop, the latter by whoever takes
        self._most_bytes = READ_AHEAD_BYTES
        self._room = asyncio.Event()
        self._waits = False  # it reads no further until `_room` is set

    def peek(self) -> EventBlock | None:
        """The next block, joined with small ones that wait after it, so that a late reader catches up."""
        blocks = self.blocks
        if len(blocks) > 1 and blocks[0].size_bytes < READ_JOINED_BYTES:
            self._join()
        return blocks[0] if blocks else None

    def take(self) -> EventBlock:
        """Take what `peek` returns, which must not be None."""
        block = self.pop()
        self.go_on()
        return block

    def pop(self) -> EventBlock:
        """`take`, in any thread; if the reading `is_held_back` then, have the loop call `go_on`."""
        self.peek()
        block = self.blocks.popleft()
        self._taken_bytes += block.size_bytes
        return block

    def go_on(self) -> None:
        """Read on, if there is room again."""
        self._room.set()

    @property
    def is_full(self) -> bool:
        """Whether it reads no further until a block is taken."""
        return self._put_bytes - self._taken_bytes >= self._most_bytes

    @property
    def is_held_back(self) -> bool:
        """Whether it has room, but waits for `go_on`."""
        return self._waits and not self.is_full

    def put_back(self, block: EventBlock) -> None:
        """Put the rest of a taken block back in front; in any thread, like `pop`."""
        self.blocks.appendleft(block)
        self._taken_bytes -= block.size_bytes

    def _join(self) -> None:
        """Make one block of the first ones, as far as they are adjacent and small."""
        blocks = self.blocks
        parts = [blocks.popleft()]
        size = parts[0].size_bytes
        while blocks and blocks[0].offset == parts[0].offset + size:
            if size + blocks[0].size_bytes > READ_JOINED_BYTES:
                break
            parts.append(blocks.popleft())
            size += parts[-1].size_bytes
        blocks.appendleft(joined(parts) if len(parts) > 1 else parts[0])

    async def fill(self, start: int, end: int | None, most_bytes: int) -> None:
        """Read from an event boundary to `end` or the segment's end, `most_bytes` ahead.

        TruncatedError and SegmentNotFoundError for what is gone, PastEndError for what never existed, DamagedDataError
        from the first event that can't be read. RequestTimeoutError if the server is away for as long as the
        client waits for it; `fill` from `reached` resumes.
        """
        self.reached, self._most_bytes = start, most_bytes
        assembler = EventAssembler(start)
        try:
            await self._fill(assembler, end)
        except DamagedDataError as error:
            go_on_at = assembler.next_event_after(error.end_offset)
            raise DamagedDataError(error.segment, self.reached, go_on_at, error.reason) from error

    async def _fill(self, assembler: EventAssembler, end: int | None) -> None:
        async with aclosing(
            read_bytes(
                self._stores,
                self._segment,
                self.reached,
                end,
                purpose=self._purpose,
                read_ahead_bytes=self._most_bytes,
            )
        ) as pieces:
            async for data in pieces:
                for block in assembler.feed(data):
                    self._put_bytes += block.size_bytes
                    self.blocks.append(block)
                self.reached = assembler.offset
                if self.blocks:
                    self._news()
                await self._wait_for_room()
        if assembler.is_within_event:
            raise ProtocolError(f"segment {self._segment} ends within an event")

    async def _wait_for_room(self) -> None:
        while self.is_full:
            self._room.clear()
            self._waits = True
            if self.is_full:  # still: who took a block in another thread before this didn't know that anybody waits
                await self._room.wait()
            self._waits = False
