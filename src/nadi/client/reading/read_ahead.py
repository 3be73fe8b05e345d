"""One segment as readers have it, those of slices and those of groups: read ahead into a bounded queue by a task.

`ReadAhead` fills the queue. A `SegmentSource` does so to the segment's end, and knows how far it was returned: if data
was truncated away or is damaged, it notes the gap and continues after it; at the end it asks for the successors. What
was read may be taken in any thread, one at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from nadi.client.segments.assemble import EventAssembler
from nadi.client.segments.info import following, what_became_of
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    NadiError,
    ProtocolError,
    SegmentGoneError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES, READ_JOINED_BYTES, READ_REPLY_MAX_BYTES
from nadi.model.event import EventBlock, joined
from nadi.model.readergroup import NamedRange
from nadi.naming import parse_segment_name, segment_name


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
                self._stores, self._segment, self.reached, end, purpose=self._purpose, read_ahead_bytes=self._most_bytes
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


@dataclass(frozen=True, slots=True)
class Gap:
    """Data that was truncated away before it was read; to_offset None: to the segment's end.

    damage: why it can't be read, if it wasn't truncated but is damaged.
    """

    segment: str
    from_offset: int
    to_offset: int | None
    damage: str | None = None

    @property
    def error(self) -> DamagedDataError | TruncatedError:
        """What a reader raises there that reports no gaps."""
        if self.to_offset is None:
            return SegmentGoneError(self.segment)
        if self.damage is not None:
            return DamagedDataError(self.segment, self.from_offset, self.to_offset, self.damage)
        return TruncatedError(self.segment, self.from_offset, self.to_offset)


@dataclass(frozen=True, slots=True)
class Completion:
    """A segment that was read to its end."""

    offset: int
    successors: tuple[NamedRange, ...]


class SegmentSource:
    """`given`: up to where the application has the segment. The source's task ends with `close`."""

    def __init__(
        self,
        stores: SegmentStores,
        keys: NamedRange,
        start: int,
        end: int | None,
        *,
        purpose: str,
        read_ahead_bytes: int,
        news: Callable[[], None],
    ) -> None:
        self.segment = keys.segment
        self.given = start
        self.is_frozen = False  # nothing is returned from it: it may go to another reader
        self.error: NadiError | None = None
        self.end = end
        self._stores, self._news = stores, news
        self._most_bytes = read_ahead_bytes
        self._ahead = ReadAhead(stores, keys.segment, purpose=purpose, news=news)
        self._gaps: deque[Gap] = deque()
        self._successors: tuple[NamedRange, ...] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(start))

    def peek(self) -> EventBlock | Gap | None:
        """The next block or gap, whichever lies first, or None if nothing has arrived."""
        gap = self._gaps[0] if self._gaps else None  # first: what lies before it has arrived earlier
        block = self._ahead.peek()
        return block if gap is None or (block is not None and block.offset < gap.from_offset) else gap

    @property
    def is_ready(self) -> bool:
        """Whether there is a block, a gap or an error."""
        return bool(self._gaps or self._ahead.blocks) or self.error is not None

    def pass_gap(self) -> None:
        gap = self._gaps.popleft()
        if gap.to_offset is not None:
            self.given = self._within(gap.to_offset)

    def take(self) -> EventBlock:
        """Remove and return the next block; the caller moves `given`."""
        block = self._ahead.pop()
        if self._ahead.is_held_back:
            with suppress(RuntimeError):  # the loop has ended, and the reading with it
                self._loop.call_soon_threadsafe(self._ahead.go_on)
        return block

    def put_back(self, block: EventBlock) -> None:
        self._ahead.put_back(block)

    @property
    def completion(self) -> Completion | None:
        """Where the segment ended and what follows, once all of it was returned."""
        if self._successors is None or self.peek() is not None:
            return None
        return Completion(self.given, self._successors)

    @property
    def has_ended(self) -> bool:
        """Whether all of it was read, if not returned."""
        return self._successors is not None

    def try_again(self) -> None:
        """Ask again, if the server was away."""
        if isinstance(self.error, UnavailableError):
            self.error = None
            self._task = asyncio.create_task(self._run(self._ahead.reached))

    def close(self) -> None:
        self._task.cancel()

    async def _run(self, start: int) -> None:
        try:
            while True:
                try:
                    await self._ahead.fill(start, self.end, self._most_bytes)
                    break
                except TruncatedError as error:
                    start = self._note_gap(error.start_offset)
                except DamagedDataError as error:
                    start = self._note_gap(error.end_offset, error.reason)
                except SegmentNotFoundError as error:
                    found = await what_became_of(self._stores, error.segment)
                    if not isinstance(found, SegmentGoneError):
                        raise found from None
                    self._add_gap(Gap(self.segment, self._ahead.reached, None))
                    break
            self._successors = await self._following()
        except NadiError as error:
            self.error = error
        self._news()

    def _note_gap(self, to_offset: int, damage: str | None = None) -> int:
        """Note a gap; return where to continue."""
        self._add_gap(Gap(self.segment, self._ahead.reached, to_offset, damage))
        return self._within(to_offset)

    def _within(self, offset: int) -> int:
        return offset if self.end is None else min(offset, self.end)

    def _add_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._news()

    async def _following(self) -> tuple[NamedRange, ...]:
        if self.end is not None:
            return ()
        scope, stream, segment_id = parse_segment_name(self.segment)
        found = await following(self._stores, scope, stream, segment_id)
        return tuple(NamedRange(segment_name(scope, stream, r.segment_id), r.low, r.high) for r in found)
