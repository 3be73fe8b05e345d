"""One segment as readers have it, those of slices and those of groups: read ahead into a bounded queue by a task.

The task reads to the segment's end. Where data was truncated away or is damaged, it notes the gap and continues after
it; at the end it asks for the successors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from nadi.client.segments.assemble import events_in
from nadi.client.segments.info import following, what_became_of
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    NadiError,
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
        self._stores, self._purpose, self._news = stores, purpose, news
        self._most_bytes = read_ahead_bytes
        self._blocks: deque[EventBlock] = deque()
        self._waiting_bytes = 0  # of the blocks
        self._room = asyncio.Event()
        self._gaps: deque[Gap] = deque()
        self._reached = start  # where the first event starts that was not read yet
        self._successors: tuple[NamedRange, ...] | None = None
        self._task = asyncio.create_task(self._run())

    def peek(self) -> EventBlock | Gap | None:
        """The next block or gap, whichever lies first, or None if nothing has arrived. Small blocks that wait are
        joined, so that a late reader catches up."""
        self._join()
        gap = self._gaps[0] if self._gaps else None  # first: what lies before it has arrived earlier
        block = self._blocks[0] if self._blocks else None
        return block if gap is None or (block is not None and block.offset < gap.from_offset) else gap

    @property
    def is_ready(self) -> bool:
        """Whether there is a block, a gap or an error."""
        return bool(self._gaps or self._blocks) or self.error is not None

    def pass_gap(self) -> None:
        gap = self._gaps.popleft()
        if gap.to_offset is not None:
            self.given = self._within(gap.to_offset)

    def take(self) -> EventBlock:
        """Remove and return the next block; the caller moves `given`."""
        self._join()
        block = self._blocks.popleft()
        self._waiting_bytes -= block.size_bytes
        self._room.set()
        return block

    def put_back(self, block: EventBlock) -> None:
        """Put the rest of a taken block back in front."""
        self._blocks.appendleft(block)
        self._waiting_bytes += block.size_bytes

    def _join(self) -> None:
        """Make one block of the first ones, as far as they are adjacent and small."""
        blocks = self._blocks
        if len(blocks) < 2:
            return
        parts = [blocks.popleft()]
        size = parts[0].size_bytes
        while blocks and blocks[0].offset == parts[0].offset + size:
            if size + blocks[0].size_bytes > READ_JOINED_BYTES:
                break
            parts.append(blocks.popleft())
            size += parts[-1].size_bytes
        blocks.appendleft(joined(parts) if len(parts) > 1 else parts[0])

    @property
    def completion(self) -> Completion | None:
        """Where the segment ended and what follows, once all of it was returned."""
        if self._successors is None or self._gaps or self._blocks:
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
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._read()
                    break
                except TruncatedError as error:
                    self._note_gap(error.start_offset)
                except DamagedDataError as error:
                    self._note_gap(error.end_offset, error.reason)
                except SegmentNotFoundError as error:
                    found = await what_became_of(self._stores, error.segment)
                    if not isinstance(found, SegmentGoneError):
                        raise found from None
                    self._note_gap(None)
                    break
            self._successors = await self._following()
        except NadiError as error:
            self.error = error
        self._news()

    async def _read(self) -> None:
        """RequestTimeoutError if the server is away for as long as the client waits for it."""
        pieces = read_bytes(
            self._stores,
            self.segment,
            self._reached,
            self.end,
            purpose=self._purpose,
            read_ahead_bytes=self._most_bytes,
        )
        async with aclosing(events_in(pieces, self.segment, self._reached, self.end)) as blocks:
            async for block in blocks:
                self._blocks.append(block)
                self._waiting_bytes += block.size_bytes
                self._reached = block.offset + block.size_bytes
                self._news()
                while self._waiting_bytes >= self._most_bytes:
                    self._room.clear()
                    await self._room.wait()

    def _note_gap(self, to_offset: int | None, damage: str | None = None) -> None:
        """Note a gap, and continue after it."""
        self._gaps.append(Gap(self.segment, self._reached, to_offset, damage))
        if to_offset is not None:
            self._reached = self._within(to_offset)
        self._news()

    def _within(self, offset: int) -> int:
        return offset if self.end is None else min(offset, self.end)

    async def _following(self) -> tuple[NamedRange, ...]:
        if self.end is not None:
            return ()
        scope, stream, segment_id = parse_segment_name(self.segment)
        found = await following(self._stores, scope, stream, segment_id)
        return tuple(NamedRange(segment_name(scope, stream, r.segment_id), r.low, r.high) for r in found)
