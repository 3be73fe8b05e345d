"""SliceReader: the events of a stream between two cuts, or from a cut on as they arrive.

Each segment under way has a task that reads ahead into a bounded queue; blocks are given out from
all of them in turn. A segment's successors begin only when everything of it was given out, and of
all other segments before them under any of their keys, so each key's events come in order. What
was given out is at any time a stream cut: `position()`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing

import msgspec

from nadi.client.control.arguments import check_is_cut, checked
from nadi.client.reading.damage import RAISE, SKIP, OnDamage, check_on_damage, note_skipped
from nadi.client.reading.lending import Lending
from nadi.client.reading.read_ahead import ReadAhead, following, share_bytes, what_became_of
from nadi.client.reading.watermarks import TimeWindow, TimeWindows
from nadi.client.segments.assemble import EventAssembler
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    ClosedError,
    DamagedDataError,
    InvalidArgumentError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
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
from nadi.naming import parse_segment_name, segment_epoch, segment_name

_ids = itertools.count()


class Event(msgspec.Struct, frozen=True, gc=False):  # made a million times a second: five times as fast as a dataclass
    """One event, and where it lies: `offset` is that of its header in the segment."""

    data: bytes
    segment_id: int
    offset: int


def events_of(segment_id: int, block: EventBlock) -> Iterator[Event]:
    """The events of a block one by one."""
    return map(Event, block.events(), itertools.repeat(segment_id), block.offsets().tolist())


class _Input:
    """One segment under way: blocks that were read ahead, and how far they were given out."""

    def __init__(self, piece: SegmentRange, start: int, end: int | None, ahead: ReadAhead) -> None:
        self.piece = piece
        self.given = start
        self.end = end
        self.ahead, self.blocks = ahead, ahead.blocks
        self.lent = 0  # blocks that another thread has, or can take
        self.is_due = False  # it has its place among those with something to give
        self.successors: list[SegmentRange] | None = None  # known once it was read to its end
        self.is_gone = False  # the whole segment was truncated away, and that was told
        self.error: NadiError | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_drained(self) -> bool:
        return not self.blocks and not self.lent and self.successors is not None

    @property
    def waits(self) -> bool:
        """It goes on once lent blocks were taken."""
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
        self.given = max(self.given, block.offset + block.size_bytes)  # a gap behind it may be told already


@checked()
class SliceReader:
    """Made by `open_reader`; one user at a time."""

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
        self.skipped: list[DamagedDataError] = []  # with on_damage="skip": the last places gone past
        self._on_damage = on_damage
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._purpose = f"reader {next(_ids)}"
        self._frontier = frontier
        self._bound = bound
        self._inputs: dict[int, _Input] = {}
        self._due: deque[_Input] = deque()  # those with a block or an error, in their turn
        self._drained = False  # one may have been given out to its end since `_follow` last looked
        self._stopped: dict[int, int] = {}  # segments read up to the end cut
        self._news = asyncio.Event()
        self._lending: Lending[_Input] | None = None
        self._closed = False
        self._windows = TimeWindows(stores, scope, stream)
        for segment_id, piece in list(frontier.active.items()):
            self._begin(piece, max(start.positions[segment_id], 0))

    async def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        """(segment id, events), or None at the end of the slice or of a sealed stream.

        RequestTimeoutError if nothing came within `timeout` seconds, or the server was away for as long as the
        client waits for it: ask again. TruncatedError, once, if what was to be read next was truncated away: from its
        `offset` to its `start_offset`, or all of the segment (SegmentGoneError). DamagedDataError, once, if it is
        damaged: from its `offset` to its `end_offset`; damage that is skipped is noted in `skipped` instead. The next
        call goes on behind that. PastEndError if the start lies past a segment's end.
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
            raise self.nothing_for(timeout) from None

    def lend_to(self, lending: Lending[_Input]) -> None:
        """For another thread, instead of `next_block`: all blocks go there as they come, up to an end or an error;
        called again, it goes on after that. On the loop's thread, like all else here."""
        self._lending = lending
        lending.is_open = True
        self._tell()

    def look(self) -> None:
        """Lent blocks were taken."""
        self._tell()

    def nothing_for(self, timeout: float | None) -> RequestTimeoutError:
        """What `next_block` raises after that time-out."""
        trouble = self._stores.waits_for()
        return RequestTimeoutError(
            f"nothing to read in {self.scope}/{self.stream} for {timeout} s" + (f": {trouble}" if trouble else "")
        )

    async def __aiter__(self) -> AsyncIterator[tuple[int, EventBlock]]:
        while True:
            found = await self.next_block()
            if found is None:
                return
            yield found

    def position(self) -> StreamCut:
        """The boundary between what was given out and what was not; start there to go on."""
        self._tell()
        self._follow()
        given = {segment_id: source.given for segment_id, source in self._inputs.items()}
        return StreamCut(self.scope, self.stream, self._frontier.positions(given | self._stopped))

    async def current_time_window(self, position: StreamCut | None = None) -> TimeWindow:
        """In which event time `position()`, or a position before it, stands; read from the stream's watermarks."""
        return await self._windows.at((position or self.position()).positions)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End at once; who waits in `next_block` gets ClosedError."""
        self._closed = True
        for source in self._inputs.values():
            if source.task is not None:
                source.task.cancel()
        self._stores.release(self._purpose)
        self._tell()

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

    def _next(self) -> _Input | None:
        """Which has the next block, once there is one, an error, or the end; one block must be taken of it."""
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
        if isinstance(error, SegmentGoneError):
            source.is_gone = True
            self._go_on(source, source.given)
        elif isinstance(error, TruncatedError):
            self._go_on(source, error.start_offset)
        elif isinstance(error, DamagedDataError):
            self._go_on(source, error.end_offset)
        elif isinstance(error, UnavailableError):
            self._try_again()
        else:
            self._queue(source)  # it will be told again
        raise error

    def _skip_damage(self) -> None:
        """Go on behind the damage that would be told now."""
        while self._due and not self._due[0].blocks and isinstance(error := self._due[0].error, DamagedDataError):
            source = self._due.popleft()
            source.is_due = False
            note_skipped(self.skipped, error)
            self._go_on(source, error.end_offset)

    def _queue(self, source: _Input) -> None:
        if not source.is_due:
            source.is_due = True
            self._due.append(source)

    def _look_at(self, source: _Input) -> None:
        """Give it its place if it has something, and note if it was given out to its end."""
        if source.blocks or source.error is not None:
            self._queue(source)
        self._drained = self._drained or source.is_drained

    def _news_of(self, source: _Input) -> None:
        """It has another block, an error, or its end."""
        self._look_at(source)
        self._tell()

    def _go_on(self, source: _Input, offset: int) -> None:
        """Behind what was told."""
        source.error = None
        source.given = offset if source.end is None else min(offset, source.end)
        source.task = asyncio.create_task(self._read(source, source.given))

    def _try_again(self) -> None:
        """One has told that the server is away: the others need not, and all ask again."""
        for source in self._inputs.values():
            if isinstance(source.error, UnavailableError):
                if source.is_due and not source.blocks:
                    source.is_due = False
                    self._due.remove(source)
                source.error = None
                source.task = asyncio.create_task(self._read(source, source.ahead.reached))

    def _tell(self) -> None:
        """There is news: for whoever waits in `next_block`, and for another thread."""
        self._news.set()
        lending = self._lending
        if lending is None:
            return
        lending.wants_word = False
        self._lend(lending)
        if any(source.waits for source in lending.sources()):
            lending.wants_word = True
            self._lend(lending)  # what was taken before this was said

    def _lend(self, lending: Lending[_Input]) -> None:
        self._hear()
        while lending.is_open and self._is_ready():
            try:
                source = self._next()
            except NadiError as error:
                lending.end(error)
                return
            if source is None:
                lending.end(None)
            else:
                lending.lend(source.piece.segment_id, source.lend(), source)
                self._look_at(source)

    def _hear(self) -> None:
        """Of the lent blocks that were taken."""
        if self._lending is not None:
            for source, block in self._lending.returned():
                source.take_back(block)
                self._drained = self._drained or source.is_drained

    def _begin(self, piece: SegmentRange, start: int) -> None:
        segment_id = piece.segment_id
        end = self._bound.limit(piece) if self._bound is not None else None
        if end is not None and end <= start:
            self._frontier.stop(segment_id)
            self._stopped[segment_id] = start
            return
        name = segment_name(self.scope, self.stream, segment_id)
        ahead = ReadAhead(self._stores, name, purpose=self._purpose, news=lambda: self._news_of(source))
        source = self._inputs[segment_id] = _Input(piece, start, end, ahead)
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

    async def _read(self, source: _Input, start: int) -> None:
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


async def open_reader(
    stores: SegmentStores,
    scope: str,
    stream: str,
    start: StreamCut | None = None,
    end: StreamCut | None = None,
    routing_keys: Sequence[str] | None = None,
    on_damage: OnDamage = RAISE,
) -> SliceReader:
    """A reader from `start` (or the head) to `end` (or for ever); InvalidStreamCutError if they don't fit.

    With routing keys, only the segments that can hold them are read, and `position` has only those.
    """
    controller = stores.controller
    check_on_damage(on_damage)
    for cut in (start, end):
        check_cut(cut, scope, stream)
    keys = None if routing_keys is None else [key_position(key) for key in checked_keys(routing_keys)]
    if keys is None:
        await asyncio.gather(*(check_boundary(stores, cut) for cut in (start, end) if cut is not None))
    if start is None:
        start = await controller.head(scope, stream)
    if end is None:
        return SliceReader(stores, scope, stream, await frontier_at(stores, start, keys), start, None, on_damage)
    for segment_id, offset in start.positions.items():
        if offset > end.positions.get(segment_id, offset):
            raise InvalidStreamCutError(f"the end cut lies before the start cut in segment {segment_id}")
    try:
        frontier, last, _ = await asyncio.gather(
            frontier_at(stores, start, keys),
            segment_ranges(stores, scope, stream, end),
            controller.segments_between(scope, stream, start, end),
        )
    except InvalidStreamCutError:
        raise
    except InvalidArgumentError as error:
        raise InvalidStreamCutError(f"no slice lies between these cuts: {error}") from error
    return SliceReader(stores, scope, stream, frontier, start, Bound(end.positions, last), on_damage)


async def frontier_at(stores: SegmentStores, cut: StreamCut, keys: Sequence[float] | None = None) -> Frontier:
    """What may be read at a cut, under all keys or under these places of the key space; InvalidStreamCutError if it
    is no boundary, as far as its own segments tell."""
    ranges = await segment_ranges(stores, cut.scope, cut.stream, cut)
    return Frontier(ranges, [segment_id for segment_id, offset in cut.positions.items() if offset < 0], keys)


async def check_boundary(stores: SegmentStores, cut: StreamCut) -> None:
    """InvalidStreamCutError unless a reader of the whole stream could stand there, as far as its history tells."""
    if await stores.controller.is_stream_cut_valid(cut):
        return
    await frontier_at(stores, cut)  # says more of what is wrong, if the cut's own segments tell
    raise InvalidStreamCutError(f"{cut} is no boundary of its stream: take one from a reader or a checkpoint")


def checked_keys(routing_keys: Iterable[str]) -> list[str]:
    """Several keys to read; InvalidArgumentError for one text, whose letters would be taken for keys."""
    keys = [] if isinstance(routing_keys, str) else list(routing_keys)
    if isinstance(routing_keys, str) or not all(isinstance(key, str) for key in keys):
        raise InvalidArgumentError(f"routing keys to read are a list of texts, not {routing_keys!r}")
    return keys


def check_cut(cut: StreamCut | None, scope: str, stream: str) -> None:
    """InvalidStreamCutError unless the cut is one of this stream."""
    if cut is None:
        return
    check_is_cut(cut)
    if (cut.scope, cut.stream) != (scope, stream):
        raise InvalidStreamCutError(f"the cut belongs to stream {cut.scope}/{cut.stream}, not to {scope}/{stream}")


async def segment_ranges(stores: SegmentStores, scope: str, stream: str, cut: StreamCut) -> list[SegmentRange]:
    """The key ranges of a cut's segments; InvalidStreamCutError if one isn't of the stream."""

    async def of_epoch(epoch: int) -> list[SegmentRange]:
        try:
            return await stores.controller.epoch_segments(scope, stream, epoch)
        except NotFoundError:
            if not await stores.controller.stream_exists(scope, stream):
                raise
            return []

    epochs = sorted({segment_epoch(segment_id) for segment_id in cut.positions})
    found = await asyncio.gather(*map(of_epoch, epochs))
    ranges = {piece.segment_id: piece for pieces in found for piece in pieces}
    unknown = [segment_id for segment_id in cut.positions if segment_id not in ranges]
    if unknown:
        raise InvalidStreamCutError(
            f"{scope}/{stream} never had a segment {unknown[0]}: the cut is not its own, or was made before the stream "
            "was deleted and made anew"
        )
    return [ranges[segment_id] for segment_id in cut.positions]


async def read_segment_range(
    stores: SegmentStores, segment: str, start: int, end: int, on_damage: OnDamage = RAISE
) -> AsyncGenerator[EventBlock, None]:
    """The events of one segment between two event boundaries, as fast as its store gives them."""
    parse_segment_name(segment)
    check_on_damage(on_damage)
    purpose = f"reader {next(_ids)}"
    reached = start
    try:
        while reached < end:
            assembler = EventAssembler(reached)
            try:
                async with aclosing(read_bytes(stores, segment, reached, end, purpose=purpose)) as pieces:
                    async for data in pieces:
                        for block in assembler.feed(data):
                            yield block
                reached = assembler.offset
                break
            except DamagedDataError as found:
                go_on_at = assembler.next_event_after(found.end_offset)
                error = DamagedDataError(segment, assembler.offset, go_on_at, found.reason)
                if on_damage == RAISE:
                    raise error from found
                note_skipped([], error)
                reached = min(error.end_offset, end)
    finally:
        stores.release(purpose)
    if reached != end:
        raise InvalidArgumentError(
            f"{end:,} is no event boundary of segment {segment}, or lies past its end ({reached:,})"
        )
