"""EventReader: one reader of a group.

A task compares the group's state with what is read here, every now and then and whenever something is
to be told: it starts what was acquired, stops what was released, and stores what `plan` says, all in
one update. Reading itself never waits for it, except where the group's promise needs it.

What was handed to the application counts as done when the application asks for more: only that is
recorded, and a segment is given away only when nothing of it is in the application's hands. So if this
reader dies, another repeats what may not have been finished, and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from types import TracebackType

import msgspec

from nadi.client.readergroup.plan import Facts, plan
from nadi.client.readergroup.shared import SharedState
from nadi.client.readergroup.source import Gap, SegmentSource
from nadi.client.readergroup.state import Complete, CreateCheckpoint, GroupState, Pass, Release, cuts_of
from nadi.client.readergroup.watch import Watch
from nadi.client.stores import SegmentStores
from nadi.client.watermarks import TimeWindow, TimeWindows
from nadi.errors import (
    ClosedError,
    InvalidArgumentError,
    NadiError,
    ReaderGroupNotFoundError,
    RequestTimeoutError,
    UnavailableError,
)
from nadi.limits import READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES, READ_REPLY_MAX_BYTES
from nadi.model.event import EventBlock

Condition = Callable[[str, EventBlock], int | None]
_REPORTS_IN_LIFE = 4  # a reader without news still reports this often before it would be taken for dead
_POSITIONS_EVERY_S = 1.0
_ids = itertools.count()


class EventRead(msgspec.Struct, frozen=True):
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


def on_events(predicate: Callable[[bytes], bool]) -> Condition:
    """A condition that holds from the first event on for which `predicate` is true.

    >>> from nadi.model.event import frame_events, whole_events
    >>> block, _ = whole_events(memoryview(frame_events([b"a", b"stop", b"b"])))
    >>> on_events(lambda event: event == b"stop")("sc/st/0.#epoch.0", block)
    1
    """

    def find(segment: str, block: EventBlock) -> int | None:
        return next((index for index, event in enumerate(block) if predicate(event)), None)

    return find


class _Cursor:
    """A block in the application's hands; `next` is the first event that was not taken from it."""

    __slots__ = ("block", "count", "events", "is_whole", "next", "offsets", "source")

    def __init__(self, source: SegmentSource, block: EventBlock, *, is_whole: bool) -> None:
        self.source, self.block, self.is_whole = source, block, is_whole
        self.offsets: list[int] = [] if is_whole else block.offsets().tolist()
        self.count = len(self.offsets)
        self.events = iter(block)
        self.next = 0

    @property
    def given(self) -> int:
        taken = self.next
        return self.offsets[taken] if taken < self.count else self.block.offset + self.block.size_bytes

    @property
    def done(self) -> int:
        taken = self.next
        return self.offsets[taken - 1] if taken > 0 else self.block.offset


