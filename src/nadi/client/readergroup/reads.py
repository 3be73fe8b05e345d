"""What a reader of a group gives, how it is iterated over, and the conditions that it looks for on the way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from nadi.client.control.arguments import checking
from nadi.client.readergroup.source import Gap, SegmentSource
from nadi.model.event import EventBlock

Condition = Callable[[str, EventBlock], int | None]


class _Read(Protocol):
    @property
    def is_read_completed(self) -> bool: ...


R = TypeVar("R", bound=_Read)
Self = TypeVar("Self", bound="Reading[Any]")


class Reading(Generic[R]):
    """What readers of events and of values have in common: iterating, and leaving at the end of a `with` block."""

    @abstractmethod
    async def read_next_event(self, timeout: float | None = None) -> R | None:
        """The next event, or what else there is to know; None if nothing came within `timeout` seconds."""

    @abstractmethod
    async def read_next_block(self, timeout: float | None = None) -> R | None:
        """As `read_next_event`, with all the events that were read at once in place of one."""

    @abstractmethod
    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        """Leave the group; its segments are free at once."""

    async def __aiter__(self) -> AsyncIterator[R]:
        """Events and what else there is, until everything is read."""
        while True:
            found = await self.read_next_event()
            assert found is not None
            if found.is_read_completed:
                return
            yield found

    async def blocks(self) -> AsyncIterator[R]:
        """As iterating over the reader, by `read_next_block`."""
        while True:
            found = await self.read_next_block()
            assert found is not None
            if found.is_read_completed:
                return
            yield found

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(is_done=error is None)


class EventRead(msgspec.Struct, frozen=True, gc=False):
    """What a read gave: an event or a block of them, or else one of the other things.

    segment: the full name of the segment of the event, block or gap; offset: of the event's header, or
    where the block begins. checkpoint: all that was read before lies before this checkpoint. gap: data
    was truncated away before it was read. is_reset: the group goes on from elsewhere.
    is_read_completed: everything up to the end cuts, or the ends of sealed streams, was read by the group.
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
        """All events of this read: those of the block, or the one, or none."""
        if self.block is not None:
            return list(self.block)
        return [] if self.event is None else [self.event]


@checking
def on_events(predicate: Callable[[bytes], bool]) -> Condition:
    """A condition that holds from the first event on for which `predicate` is true.

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
    """A condition that holds from the first event on for whose segment (its full name) and offset `predicate` is true.

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
    """A block in the application's hands; `taken` counts the events that it has taken from it.

    A whole block is taken at once. Only the application's thread counts up; others may look at any time.
    """

    __slots__ = ("block", "count", "is_whole", "offsets", "reads", "source", "taken")

    def __init__(self, source: SegmentSource, block: EventBlock, *, is_whole: bool) -> None:
        self.source, self.block, self.is_whole = source, block, is_whole
        self.count = 0 if is_whole else len(block)
        self.offsets: list[int] = [] if is_whole else block.offsets().tolist()
        events = () if is_whole else block
        self.reads = map(EventRead, events, repeat(None), repeat(source.segment), self.offsets)
        self.taken = 0

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
        return self.offsets[taken - 1] if taken > 0 else self.block.offset

    def rest(self) -> EventBlock | None:
        """What was not taken."""
        return part_of(self.block, self.taken, self.count) if self.taken < self.count else None


def part_of(block: EventBlock, first: int, last: int) -> EventBlock:
    """Events `first` to `last` of a block, without a copy."""
    starts = block.starts
    low = int(starts[first]) if first < len(starts) else len(block.data)
    high = int(starts[last]) if last < len(starts) else len(block.data)
    return EventBlock(block.data[low:high], starts[first:last] - low, block.offset + low)
