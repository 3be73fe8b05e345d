"""What a reader of a group returns, how to iterate over it, and the conditions it checks on the way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import repeat
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from nadi.client.control.arguments import checking
from nadi.client.readergroup.source import Gap, SegmentSource
from nadi.client.reading.watermarks import TimeWindow
from nadi.model.event import EventBlock

Condition = Callable[[str, EventBlock], int | None]


class _Read(Protocol):
    @property
    def is_read_completed(self) -> bool: ...


R = TypeVar("R", bound=_Read)


class Reading(Generic[R]):
    """What readers of events and of values share: iterating, and leaving the group at the end of a `with` block."""

    name: str

    @abstractmethod
    def _next_ready(self) -> R | None: ...

    @abstractmethod
    async def read_next_event(self, timeout: float | None = None) -> R | None:
        """Return the next event, or another kind of `EventRead`; None if nothing arrived within `timeout` seconds.

        RequestTimeoutError if nothing arrived and the server was down, or the group's state could not be read, for
        longer than the client waits or the group's `dead_after_ms`: call it again. ReaderOfflineError if this reader
        was declared dead. DamagedDataError, once, at damaged data, unless that is skipped: then it is reported as a
        gap. UnavailableError if the schema of a value can't be fetched now: call it again, nothing is skipped.
        Nothing follows `is_read_completed`.
        """

    @abstractmethod
    async def read_next_block(self, timeout: float | None = None) -> R | None:
        """Read like `read_next_event`, but return all events that arrived together as `block` instead of `event`."""

    @abstractmethod
    def positions(self) -> dict[str, int]:
        """Return the position up to which each segment of this reader was returned."""

    @abstractmethod
    async def current_time_window(self, stream: str) -> TimeWindow:
        """Return the group's event-time window in a stream (`scope/stream`), from this reader's current position and
        the others' recorded ones."""

    @abstractmethod
    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        """Leave the group; its segments are free at once.

        is_done: the application has finished with everything it received; otherwise the last event or block is read
        again by another reader.
        """

    def __aiter__(self) -> AsyncIterator[R]:
        """Iterate over events and the other kinds of `EventRead` until everything is read."""
        return self._until_completed(self.read_next_event)

    def blocks(self) -> AsyncIterator[R]:
        """Iterate like the reader itself, but by blocks, with `read_next_block`."""
        return self._until_completed(self.read_next_block)

    async def _until_completed(self, read: Callable[[], Awaitable[R | None]]) -> AsyncIterator[R]:
        while True:
            found = await read()
            assert found is not None
            if found.is_read_completed:
                return
            yield found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(is_done=error is None)


def next_ready_of(reader: Reading[R]) -> Callable[[], R | None]:
    """Return a function, for any thread, that returns the block's next event, or None: call `read_next_event` then."""
    return reader._next_ready


class EventRead(msgspec.Struct, frozen=True, gc=False):
    """The result of a read: an event, a block of events, or one of the other things below.

    segment: the full name of the segment of the event, block or gap; offset: of the event's header, or
    the start of the block. checkpoint: everything read before lies before this checkpoint. gap: data
    was truncated away before it was read. is_reset: the group continues from another position.
    is_read_completed: the group has read everything up to the end cuts, or the ends of sealed streams.
    """

    event: bytes | None = None
    block: EventBlock | None = None
    segment: str = ""
    offset: int = -1
    checkpoint: str | None = None
    gap: Gap | None = None
    is_reset: bool = False
    is_read_completed: bool = False

    @property
    def events(self) -> list[bytes]:
        """All events of this read: the block's, the single one, or none."""
        if self.block is not None:
            return list(self.block)
        return [] if self.event is None else [self.event]


@checking
def on_events(predicate: Callable[[bytes], bool]) -> Condition:
    """Make a condition that holds from the first event for which `predicate` is true.

    >>> from nadi.model.event import whole_events
    >>> from nadi.model.framing import frame_events
    >>> block, _ = whole_events(memoryview(frame_events([b"a", b"stop", b"b"])))
    >>> on_events(lambda event: event == b"stop")("sc/st/0.#epoch.0", block)
    1
    """

    def find(segment: str, block: EventBlock) -> int | None:
        return next((index for index, event in enumerate(block) if predicate(event)), None)

    return find


@checking
def on_positions(predicate: Callable[[str, int], bool]) -> Condition:
    """Make a condition that holds from the first event for whose segment (full name) and offset `predicate` is true.

    >>> from nadi.model.event import whole_events
    >>> from nadi.model.framing import frame_events
    >>> block, _ = whole_events(memoryview(frame_events([b"a", b"b", b"c"])), 100)
    >>> block.offsets().tolist()
    [100, 109, 118]
    >>> on_positions(lambda segment, offset: offset >= 105)("sc/st/0.#epoch.0", block)
    1
    """

    def find(segment: str, block: EventBlock) -> int | None:
        offsets = block.offsets().tolist()
        return next((index for index, offset in enumerate(offsets) if predicate(segment, offset)), None)

    return find


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

    def rest(self) -> EventBlock | None:
        """The events not taken yet; None if there are none."""
        return part_of(self.block, self.taken, self.count) if self.taken < self.count else None


def part_of(block: EventBlock, first: int, last: int) -> EventBlock:
    """Events `first` to `last` of a block, without a copy."""
    starts = block.starts
    low = int(starts[first]) if first < len(starts) else len(block.data)
    high = int(starts[last]) if last < len(starts) else len(block.data)
    return EventBlock(block.data[low:high], starts[first:last] - low, block.offset + low)
