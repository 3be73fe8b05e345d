"""The segments that one reader has: what is ready to be returned from them, in turn, and how far each was returned.

At most one block, held by the cursor, or one gap is in the application's hands: its segment can't be given away, and
only what lies before the gap, or before the event taken last, counts as done.
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
    """A block in the application's hands; `taken` counts the events taken from it.

    With `is_whole`, the block is taken at once, and `confirmed` is up to where it is done already.
    Only the application's thread counts up; others may look at any time.
    """

    __slots__ = ("block", "confirmed", "count", "is_whole", "offsets", "reads", "source", "taken")

    def __init__(self, source: SegmentSource, block: EventBlock, *, is_whole: bool) -> None:
        self.source, self.block, self.is_whole = source, block, is_whole
        self.count = 0 if is_whole else len(block)
        self.offsets: list[int] = [] if is_whole else block.offsets().tolist()
        events = () if is_whole else block
        self.reads = map(EventRead, events, repeat(None), repeat(source.segment), self.offsets)
        self.taken = 0
        self.confirmed = block.offset

    def first(self) -> EventRead | None:
        return EventRead(None, self.block, self.source.segment, self.block.offset) if self.is_whole else self.next()

    def next(self) -> EventRead | None:
        read = next(self.reads, None)
        if read is not None:
            self.taken += 1
        return read

    @property
    def given(self) -> int:
        taken = self.taken
        return self.offsets[taken] if taken < self.count else self.block.offset + self.block.size_bytes

    @property
    def done(self) -> int:
        taken = self.taken
        return self.offsets[taken - 1] if taken > 0 else self.confirmed


class Holdings:
    """`purpose` names the connections for reading the segments; `news` is called when something arrives."""

    def __init__(self, stores: SegmentStores, purpose: str, news: Callable[[], None]) -> None:
        self.cursor: Cursor | None = None
        self.most_events = sys.maxsize  # taken at once
        self.at_gap: SegmentSource | None = None
        self._stores, self._purpose, self._news = stores, purpose, news
        self._sources: dict[str, SegmentSource] = {}
        self._turn: deque[SegmentSource] = deque()

    # --- which there are --------------------------------------------------------------------

    def follow(self, state: GroupState, reader: str, *, anew: bool = False) -> bool:
        """Hold the segments that the state assigns, new ones from their recorded offsets (`anew`: all of them).

        Return whether what is in hand was lost with its segment.
        """
        owned = state.owned_by(reader)
        lost = self._stop([name for name in self._sources if anew or name not in owned])
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
        """Hold these back: return nothing from them, but from all others again."""
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

    # --- giving out -------------------------------------------------------------------------

    def next_source(self) -> SegmentSource | None:
        """The next source that has something and isn't frozen; a source's error is raised."""
        for _ in range(len(self._turn)):
            source = self._turn[0]
            self._turn.rotate(-1)
            if source.is_frozen:
                continue
            if source.peek() is not None:
                return source
            if (error := source.error) is not None:
                for other in self._sources.values():
                    other.try_again()  # the caller need not hear of an unavailable server once per segment
                raise error
        return None

    def take(self, source: SegmentSource, count: int, *, is_whole: bool) -> Cursor:
        """Take the first `count` events of the source's next block in hand; the rest of it stays."""
        block = _taken(source, min(count, self.most_events))
        self.cursor = Cursor(source, block, is_whole=is_whole)
        return self.cursor

    def again(self, *, is_whole: bool) -> EventRead | None:
        """Take the block in hand, of which nothing has reached the application, again from its start."""
        assert self.cursor is not None
        self.cursor = Cursor(self.cursor.source, self.cursor.block, is_whole=is_whole)
        return self.cursor.first()

    def take_more(self) -> bool:
        """Add to the whole block in hand what follows it, up to `most_events`; return whether anything has arrived."""
        cursor = self.cursor
        if cursor is None or self.in_hand is None or cursor.source.is_frozen:
            return False
        room = self.most_events - len(cursor.block)
        if self.is_full:
            return False
        if not isinstance(follows := cursor.source.peek(), EventBlock):
            return False
        if follows.offset != cursor.given:
            return False
        block = joined([cursor.block, _taken(cursor.source, room)])
        self.cursor = Cursor(cursor.source, block, is_whole=True)
        return True

    @property
    def is_full(self) -> bool:
        """Whether nothing can be added to the whole block in hand, however long one waits: there are enough events or
        bytes, a gap follows, or the segment's end."""
        cursor = self.cursor
        if cursor is None or len(cursor.block) >= self.most_events or cursor.block.size_bytes >= READ_AHEAD_BYTES:
            return True
        return isinstance(cursor.source.peek(), Gap) or cursor.source.completion is not None

    def put_back(self) -> None:
        """Count what is in hand as done; events of a block that weren't taken go back to its segment."""
        at_gap, self.at_gap = self.at_gap, None
        if at_gap is not None and self._sources.get(at_gap.segment) is at_gap:
            at_gap.pass_gap()
        cursor, self.cursor = self.cursor, None
        if cursor is None or self._sources.get(cursor.source.segment) is not cursor.source:
            return
        cursor.source.given = cursor.given
        if cursor.taken < cursor.count:
            cursor.source.put_back(_part_of(cursor.block, cursor.taken, cursor.count))

    # --- how far ----------------------------------------------------------------------------

    @property
    def in_hand(self) -> str | None:
        """The segment of the block or gap in hand."""
        source = self.cursor.source if self.cursor is not None else self.at_gap
        return None if source is None or self._sources.get(source.segment) is not source else source.segment

    def given(self) -> dict[str, int]:
        given = {name: source.given for name, source in self._sources.items()}
        if self.cursor is not None and self.in_hand is not None:
            given[self.in_hand] = self.cursor.given
        return given

    def done(self) -> dict[str, int]:
        """As `given`, but for what is in hand: of that all before the event taken last."""
        done = self.given()
        if self.cursor is not None and self.in_hand is not None:
            done[self.in_hand] = self.cursor.done
        return done

    def completed(self) -> Mapping[str, Completion]:
        """The segments that were returned up to their ends."""
        found = ((name, source.completion) for name, source in self._sources.items())
        return {name: end for name, end in found if end is not None}


def end_of(block: EventBlock, count: int) -> int:
    return block.offset + (int(block.starts[count]) if count < len(block) else block.size_bytes)


def _taken(source: SegmentSource, count: int) -> EventBlock:
    """The first `count` events of the source's next block; the rest stays there."""
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