class EventReader:
    """Made by `ReaderGroup.create_reader`; one user at a time.

    conditions: by name, each called with a segment's name and a block before the block is given out; it
    returns the index of the first event for which it holds, or None. Where one first holds in the group,
    a stream cut of that name is made, just before that event.
    """

    def __init__(
        self,
        stores: SegmentStores,
        shared: SharedState,
        name: str,
        token: str,
        state: GroupState,
        conditions: Mapping[str, Condition],
    ) -> None:
        self.name = name
        self._stores, self._shared, self._token, self._state = stores, shared, token, state
        self._purpose = f"group reader {next(_ids)}"
        self._sources: dict[str, SegmentSource] = {}
        self._turn: deque[SegmentSource] = deque()
        self._cursor: _Cursor | None = None
        self._attention = False  # something other than the next event of the block is to be looked at
        self._notices: deque[EventRead] = deque()
        self._announced: dict[int, str] = {}  # checkpoints that the application is told of
        self._told: list[int] = []  # those it was told of: the next read passes them
        self._passed: dict[int, dict[str, int]] = {}
        self._conditions = dict(conditions)
        self._windows: dict[str, TimeWindows] = {}
        self._watch = Watch(name)
        self._synced_at = self._reported_at = time.monotonic()
        self._news, self._wake = asyncio.Event(), asyncio.Event()
        self._lock = asyncio.Lock()
        self._error: NadiError | None = None
        self._closed = False
        self._task = asyncio.create_task(self._keep_up())

    # --- reading ----------------------------------------------------------------------------

    def next_ready(self) -> EventRead | None:
        """The next event of the block in hand, from any thread; None: ask `read_next_event`."""
        cursor = self._cursor
        if cursor is None or self._attention or cursor.next >= cursor.count:
            return None
        index = cursor.next
        cursor.next = index + 1
        return EventRead(next(cursor.events), None, cursor.source.segment, cursor.offsets[index])

    async def read_next_event(self, timeout: float | None = None) -> EventRead | None:
        """The next event, or what else there is to know; None if nothing came within `timeout` seconds.

        ReaderOfflineError if others took this reader for dead. After `is_read_completed` there is nothing more.
        """
        found = self.next_ready()
        return found if found is not None else await self._next(timeout, is_whole=False)

    async def read_next_block(self, timeout: float | None = None) -> EventRead | None:
        """As `read_next_event`, with `block`, all the events that were read at once, in place of `event`."""
        return await self._next(timeout, is_whole=True)

    async def __aiter__(self) -> AsyncIterator[EventRead]:
        while True:
            found = await self.read_next_event()
            assert found is not None
            if found.is_read_completed:
                return
            yield found

    async def _next(self, timeout: float | None, *, is_whole: bool) -> EventRead | None:
        self._put_cursor_back()
        self._attention = False
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._news.clear()
                    self._check()
                    self._pass_told()
                    if time.monotonic() - self._synced_at > self._state.timing.dead_after_ms / 1000:
                        await self._refresh()  # others may have taken everything
                        continue
                    if self._notices:
                        return self._give_notice()
                    found = await self._take(is_whole)
                    if found is not None:
                        return found
                    if self._state.is_completed:
                        return EventRead(is_read_completed=True)
                    if any(source.completion is not None for source in self._sources.values()):
                        self._wake.set()
                    await self._news.wait()
        except TimeoutError as error:
            silence_s = time.monotonic() - self._synced_at
            if isinstance(error, RequestTimeoutError):
                raise
            if silence_s > self._state.timing.dead_after_ms / 1000:
                raise RequestTimeoutError(
                    f"the state of the reader group can't be read for {silence_s:.0f} s"
                ) from None
            return None

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"reader {self.name} was closed")
        if self._error is not None:
            raise self._error

    def _put_cursor_back(self) -> None:
        """What was taken from the block in hand is done; the rest goes back to its segment."""
        cursor, self._cursor = self._cursor, None
        if cursor is None or self._sources.get(cursor.source.segment) is not cursor.source:
            return
        cursor.source.given = cursor.given
        if cursor.next < cursor.count:
            cursor.source.put_back(_part(cursor.block, cursor.next, cursor.count))

    def _pass_told(self) -> None:
        for number in self._told:
            self._passed[number] = {name: source.given for name, source in self._sources.items()}
            self._wake.set()
        self._told.clear()

    def _give_notice(self) -> EventRead:
        notice = self._notices.popleft()
        if notice.checkpoint is not None:
            self._told = [number for number, name in self._announced.items() if name == notice.checkpoint]
        return notice

    async def _take(self, is_whole: bool) -> EventRead | None:
        """Something of the next segment that has something."""
        for _ in range(len(self._turn)):
            source = self._turn[0]
            self._turn.rotate(-1)
            if source.is_frozen:
                continue
            if source.items:
                found = await self._give(source, is_whole)
                return found if found is not None else await self._take(is_whole)
            if source.error is not None:
                raise source.error
        return None

    async def _give(self, source: SegmentSource, is_whole: bool) -> EventRead | None:
        """The source's next item; None if a stream cut was made before it, and one has to look again."""
        item = source.items[0]
        if isinstance(item, Gap):
            source.take()
            source.given = source.given if item.to_offset is None else item.to_offset
            return EventRead(segment=item.segment, gap=item)
        found = {name: condition(source.segment, item) for name, condition in self._conditions.items()}
        first = min((index for index in found.values() if index is not None), default=len(item))
        if first == 0:
            await self._make_cuts([name for name, index in found.items() if index == 0])
            return None
        block = source.take()
        assert block is item
        if first < len(item):  # there the condition is looked at again, and holds at once
            source.put_back(_part(item, first, len(item)))
            item = _part(item, 0, first)
        cursor = self._cursor = _Cursor(source, item, is_whole=is_whole)
        if is_whole:
            return EventRead(None, item, source.segment, item.offset)
        cursor.next = 1
        return EventRead(next(cursor.events), None, source.segment, cursor.offsets[0])

    async def _make_cuts(self, names: list[str]) -> None:
        """Stream cuts where this reader is now, unless another reader was first."""

        def change(state: GroupState) -> tuple[GroupState, None]:
            state.member(self.name, self._token)
            if state.generation != self._state.generation:
                return state, None
            given = {segment: one.given for segment, one in self._sources.items()}
            for name in names:
                if state.checkpoint(name) is None:
                    state = state.apply(CreateCheckpoint(name, is_silent=True, is_kept=True))
                    state = state.apply(Pass(self.name, state.checkpoints_made, given))
            return state, None

        async with self._lock:
            state, _ = await self._shared.change(change)
            self._reconcile(state)

    # --- keeping up with the group ------------------------------------------------------------

    async def _keep_up(self) -> None:
        while not self._closed:
            self._wake.clear()
            try:
                await self._refresh()
            except ClosedError:
                return
            except UnavailableError:
                pass  # tried again soon; reading ends by itself when this has lasted too long
            except NadiError as error:
                self._error = error
                self._attention = True
                self._news.set()
                return
            try:
                async with asyncio.timeout(self._state.timing.refresh_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _refresh(self) -> None:
        async with self._lock:
            state, _ = await self._shared.change(self._change)
            self._reconcile(state)

    def _change(self, state: GroupState) -> tuple[GroupState, None]:
        """The next state as this reader wants it; what would be given away is frozen until that is decided."""
        state.member(self.name, self._token)
        planned, updates = plan(state, self.name, self._facts(state))
        for name, source in self._sources.items():
            held = state.segments.get(name) if state.generation == self._state.generation else None
            source.is_frozen = held is None or held.owner != self.name
        for update in updates:
            if isinstance(update, Release | Complete) and update.segment in self._sources:
                self._sources[update.segment].is_frozen = True
        return planned, None

    def _facts(self, state: GroupState) -> Facts:
        now = time.monotonic()
        self._watch.look(state, now)
        silent = self._watch.silent(state)
        if state.generation != self._state.generation:
            return Facts(silent=silent)
        owned = state.owned_by(self.name)
        sources = {name: source for name, source in self._sources.items() if name in owned}
        cursor = self._cursor
        given = {name: source.given for name, source in sources.items()}
        done = dict(given)
        movable = set(sources)
        if cursor is not None and cursor.source.segment in sources:
            in_hand = cursor.source.segment
            given[in_hand], done[in_hand] = cursor.given, cursor.done
            movable.discard(in_hand)
        changed = any(offset > owned[name].offset for name, offset in done.items())
        waited = now - self._reported_at
        life = state.timing.dead_after_ms / 1000 / _REPORTS_IN_LIFE
        return Facts(
            given,
            done,
            movable,
            {name: end for name, source in sources.items() if (end := source.completion) is not None},
            self._passed,
            silent,
            self._watch.due_checkpoint(state),
            waited >= life or (changed and waited >= min(_POSITIONS_EVERY_S, life)),
        )

    def _reconcile(self, state: GroupState) -> None:
        """Read what the state says that this reader has, and nothing else."""
        before, self._state = self._state, state
        now = self._synced_at = time.monotonic()
        held, known = state.readers.get(self.name), before.readers.get(self.name)
        if held != known:
            self._reported_at = now
        if state.generation != before.generation:
            for name in list(self._sources):
                self._stop(name)
            self._told.clear()
            self._announced.clear()
            self._notices.clear()
            self._notices.append(EventRead(is_reset=True))
            self._attention = True
        owned = state.owned_by(self.name)
        for name in [name for name in self._sources if name not in owned]:
            self._stop(name)
        for source in self._sources.values():
            source.is_frozen = False
        for name, segment in owned.items():
            if name not in self._sources:
                self._start(state, name, segment.offset)
        pending = {one.number: one for one in state.pending_for(self.name)}
        self._passed = {number: at for number, at in self._passed.items() if number in pending}
        self._announced = {number: name for number, name in self._announced.items() if number in pending}
        for number, one in pending.items():
            if not one.is_silent and number not in self._announced:
                self._announced[number] = one.name
                self._notices.append(EventRead(checkpoint=one.name))
                self._attention = True
        self._conditions = {
            name: condition for name, condition in self._conditions.items() if state.checkpoint(name) is None
        }
        self._news.set()

    def _start(self, state: GroupState, name: str, offset: int) -> None:
        count = len(state.owned_by(self.name))
        source = SegmentSource(
            self._stores,
            state.segments[name].keys,
            offset,
            state.end_of(name),
            purpose=self._purpose,
            read_ahead_bytes=max(min(READ_AHEAD_BYTES, READ_AHEAD_OF_ALL_BYTES // count), READ_REPLY_MAX_BYTES),
            news=self._news.set,
        )
        self._sources[name] = source
        self._turn.append(source)

    def _stop(self, name: str) -> None:
        source = self._sources.pop(name)
        self._turn.remove(source)
        source.close()
        if self._cursor is not None and self._cursor.source is source:
            self._attention = True  # the block in hand is not this reader's any more

    # --- the end ------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed

    def positions(self) -> dict[str, int]:
        """Up to where each segment of this reader was given out."""
        cursor = self._cursor
        return {
            name: cursor.given if cursor is not None and cursor.source is source else source.given
            for name, source in self._sources.items()
        }

    async def current_time_window(self, stream: str) -> TimeWindow:
        """In which event time the group stands in a stream (`scope/stream`): this reader where it is now, the others
        where they have recorded that they are."""
        cut = cuts_of({**self._state.positions(), **self.positions()}).get(stream)
        if cut is None:
            raise InvalidArgumentError(f"the group reads nothing of {stream!r} now: say `scope/stream`")
        if stream not in self._windows:
            self._windows[stream] = TimeWindows(self._stores, cut.scope, cut.stream)
        return await self._windows[stream].at(cut.positions)

    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        """Leave the group; its segments are free at once.

        is_done: the application has finished with all that it was given; else what it was given last is
        read again by another reader.
        """
        if self._closed:
            return
        if is_done:
            self._put_cursor_back()
            self._pass_told()
        self._closed = True
        self._wake.set()
        self._news.set()
        try:
            async with self._lock:
                await self._shared.change(self._leave, timeout)
        except ReaderGroupNotFoundError:
            pass  # the group was deleted: there is nothing to leave
        finally:
            self.stop()

    def _leave(self, state: GroupState) -> tuple[GroupState, None]:
        held = state.readers.get(self.name)
        if held is None or held.token != self._token:
            return state, None
        facts = self._facts(state)
        for source in self._sources.values():
            source.is_frozen = True
        return plan(state, self.name, replace(facts, is_leaving=True))[0], None

    def stop(self) -> None:
        """End without a word, as a dead reader does: the others take it offline in time."""
        self._closed = True
        self._task.cancel()
        for name in list(self._sources):
            self._stop(name)
        self._stores.release(self._purpose)
        self._news.set()

    async def __aenter__(self) -> EventReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(is_done=error is None)


def _part(block: EventBlock, first: int, last: int) -> EventBlock:
    """Events `first` to `last` of a block, without a copy."""
    starts = block.starts
    low = int(starts[first]) if first < len(starts) else len(block.data)
    high = int(starts[last]) if last < len(starts) else len(block.data)
    return EventBlock(block.data[low:high], starts[first:last] - low, block.offset + low)
