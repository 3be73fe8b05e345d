"""One segment as a reader of a slice reads it: blocks read ahead, and how far they were given out."""

from __future__ import annotations

import asyncio

from nadi.client.reading.read_ahead import ReadAhead
from nadi.errors import NadiError
from nadi.model.event import EventBlock
from nadi.model.segments import SegmentRange


class SliceSource:
    """One segment being read: blocks that were read ahead, and how far they were given out."""

    def __init__(self, piece: SegmentRange, start: int, end: int | None, ahead: ReadAhead) -> None:
        self.piece = piece
        self.given = start
        self.end = end
        self.ahead, self.blocks = ahead, ahead.blocks
        self.lent = 0  # blocks that another thread has, or can take
        self.is_due = False  # it is queued among those with a block or an error to give out
        self.successors: list[SegmentRange] | None = None  # known once it was read to its end
        self.is_gone = False  # the whole segment was truncated away, and that was reported
        self.error: NadiError | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_drained(self) -> bool:
        return not self.blocks and not self.lent and self.successors is not None

    @property
    def waits(self) -> bool:
        """Whether it continues only once lent blocks are taken."""
        return self.lent > 0 and (self.ahead.is_full or self.successors is not None)

    def give(self) -> EventBlock:
        block = self.ahead.take()
        self.given = block.offset + block.size_bytes
        return block

    def lend(self) -> EventBlock:
        self.lent += 1
        return self.blocks.popleft()

    def take_back(self, block: EventBlock) -> None:
        """A lent block was taken: it is given out."""
        self.lent -= 1
        self.ahead.make_room(block)
        self.given = max(self.given, block.offset + block.size_bytes)  # a gap after it may already be reported
