"""The segments assigned to one reader: buffered events, returned in rotation, and the position in each segment.

At most one block (the cursor's) or one gap is in use by the application: its segment can't be released, and only events
before the gap, or before the last event returned, count as done.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat

from nadi.client.readergroup.event_reads import EventRead
from nadi.client.readergroup.state import GroupState
from nadi.client.reading.read_ahead import Completion, Gap, SegmentSource, share_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.limits import READ_AHEAD_BYTES
from nadi.model.event import EventBlock, joined


class Cursor:
    """A block in use by the application; `taken` counts the events returned from it.

    as_block: the block is returned at once, and `confirmed` is the end of the events that are done. Only the
    application's thread changes `taken`; others may read it at any time.
    """

    __slots__ = ("as_block", "block", "confirmed", "count", "offsets", "reads", "source", "taken")

    def __init__(self, source: SegmentSource, block: EventBlock, *, as_block: bool) -> None:
        self.source, self.block, self.as_block = source, block, as_block
        self.count = 0 if as_block else len(block)
        self.offsets: list[int] = [] if as_block else block.offsets().tolist()
        events = () if as_block else block
        self.reads = map(EventRead, events, repeat(None), repeat(source.segment), self.offsets)
        self.taken = 0
        self.confirmed = block.offset

    def first(self) -> EventRead | None:
        return EventRead(None, self.block, self.source.segment, self.block.offset) if self.as_block else self.next()

    def next(self) -> EventRead | None:
        read = next(self.reads, None)
        if read is not None:
            self.taken += 1
        return read

    @property
    def returned_to(self) -> int:
        taken = self.taken
        return self.offsets[taken] if taken < self.count else self.block.offset + self.block.size_bytes

    @property
    def done(self) -> int:
        taken = self.taken
        return self.offsets[taken - 1] if taken > 0 else self.confirmed


class AssignedSegments:
    """The assigned segments of one reader.

    purpose: names the connections for reading. news: called when data arrives.
    """

    def __init__(self, stores: SegmentStores, purpose: str, news: Callable[[], None]) -> None:
        self.cursor: Cursor | None = None
        self.most_events = sys.maxsize  # in one block
        self.at_gap: SegmentSource | None = None
        self._stores, self._purpose, self._news = stores, purpose, news
        self._sources: dict[str, SegmentSource] = {}
        self._turn: deque[SegmentSource] = deque()

    # --- assignment -------------------------------------------------------------------------

    def follow(self, state: GroupState, reader: str, *, restart: bool = False) -> bool:
        """Read the segments that the state assigns: new ones, or with `restart` all, from their recorded offsets.

        Return whether the block or gap in use was lost with its segment.
        """
        owned = state.owned_by(reader)
        lost = self._stop([name for name in self._sources if restart or name not in owned])
        self.freeze(())
        for name, segment in owned.items():
            if name not in self._sources:
                source = self._sources[name] = SegmentSource(
                    self._stores,
                    segment.keys,
                    segment.offset,
                    state.end_of(name),
                    purpose=self._purpose,
                    read_ahead_bytes=share_bytes(len(owned)),
                    news=self._news,
                )
                self._turn.append(source)
        return lost

    def freeze(self, names: Collection[str]) -> None:
        """Return nothing from these segments, and resume all others."""
        for name, source in self._sources.items():
            source.is_frozen = name in names

    @property
    def segments(self) -> Collection[str]:
        return self._sources.keys()

    def close(self) -> None:
        self._stop(list(self._sources))
        self._stores.release(self._purpose)

    def _stop(self, names: Iterable[str]) -> bool:
        lost = False
        for name in names:
            source = self._sources.pop(name)
            self._turn.remove(source)
            source.close()
            lost |= self.cursor is not None and self.cursor.source is source
        return lost

    # --- delivery ---------------------------------------------------------------------------

    def next_source(self) -> SegmentSource | None:
        """Return the next source that has data and isn't frozen; raises a source's error."""
        for _ in range(len(self._turn)):
            source = self._turn[0]
            self._turn.rotate(-1)
            if source.is_frozen:
                continue
            if source.peek() is not None:
                return source
            if (error := source.error) is not None:
                for other in self._sources.values():
                    other.retry()  # report an unavailable server only once, not for each segment
                raise error
        return None

    def take(self, source: SegmentSource, count: int, *, as_block: bool) -> Cursor:
        """Use the first `count` events of the source's next block; the remaining events stay in the source."""
        block = _take_events(source, min(count, self.most_events))
        self.cursor = Cursor(source, block, as_block=as_block)
        return self.cursor

    def again(self, *, as_block: bool) -> EventRead | None:
        """Restart the block in use, before any of its events has reached the application."""
        assert self.cursor is not None
        self.cursor = Cursor(self.cursor.source, self.cursor.block, as_block=as_block)
        return self.cursor.first()

    def take_more(self) -> bool:
        """Append the following events to the block in use, up to `most_events`; return whether there were any."""
        cursor = self.cursor
        if cursor is None or self.segment_in_use is None or cursor.source.is_frozen:
            return False
        missing = self.most_events - len(cursor.block)
        if self.is_full:
            return False
        if not isinstance(following := cursor.source.peek(), EventBlock):
            return False
        if following.offset != cursor.returned_to:
            return False
        block = joined([cursor.block, _take_events(cursor.source, missing)])
        self.cursor = Cursor(cursor.source, block, as_block=True)
        return True

    @property
    def is_full(self) -> bool:
        """Whether nothing can be added to the block in use: it has enough events or bytes, or a gap or the segment's
        end follows."""
        cursor = self.cursor
        if cursor is None or len(cursor.block) >= self.most_events or cursor.block.size_bytes >= READ_AHEAD_BYTES:
            return True
        return isinstance(cursor.source.peek(), Gap) or cursor.source.completion is not None

    def put_back(self) -> None:
        """Count the block or gap in use as done; events that weren't returned go back to the source."""
        at_gap, self.at_gap = self.at_gap, None
        if at_gap is not None and self._sources.get(at_gap.segment) is at_gap:
            at_gap.pass_gap()
        cursor, self.cursor = self.cursor, None
        if cursor is None or self._sources.get(cursor.source.segment) is not cursor.source:
            return
        cursor.source.returned_to = cursor.returned_to
        if cursor.taken < cursor.count:
            cursor.source.put_back(_part_of(cursor.block, cursor.taken, cursor.count))

    # --- positions --------------------------------------------------------------------------

    @property
    def segment_in_use(self) -> str | None:
        """The segment of the block or gap in use."""
        source = self.cursor.source if self.cursor is not None else self.at_gap
        return None if source is None or self._sources.get(source.segment) is not source else source.segment

    def returned(self) -> dict[str, int]:
        """Return the end of the events returned, by segment."""
        positions = {name: source.returned_to for name, source in self._sources.items()}
        if self.cursor is not None and self.segment_in_use is not None:
            positions[self.segment_in_use] = self.cursor.returned_to
        return positions

    def done(self) -> dict[str, int]:
        """Return the end of the events done, by segment: as `returned`, but before the last event of the block in
        use."""
        done = self.returned()
        if self.cursor is not None and self.segment_in_use is not None:
            done[self.segment_in_use] = self.cursor.done
        return done

    def completed(self) -> Mapping[str, Completion]:
        """Return the segments that were returned up to their ends."""
        completions = ((name, source.completion) for name, source in self._sources.items())
        return {name: end for name, end in completions if end is not None}


def end_of(block: EventBlock, count: int) -> int:
    return block.offset + (int(block.starts[count]) if count < len(block) else block.size_bytes)


def _take_events(source: SegmentSource, count: int) -> EventBlock:
    """Remove and return the first `count` events of the source's next block."""
    block = source.take()
    if count < len(block):
        source.put_back(_part_of(block, count, len(block)))
        block = _part_of(block, 0, count)
    return block


def _part_of(block: EventBlock, first: int, last: int) -> EventBlock:
    starts = block.starts
    low = int(starts[first]) if first < len(starts) else len(block.data)
    high = int(starts[last]) if last < len(starts) else len(block.data)
    return EventBlock(block.data[low:high], starts[first:last] - low, block.offset + low)
