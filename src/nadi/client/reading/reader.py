"""SliceReader: the events of a stream between two cuts, or from a cut on as they arrive.

Each segment being read has a task that reads ahead into a bounded queue; blocks are given out from
all of them in turn. A successor starts only once everything has been given out of all the segments
that precede it under any of its keys, so each key's events come in order. What has been given out
is a stream cut at any time: `position()`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from nadi.client.control.arguments import checked, several_texts
from nadi.client.control.closing import Closing
from nadi.client.reading import boundary
from nadi.client.reading.damage import RAISE, SKIP, OnDamage, check_on_damage, note_skipped
from nadi.client.reading.read_ahead import ReadAhead, share_bytes
from nadi.client.reading.watermarks import TimeWindow, TimeWindows
from nadi.client.segments.info import following, what_became_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    ClosedError,
    DamagedDataError,
    EpochGoneError,
    NadiError,
    RequestTimeoutError,
    SegmentGoneError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
)
from nadi.model.event import EventBlock
from nadi.model.frontier import Bound, Frontier
from nadi.model.keyspace import key_position
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name


class SliceSource:
    """One segment being read: blocks that were read ahead, and how far they were given out."""

    def __init__(self, piece: SegmentRange, start: int, end: int | None, ahead: ReadAhead) -> None:
        self.piece = piece
        self.given = start
        self.end = end
        self.ahead, self.blocks = ahead, ahead.blocks
        self.is_due = False  # it is queued among those with a block or an error to give out
        self.successors: list[SegmentRange] | None = None  # known once it was read to its end
        self.is_gone = False  # the whole segment was truncated away, and that was reported
        self.error: NadiError | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_drained(self) -> bool:
        return not self.blocks and self.successors is not None

    def give(self) -> EventBlock:
        block = self.ahead.take()
        self.given = block.offset + block.size_bytes
        return block


_ids = itertools.count()


class Event(msgspec.Struct, frozen=True, gc=False):  # made a million times a second: five times as fast as a dataclass
    """One event and its place: `offset` is that of its header in the segment."""

    data: bytes
    segment_id: int
    offset: int


def events_of(segment_id: int, block: EventBlock) -> Iterator[Event]:
    return map(Event, block.events(), itertools.repeat(segment_id), block.offsets().tolist())


@checked()
class SliceReader(Closing):
    """The events of a slice, in blocks: iterate over it for (segment id, EventBlock). One user at a time."""

    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        stream: str,
        frontier: Frontier,
        start: StreamCut,
        bound: Bound | None,
        on_damage: OnDamage,
    ) -> None:
        self._skipped: list[DamagedDataError] = []
        self._on_damage = on_damage
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._purpose = f"reader {next(_ids)}"
        self._frontier = frontier
        self._bound = bound
        self._inputs: dict[int, SliceSource] = {}
        self._due: deque[SliceSource] = deque()  # those with a block or an error, in their turn
        self._drained = False  # one may have been given out to its end since `_follow` last looked
        self._stopped: dict[int, int] = {}  # segments read up to the end cut
        self._news = asyncio.Event()
        self._held: tuple[int, EventBlock] | None = None  # on its way to another thread
        self._closed = False
        self._windows = TimeWindows(stores, scope, stream)
        for segment_id, piece in list(frontier.active.items()):
            self._begin(piece, max(start.positions[segment_id], 0))

    async def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        """(segment id, events), or None at the end of the slice or of a sealed stream.

        RequestTimeoutError if nothing came within `timeout` seconds, or the server was away for as long as the
        client waits for it: ask again. TruncatedError, once, if what was to be read next was truncated away: from its
        `offset` to its `start_offset`, or all of the segment (SegmentGoneError); each time, if it was so long ago that
        what follows is forgotten (EpochGoneError). DamagedDataError, once, if it is
        damaged: from its `offset` to its `end_offset`; damage that is skipped is noted in `skipped` instead. The next
        call continues after that. PastEndError if the start lies past a segment's end.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._news.clear()
                    if self._is_ready():
                        source = self._next()
                        if source is None:
                            return None
                        block = source.give()
                        self._look_at(source)
                        return source.piece.segment_id, block
                    await self._news.wait()
        except RequestTimeoutError:  # of a segment whose store is away
            raise
        except TimeoutError:
            trouble = self._stores.waits_for()
            raise RequestTimeoutError(
                f"nothing to read in {self.scope}/{self.stream} for {timeout} s" + (f": {trouble}" if trouble else "")
            ) from None

    async def __aiter__(self) -> AsyncIterator[tuple[int, EventBlock]]:
        while (found := await self.next_block()) is not None:
            yield found

    def position(self) -> StreamCut:
        """Return the boundary between what was given out and what was not; start there to continue."""
        if self._held is None:
            self._follow()
        given = {segment_id: source.given for segment_id, source in self._inputs.items()}
        if self._held is not None:
            given[self._held[0]] = self._held[1].offset
        return StreamCut(self.scope, self.stream, self._frontier.positions(given | self._stopped))

    async def current_time_window(self, position: StreamCut | None = None) -> TimeWindow:
        """Return the window of event time at `position()`, or at a position before it, from the stream's watermarks."""
        return await self._windows.at((position or self.position()).positions)

    @property
    def skipped(self) -> list[DamagedDataError]:
        """With on_damage="skip": the last 1,000 damaged places that were skipped."""
        return list(self._skipped)

    def close(self) -> None:
        """Close at once; whoever waits in `next_block` gets ClosedError."""
        self._closed = True
        for source in self._inputs.values():
            if source.task is not None:
                source.task.cancel()
        self._stores.release(self._purpose)
        self._news.set()

    # --- inside -----------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        """Whether there is a block to give, an error, or the end."""
        if self._closed:
            return True
        if self._drained:
            self._follow()
        if self._due and not self._due[0].blocks and self._on_damage == SKIP:
            self._skip_damage()
        return bool(self._due) or not self._inputs

    def _next(self) -> SliceSource | None:
        """The source of the next block, from which one must be taken; None at the end. Call it when `_is_ready`."""
        if self._closed:
            raise ClosedError("this reader was closed")
        if not self._due:
            return None
        source = self._due.popleft()
        source.is_due = False
        if source.blocks:
            return source
        error = source.error
        assert error is not None, "else it would not be due"
        if isinstance(error, EpochGoneError):
            self._queue(source)  # nobody knows what follows
        elif isinstance(error, SegmentGoneError):
            source.is_gone = True
            self._go_on(source, source.given)
        elif isinstance(error, TruncatedError):
            self._go_on(source, error.start_offset)
        elif isinstance(error, DamagedDataError):
            self._go_on(source, error.end_offset)
        elif isinstance(error, UnavailableError):
            self._try_again()
        else:
            self._queue(source)  # it is raised again next time
        raise error

    def _skip_damage(self) -> None:
        """Continue after the damage that would be reported now."""
        while self._due and not self._due[0].blocks and isinstance(error := self._due[0].error, DamagedDataError):
            source = self._due.popleft()
            source.is_due = False
            note_skipped(self._skipped, error)
            self._go_on(source, error.end_offset)

    def _queue(self, source: SliceSource) -> None:
        if not source.is_due:
            source.is_due = True
            self._due.append(source)

    def _look_at(self, source: SliceSource) -> None:
        """Queue it if it has a block or an error, and note whether it was given out to its end."""
        if source.blocks or source.error is not None:
            self._queue(source)
        self._drained = self._drained or source.is_drained

    def _news_of(self, source: SliceSource) -> None:
        """It has another block, an error, or its end."""
        self._look_at(source)
        self._news.set()

    def _go_on(self, source: SliceSource, offset: int) -> None:
        """Continue after what was reported."""
        source.error = None
        source.given = offset if source.end is None else min(offset, source.end)
        source.task = asyncio.create_task(self._read(source, source.given))

    def _try_again(self) -> None:
        """One segment has reported that the server is away: the others needn't, and all try again."""
        for source in self._inputs.values():
            if isinstance(source.error, UnavailableError):
                if source.is_due and not source.blocks:
                    source.is_due = False
                    self._due.remove(source)
                source.error = None
                source.task = asyncio.create_task(self._read(source, source.ahead.reached))

    def _begin(self, piece: SegmentRange, start: int) -> None:
        segment_id = piece.segment_id
        end = self._bound.limit(piece) if self._bound is not None else None
        if end is not None and end <= start:
            self._frontier.stop(segment_id)
            self._stopped[segment_id] = start
            return
        name = segment_name(self.scope, self.stream, segment_id)
        ahead = ReadAhead(self._stores, name, purpose=self._purpose, news=lambda: self._news_of(source))
        source = self._inputs[segment_id] = SliceSource(piece, start, end, ahead)
        source.task = asyncio.create_task(self._read(source, start))

    def _follow(self) -> None:
        """Replace the segments that were given out to their end by those that may follow."""
        self._drained = False
        for segment_id, source in list(self._inputs.items()):
            if not source.is_drained or source.error is not None:
                continue
            assert source.successors is not None
            if source.end is not None or not source.successors:
                self._frontier.stop(segment_id)
                self._stopped[segment_id] = source.given
                begun = []
            else:
                begun = self._frontier.complete(segment_id, source.successors)
            del self._inputs[segment_id]
            for piece in begun:
                self._begin(piece, 0)

    async def _read(self, source: SliceSource, start: int) -> None:
        """Fill the queue of one segment, and find what follows it."""
        segment_id = source.piece.segment_id
        try:
            if not source.is_gone:
                await source.ahead.fill(start, source.end, share_bytes(len(self._inputs) + 1))
            if source.end is not None:
                source.successors = []
            else:
                source.successors = await following(self._stores, self.scope, self.stream, segment_id)
        except SegmentNotFoundError as error:
            source.error = await what_became_of(self._stores, error.segment)
        except NadiError as error:
            source.error = error
        self._news_of(source)


