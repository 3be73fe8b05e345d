"""One segment as a reader of a group reads it: blocks read ahead, up to a bound, and how far they were given.

A task fills the queue. Where data was truncated away it notes the gap and goes on behind it; at the
segment's end it asks for the successors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from nadi.client.assemble import EventAssembler
from nadi.client.readergroup.plan import Completion
from nadi.client.readergroup.state import KeyRange
from nadi.client.segment_input import read_bytes
from nadi.client.stores import Backoff, SegmentStores
from nadi.errors import (
    ClosedError,
    NadiError,
    ProtocolError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
)
from nadi.model.event import EventBlock
from nadi.naming import parse_segment_name, segment_name


@dataclass(frozen=True, slots=True)
class Gap:
    """Data that was truncated away before it was read; to_offset None: to the segment's end."""

    segment: str
    from_offset: int
    to_offset: int | None


class SegmentSource:
    """`given`: up to where the application has it. Its task ends with `close`."""

    def __init__(
        self,
        stores: SegmentStores,
        keys: KeyRange,
        start: int,
        end: int | None,
        *,
        purpose: str,
        read_ahead_bytes: int,
        news: Callable[[], None],
    ) -> None:
        self.segment = keys.segment
        self.given = start
        self.items: deque[EventBlock | Gap] = deque()
        self.is_frozen = False  # nothing is given out: it may go to another reader
        self.error: NadiError | None = None
        self._stores, self._keys, self._end = stores, keys, end
        self._purpose, self._ahead, self._news = purpose, read_ahead_bytes, news
        self._successors: tuple[KeyRange, ...] | None = None
        self._buffered = 0
        self._room = asyncio.Event()
        self._task = asyncio.create_task(self._run(start))

    def take(self) -> EventBlock | Gap:
        """The next of `items`; the caller moves `given`."""
        item = self.items.popleft()
        if isinstance(item, EventBlock):
            self._buffered -= item.size_bytes
            self._room.set()
        return item

    def put_back(self, block: EventBlock) -> None:
        """The rest of a block that was taken."""
        self.items.appendleft(block)
        self._buffered += block.size_bytes

    @property
    def completion(self) -> Completion | None:
        """Where the segment ended and what follows, once all of it was given out."""
        if self._successors is None or self.items:
            return None
        return Completion(self.given, self._successors)

    def close(self) -> None:
        self._task.cancel()

    async def _run(self, start: int) -> None:
        try:
            while True:
                try:
                    start = await self._read(start)
                    break
                except TruncatedError as error:
                    start = self._note_gap(max(start, error.offset), error.start_offset)
            found = [] if self._end is not None and start >= self._end else await self._following()
            self._successors = tuple(found)
        except NadiError as error:
            self.error = error
        self._news()

    def _note_gap(self, start: int, to: int) -> int:
        to = to if self._end is None else min(to, self._end)
        self.items.append(Gap(self.segment, start, to))
        self._news()
        return to

    async def _read(self, start: int) -> int:
        """Fill the queue from an event boundary on; where it ended. TruncatedError tells where to go on."""
        assembler = EventAssembler(start)
        try:
            async with aclosing(
                read_bytes(
                    self._stores,
                    self.segment,
                    start,
                    self._end,
                    purpose=self._purpose,
                    read_ahead_bytes=self._ahead,
                )
            ) as pieces:
                async for data in pieces:
                    for block in assembler.feed(data):
                        self.items.append(block)
                        self._buffered += block.size_bytes
                    if self.items:
                        self._news()
                    while self._buffered >= self._ahead:
                        self._room.clear()
                        await self._room.wait()
        except TruncatedError as error:
            raise TruncatedError(self.segment, assembler.offset, error.start_offset) from None
        except SegmentNotFoundError:
            self.items.append(Gap(self.segment, assembler.offset, None))
            return assembler.offset
        if assembler.is_within_event:
            raise ProtocolError(f"segment {self.segment} ends within an event")
        return assembler.offset

    async def _following(self) -> list[KeyRange]:
        scope, stream, segment_id = parse_segment_name(self.segment)
        backoff = Backoff()
        while True:
            try:
                found = await self._stores.controller.successors(scope, stream, segment_id)
            except ClosedError:
                raise
            except UnavailableError:
                await backoff.pause()
                continue
            ranges = [successor.segment for successor in found]
            return [KeyRange(segment_name(scope, stream, r.segment_id), r.low, r.high) for r in ranges]
