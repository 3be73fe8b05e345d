"""One segment as a reader of a group reads it: blocks read ahead, up to a bound, and how far they were returned.

A task fills the queue. If data was truncated away or is damaged, it notes the gap and continues after it; at the
segment's end it asks for the successors. What was read is taken in any thread, one at a time: `Holdings` sees to that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nadi.client.readergroup.plan import Completion
from nadi.client.reading.read_ahead import ReadAhead
from nadi.client.segments.info import following, what_became_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    DamagedDataError,
    NadiError,
    SegmentGoneError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
)
from nadi.model.event import EventBlock
from nadi.model.readergroup import NamedRange
from nadi.naming import parse_segment_name, segment_name


@dataclass(frozen=True, slots=True)
class Gap:
    """Data that was truncated away before it was read; to_offset None: to the segment's end.

    damage: why it can't be read, if it wasn't truncated but is damaged.
    """

    segment: str
    from_offset: int
    to_offset: int | None
    damage: str | None = None


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
        self._stores, self._end, self._news = stores, end, news
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

    def pass_gap(self) -> None:
        gap = self._gaps.popleft()
        self.given = self.given if gap.to_offset is None else gap.to_offset

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
                    await self._ahead.fill(start, self._end, self._most_bytes)
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
        start = to_offset if self._end is None else min(to_offset, self._end)
        self._add_gap(Gap(self.segment, self._ahead.reached, start, damage))
        return start

    def _add_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._news()

    async def _following(self) -> tuple[NamedRange, ...]:
        if self._end is not None and self._ahead.reached >= self._end:
            return ()
        scope, stream, segment_id = parse_segment_name(self.segment)
        found = await following(self._stores, scope, stream, segment_id)
        return tuple(NamedRange(segment_name(scope, stream, r.segment_id), r.low, r.high) for r in found)
