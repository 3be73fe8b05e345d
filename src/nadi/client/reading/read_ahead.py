"""Read one segment ahead into a bounded queue, for the readers of slices and of reader groups.

A task reads to the segment's end. Where data was truncated away or is damaged, it notes the gap and continues behind
it; at the end it asks for the successors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from nadi.client.segments.assemble import events_in
from nadi.client.segments.info import resolve_missing, successors_of
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    NadiError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES, READ_JOINED_BYTES, READ_REPLY_MAX_BYTES
from nadi.model.event import EventBlock, joined
from nadi.model.readergroup import NamedRange
from nadi.naming import parse_segment_name, segment_name


def share_bytes(segments: int) -> int:
    """Return how many bytes a reader of `segments` segments reads ahead in each."""
    return max(min(READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES // max(segments, 1)), READ_REPLY_MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Gap:
    """Data that was truncated away before it was read, or that is damaged.

    to_offset: None for the segment's end. damage: the reason why damaged data can't be read.
    """

    segment: str
    from_offset: int
    to_offset: int | None
    damage: str | None = None

    @property
    def error(self) -> DamagedDataError | TruncatedError:
        """The error for readers that don't report gaps."""
        if self.to_offset is None:
            return SegmentTruncatedError(self.segment)
        if self.damage is not None:
            return DamagedDataError(self.segment, self.from_offset, self.to_offset, self.damage)
        return TruncatedError(self.segment, self.from_offset, self.to_offset)


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a segment that was read completely, and its successors."""

    offset: int
    successors: tuple[NamedRange, ...]


class SegmentSource:
    """Read-ahead queue of one segment. `returned_to`: the offset up to which the application has received it. `close`
    ends the source's task."""

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
        self.returned_to = start
        self.is_frozen = False  # paused, because it may be reassigned to another reader
        self.error: NadiError | None = None
        self.end = end
        self._stores, self._purpose, self._news = stores, purpose, news
        self._most_bytes = read_ahead_bytes
        self._blocks: deque[EventBlock] = deque()
        self._waiting_bytes = 0  # total size of `_blocks`
        self._capacity = asyncio.Event()
        self._gaps: deque[Gap] = deque()
        self._reached = start  # offset of the first event that was not read yet
        self._successors: tuple[NamedRange, ...] | None = None
        self._task = asyncio.create_task(self._run())

    def peek(self) -> EventBlock | Gap | None:
        """Return the next block or gap, or None if no data has arrived. Small waiting blocks are joined, so that a slow
        reader catches up."""
        self._join()
        gap = self._gaps[0] if self._gaps else None
        block = self._blocks[0] if self._blocks else None
        return block if gap is None or (block is not None and block.offset < gap.from_offset) else gap

    @property
    def is_ready(self) -> bool:
        """Whether a block, a gap or an error is available."""
        return bool(self._gaps or self._blocks) or self.error is not None

    def pass_gap(self) -> None:
        gap = self._gaps.popleft()
        if gap.to_offset is not None:
            self.returned_to = self._within(gap.to_offset)

    def take(self) -> EventBlock:
        """Remove and return the next block; the caller moves `returned_to`."""
        self._join()
        block = self._blocks.popleft()
        self._waiting_bytes -= block.size_bytes
        self._capacity.set()
        return block

    def put_back(self, block: EventBlock) -> None:
        """Put the unused part of a taken block back in front."""
        self._blocks.appendleft(block)
        self._waiting_bytes += block.size_bytes

    def _join(self) -> None:
        """Join the first blocks while they are adjacent and small."""
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
        """The segment's end and its successors, once all of it was returned."""
        if self._successors is None or self._gaps or self._blocks:
            return None
        return Completion(self.returned_to, self._successors)

    @property
    def has_ended(self) -> bool:
        """Whether the segment was read completely, though perhaps not returned."""
        return self._successors is not None

    def retry(self) -> None:
        """Read again if the server was unavailable."""
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
                    reason = await resolve_missing(self._stores, error.segment)
                    if not isinstance(reason, SegmentTruncatedError):
                        raise reason from None
                    self._note_gap(None)
                    break
            self._successors = await self._following()
        except NadiError as error:
            self.error = error
        self._news()

    async def _read(self) -> None:
        """Read to the end; raise RequestTimeoutError if the server is unreachable for the client's timeout."""
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
                while self._waiting_bytes >= READ_REPLY_MAX_BYTES:  # more is in flight
                    self._capacity.clear()
                    await self._capacity.wait()

    def _note_gap(self, to_offset: int | None, damage: str | None = None) -> None:
        """Note a gap and move behind it."""
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
        successors = await successors_of(self._stores, scope, stream, segment_id)
        return tuple(NamedRange(segment_name(scope, stream, r.segment_id), r.low, r.high) for r in successors)
