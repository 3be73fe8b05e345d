"""What a reader of a group returns and tells, how to iterate over it, and the conditions it checks on the way."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from nadi.client.control.arguments import checking
from nadi.client.control.closing import Closing
from nadi.client.readergroup.state import GroupState
from nadi.client.reading.read_ahead import Gap
from nadi.client.reading.watermarks import TimeWindow
from nadi.model.event import EventBlock

Condition = Callable[[str, EventBlock], int | None]


class _GroupRead(Protocol):
    @property
    def event(self) -> object: ...
    @property
    def block(self) -> object: ...
    @property
    def segment(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def is_read_completed(self) -> bool: ...


R = TypeVar("R", bound=_GroupRead)


class GroupReads(Closing, Generic[R]):
    """What readers of events and of values share: iterating, and leaving the group at the end of a `with` block."""

    name: str
    _held: R | None = None  # on its way to another thread

    @abstractmethod
    def _next_ready(self) -> R | None:
        """The next event of the block in hand, if it comes next; for any thread."""

    @abstractmethod
    def _again(self, *, is_whole: bool) -> R | None:
        """The block that was read last, which has not reached the application: whole, or its first event."""

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

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(is_done=error is None)


def next_ready_of(reader: GroupReads[R]) -> Callable[[], R | None]:
    """Return a function, for any thread, that returns the block's next event, or None: ask the loop then."""
    return reader._next_ready


async def held_read(reader: GroupReads[R], timeout: float | None, *, is_whole: bool) -> R | None:
    """`read_next_block`, or without `is_whole` `read_next_event`, for another thread: the same result until
    `give_out_read`, so that an interrupted wait loses none."""
    held = reader._held
    if held is None:
        reader._held = await (reader.read_next_block if is_whole else reader.read_next_event)(timeout)
    elif (held.event if is_whole else held.block) is not None:  # the interrupted call was of the other kind
        reader._held = reader._again(is_whole=is_whole)
    return reader._held


def give_out_read(reader: GroupReads[R]) -> None:
    """What was held has reached its thread."""
    reader._held = None


def place_of(held: _GroupRead | None) -> dict[str, int]:
    """Where a read begins that was not given out: nothing of it is done."""
    return {held.segment: held.offset} if held is not None and held.offset >= 0 else {}


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


class Notices:
    """What a reader tells besides events: checkpoints and resets.

    A checkpoint is announced once, between two events; it is passed when the application next asks for more, at the
    positions reached then. `passed`: by number, the positions at which checkpoints were passed that the group hasn't
    recorded yet."""

    def __init__(self) -> None:
        self.passed: dict[int, dict[str, int]] = {}
        self._waiting: deque[EventRead] = deque()
        self._announced: dict[int, str] = {}  # checkpoints to be reported to the application
        self._told: list[int] = []  # those reported last

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether none waits to be told, and none told last is to be passed."""
        return not self._waiting and not self._told

    def take(self) -> EventRead:
        notice = self._waiting.popleft()
        if notice.checkpoint is not None:
            self._told = [number for number, name in self._announced.items() if name == notice.checkpoint]
        return notice

    def pass_told(self, positions: Mapping[str, int]) -> bool:
        """Note that the application asks for more, at these positions; return whether that passes a checkpoint."""
        told, self._told = self._told, []
        self.passed |= {number: dict(positions) for number in told}
        return bool(told)

    def reset(self) -> None:
        """Announce that the group continues from elsewhere; waiting notices no longer matter."""
        self._told.clear()
        self._announced.clear()
        self._waiting = deque([EventRead(is_reset=True)])

    def follow(self, state: GroupState, reader: str) -> bool:
        """Announce new checkpoints, and forget what the group knows; return whether anything is new."""
        pending = {one.number: one for one in state.pending_for(reader)}
        self.passed = {number: at for number, at in self.passed.items() if number in pending}
        self._announced = {number: name for number, name in self._announced.items() if number in pending}
        new = [one for number, one in pending.items() if not one.is_silent and number not in self._announced]
        for one in new:
            self._announced[one.number] = one.name
            self._waiting.append(EventRead(checkpoint=one.name))
        return bool(new)