# --- what the rest of the client asks of a reader ---------------------------------------------


def is_closed(reader: SliceReader) -> bool:
    return reader._closed


async def held_block(reader: SliceReader, timeout: float | None) -> tuple[int, EventBlock] | None:
    """`next_block` for another thread: the same one until `give_out`, so that an interrupted wait loses none."""
    if reader._held is None or reader._closed:
        reader._held = await reader.next_block(timeout)
    return reader._held


def give_out(reader: SliceReader) -> None:
    """The held block has reached its thread."""
    reader._held = None


async def open_reader(
    stores: SegmentStores,
    scope: str,
    stream: str,
    start: StreamCut | None = None,
    end: StreamCut | None = None,
    routing_keys: Sequence[str] | None = None,
    on_damage: OnDamage = RAISE,
) -> SliceReader:
    """A reader from `start` (or the head) to `end` (or forever); InvalidStreamCutError if they don't fit.

    With routing keys, only the segments that can hold them are read, and `position` has only those.
    """
    check_on_damage(on_damage)
    for cut in (start, end):
        boundary.check_cut(cut, scope, stream)
    keys = None
    if routing_keys is not None:
        keys = [key_position(key) for key in several_texts(routing_keys, "routing keys to read")]
    else:
        await asyncio.gather(*(boundary.check_boundary(stores, cut) for cut in (start, end) if cut is not None))
    if start is None:
        start = await stores.controller.head(scope, stream)
    if end is None:
        frontier = await boundary.frontier_at(stores, start, keys)
        return SliceReader(stores, scope, stream, frontier, start, None, on_damage)
    boundary.check_order(start, end)  # before anything is asked
    frontier, last, _ = await asyncio.gather(
        boundary.frontier_at(stores, start, keys),
        boundary.segment_ranges(stores, scope, stream, end),
        boundary.segments_between(stores, start, end),
    )
    return SliceReader(stores, scope, stream, frontier, start, Bound(end.positions, last), on_damage)
