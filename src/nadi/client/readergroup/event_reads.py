"""Results of a group's reader, iteration over them, conditions on events, and notices of checkpoints and resets."""

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
    """Base of readers of events and of values: iteration, and leaving the group at the end of a `with` block."""

    name: str
    _undelivered: R | None = None  # on its way to another thread

    @abstractmethod
    def _next_ready(self) -> R | None:
        """Return the next event of the block in use, or None if something else comes first; for any thread."""

    @abstractmethod
    def _again(self, *, as_block: bool) -> R | None:
        """Return the last block read, which hasn't reached the application, or its first event, again."""

    @abstractmethod
    async def read_next_event(self, timeout: float | None = None) -> R | None:
        """Return the next event, or another kind of `EventRead`; None if nothing arrives within `timeout` seconds.

        RequestTimeoutError if nothing arrived and the server was down, or the group's state unreadable, for longer than
        the client's timeout or the group's `dead_after_ms`: retry. ReaderOfflineError if this reader was declared dead.
        DamagedDataError, once, at damaged data, unless damage is skipped: then it is reported as a gap.
        UnavailableError if the schema of a value can't be fetched now: retry, nothing is skipped. `is_read_completed`
        is always the last result.
        """

    @abstractmethod
    async def read_next_block(self, timeout: float | None = None) -> R | None:
        """Call `read_next_event`, but return all events that arrived together as `block` instead of `event`."""

    @abstractmethod
    def positions(self) -> dict[str, int]:
        """Return the end of the returned events in each segment of this reader."""

    @abstractmethod
    async def current_time_window(self, stream: str) -> TimeWindow:
        """Return the group's event-time window in a stream (`scope/stream`), from this reader's current position and
        the recorded positions of other readers."""

    @abstractmethod
    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        """Leave the group; other readers can take its segments immediately.

        is_done: the application has finished everything it received; otherwise another reader reads the last event or
        block again.
        """

    def __aiter__(self) -> AsyncIterator[R]:
        """Iterate over events and the other kinds of `EventRead` until everything is read."""
        return self._until_completed(self.read_next_event)

    def blocks(self) -> AsyncIterator[R]:
        """Iterate like the reader itself, but by blocks, with `read_next_block`."""
        return self._until_completed(self.read_next_block)

    async def _until_completed(self, read: Callable[[], Awaitable[R | None]]) -> AsyncIterator[R]:
        while True:
            result = await read()
            assert result is not None
            if result.is_read_completed:
                return
            yield result

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(is_done=error is None)


def next_ready_of(reader: GroupReads[R]) -> Callable[[], R | None]:
    """Return a function, for any thread, that returns the block's next event, or None to call the loop instead."""
    return reader._next_ready


async def pending_read(reader: GroupReads[R], timeout: float | None, *, as_block: bool) -> R | None:
    """Read an event or a block for another thread; returns the same result until `confirm_read`, so that an interrupted
    wait loses none."""
    undelivered = reader._undelivered
    if undelivered is None:
        reader._undelivered = await (reader.read_next_block if as_block else reader.read_next_event)(timeout)
    elif (undelivered.event if as_block else undelivered.block) is not None:  # the interrupted call was the other kind
        reader._undelivered = reader._again(as_block=as_block)
    return reader._undelivered


def confirm_read(reader: GroupReads[R]) -> None:
    """Record that the result of `pending_read` has reached its thread."""
    reader._undelivered = None


def start_of(read: _GroupRead | None) -> dict[str, int]:
    """Return the start of an undelivered read, by segment, or {}."""
    return {read.segment: read.offset} if read is not None and read.offset >= 0 else {}


class EventRead(msgspec.Struct, frozen=True, gc=False):
    """The result of a read: an event, a block of events, or a notice.

    segment: the full name of the segment of the event, block or gap; offset: of the event's header, or the start of the
    block. checkpoint: the name of a checkpoint that follows everything read so far. gap: data truncated before it was
    read. is_reset: the group continues from another position. is_read_completed: the group has read everything up to
    the end cuts, or the ends of sealed streams.
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
        """All events of this read: of the block, the single event, or none."""
        if self.block is not None:
            return list(self.block)
        return [] if self.event is None else [self.event]


@checking
def on_events(predicate: Callable[[bytes], bool]) -> Condition:
    """Create a condition that holds from the first event for which `predicate` is true.

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
    """Create a condition that holds from the first event whose segment (full name) and offset satisfy `predicate`.

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
    """Notices for the application besides events: checkpoints and resets.

    A checkpoint is announced once, between two events; it is passed by the application's next read, at the positions
    reached then. passed: the positions at which checkpoints were passed, by number, until the group has recorded them.
    """

    def __init__(self) -> None:
        self.passed: dict[int, dict[str, int]] = {}
        self._waiting: deque[EventRead] = deque()
        self._announced: dict[int, str] = {}  # checkpoints to report to the application
        self._reported: list[int] = []  # checkpoints reported by the last read

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> EventRead:
        notice = self._waiting.popleft()
        if notice.checkpoint is not None:
            self._reported = [number for number, name in self._announced.items() if name == notice.checkpoint]
        return notice

    def pass_reported(self, positions: Mapping[str, int]) -> bool:
        """Record the application's next read, at these positions; return whether it passes a checkpoint."""
        reported, self._reported = self._reported, []
        self.passed |= {number: dict(positions) for number in reported}
        return bool(reported)

    def reset(self) -> None:
        """Announce that the group continues from another position, and drop waiting notices."""
        self._reported.clear()
        self._announced.clear()
        self._waiting = deque([EventRead(is_reset=True)])

    def follow(self, state: GroupState, reader: str) -> bool:
        """Announce new checkpoints, and drop those that the group has recorded; return whether any is new."""
        pending = {checkpoint.number: checkpoint for checkpoint in state.pending_for(reader)}
        self.passed = {number: at for number, at in self.passed.items() if number in pending}
        self._announced = {number: name for number, name in self._announced.items() if number in pending}
        new = [
            checkpoint
            for number, checkpoint in pending.items()
            if not checkpoint.is_silent and number not in self._announced
        ]
        for checkpoint in new:
            self._announced[checkpoint.number] = checkpoint.name
            self._waiting.append(EventRead(checkpoint=checkpoint.name))
        return bool(new)
