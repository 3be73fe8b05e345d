"""EventReader: a reader of a group.

A task synchronizes with the group's state periodically and whenever there is something to report: it starts acquired
segments, stops released ones, and stores the updates from `plan`, all in one change. Reads wait for it only where the
group's guarantees require it.

Events count as done when the application reads again: only done events are recorded, and a segment is released only
when none of its events are in use. So if this reader dies, another repeats exactly the events that may be unfinished.

An application in another thread takes events from the block in use without calling the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from nadi.client.control.arguments import check_timeout, checked
from nadi.client.readergroup.assigned_segments import AssignedSegments, end_of
from nadi.client.readergroup.event_reads import Condition, EventRead, GroupReads, Notices, start_of
from nadi.client.readergroup.plan import Facts, Watch, plan
from nadi.client.readergroup.state import GroupState, cuts_of
from nadi.client.readergroup.stored_state import StoredGroupState, release
from nadi.client.readergroup.updates import Complete, CreateCheckpoint, Leave, Pass, PositionReport, Release
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.read_ahead import Gap, SegmentSource
from nadi.client.reading.watermarks import TimeWindow, TimeWindows
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    ReaderGroupNotFoundError,
    RequestTimeoutError,
    UnavailableError,
)
from nadi.model.event import EventBlock
from nadi.model.readergroup import POSITIONS_EVERY_S, REPORTS_IN_LIFE, StreamDataRetention

_ids = itertools.count()
log = logging.getLogger("nadi.client")


class ReaderMembership:
    """A reader's membership in its group.

    It also ends if the reader is garbage-collected without `close`, which would otherwise block its segments and every
    checkpoint forever. Its task references the reader only while it polls.
    """

    def __init__(self, reader: EventReader, wake: asyncio.Event, leave: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._wake, self._leave = weakref.ref(reader), wake, leave
        self._task = asyncio.create_task(self._run())

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    async def end(self, timeout_s: float) -> None:
        """Leave the group; the last event or block returned doesn't count as done."""
        reader = self._reader()
        if reader is not None:
            await reader.close(is_done=False, timeout=timeout_s)
            return
        self._wake.set()
        await asyncio.wait([self._task], timeout=timeout_s)

    async def _run(self) -> None:
        while (reader := self._reader()) is not None:
            self._wake.clear()
            pause_s = await reader._poll()
            if pause_s is None:
                return
            del reader
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
        await self._leave()


@checked(without=("read_next_event",))
class EventReader(GroupReads[EventRead]):
    """A reader of a share of a group's events; created by `ReaderGroup.create_reader`. Not thread-safe.

    conditions: by name, each called with a segment's name and a block before the block is returned; returns the index
    of the first event for which it holds, or None. When a condition first holds in the group, a stream cut of that name
    is made, just before that event. records_first: events are recorded as done before they are returned, so that they
    are returned at most once.
    """

    def __init__(
        self,
        stores: SegmentStores,
        shared: StoredGroupState,
        name: str,
        token: str,
        state: GroupState,
        conditions: Mapping[str, Condition],
        on_damage: OnDamage = RAISE,
        *,
        records_first: bool = False,
    ) -> None:
        self.name, self._on_damage, self._records_first = name, on_damage, records_first
        self._stores, self._shared, self._token, self._state = stores, shared, token, state
        self._changed, self._wake = asyncio.Event(), asyncio.Event()
        self._assigned = AssignedSegments(stores, f"group reader {next(_ids)}", self._changed.set)
        self._attention = False  # something other than the block's next event must be handled first
        self._notices = Notices()
        self._conditions = dict(conditions)
        self._windows: dict[str, TimeWindows] = {}
        self._watch = Watch(name)
        self._released = 0  # number of the last checkpoint released for retention
        self._synced_at = self._reported_at = time.monotonic()
        self._unanswered = 0  # consecutive requests for the state without an answer
        self._lock = asyncio.Lock()
        self._error: NadiError | None = None
        self._closed = False
        self._membership = ReaderMembership(self, self._wake, self._leave_abandoned())

    # --- reading ----------------------------------------------------------------------------

    def _next_ready(self) -> EventRead | None:
        cursor = self._assigned.cursor
        return None if cursor is None or self._attention or self._undelivered is not None else cursor.next()

    def _again(self, *, as_block: bool) -> EventRead | None:
        return self._assigned.again(as_block=as_block)

    async def read_next_event(self, timeout: float | None = None) -> EventRead | None:
        ready = self._next_ready()
        return ready if ready is not None else await self._next(timeout, as_block=False)

    async def read_next_block(self, timeout: float | None = None) -> EventRead | None:
        return await self._next(timeout, as_block=True)

    async def _next(self, timeout: float | None, *, as_block: bool) -> EventRead | None:
        check_timeout(timeout)
        self._assigned.put_back()
        self._attention = False
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._changed.clear()
                    if self._closed:
                        raise ClosedError(f"reader {self.name} was closed")
                    if self._error is not None:
                        raise self._error
                    self._pass_reported()
                    if self._silence_s > self._patience_s:  # others may have taken this reader's segments
                        await self._refresh()
                        if self._unanswered > 1 and self._silence_s > self._stores.timeout_s:
                            raise self._state_unreadable()
                        continue
                    if self._notices:
                        return self._notices.take()
                    result = await self._find(as_block)
                    if result is not None:
                        return result
                    if self._state.is_completed:
                        return EventRead(is_read_completed=True)
                    if self._assigned.completed():
                        self._wake.set()
                    await self._changed.wait()
        except RequestTimeoutError:
            raise
        except TimeoutError:
            if self._unanswered > 1:  # a single one may be due to a pause of this process
                raise self._state_unreadable() from None
            return None

    def _state_unreadable(self) -> RequestTimeoutError:
        why = self._stores.waits_for() or "check that the server is running"
        return RequestTimeoutError(f"the reader group's state couldn't be read for {self._silence_s:.0f} s: {why}")

    @property
    def _silence_s(self) -> float:
        """Seconds since the last read of the group's state."""
        return time.monotonic() - self._synced_at

    @property
    def _patience_s(self) -> float:
        return self._state.timing.dead_after_ms / 1000

    async def _refresh(self) -> None:
        """Synchronize with the group's state; count timeouts instead of raising: the reads decide how long to wait."""
        try:
            async with self._lock:
                self._reconcile(await self._shared.change(self._change, self._patience_s / 2))
        except RequestTimeoutError:
            self._unanswered += 1

    def _pass_reported(self) -> None:
        if self._notices.pass_reported(self._assigned.returned()):
            self._wake.set()

    async def _find(self, as_block: bool) -> EventRead | None:
        """Return the next event, block or gap of any segment; None if none has arrived."""
        while (source := self._assigned.next_source()) is not None:
            item = source.peek()
            if isinstance(item, Gap):
                self._assigned.at_gap = source
                if item.damage is not None and item.to_offset is not None and self._on_damage == RAISE:
                    raise item.error
                return EventRead(segment=item.segment, gap=item)
            assert item is not None
            count = len(item) if not self._conditions else await self._up_to_a_condition(source, item)
            if count > 0 and self._records_first:
                block_end = end_of(item, min(count, self._assigned.most_events))
                if not await self._recorded(source.segment, block_end):
                    return None  # handle the group's new state first
            if count > 0:
                return self._assigned.take(source, count, as_block=as_block).first()
        return None

    async def _recorded(self, segment: str, end: int) -> bool:
        """Return whether the group has recorded the segment's events up to `end` as done.

        If not, record it and return False: the caller must check again, because the segment may have been reassigned.
        """
        stored = self._state.owned_by(self.name).get(segment)
        if stored is not None and stored.offset >= end:
            return True
        generation = self._state.generation

        def change(state: GroupState) -> GroupState:
            state.member(self.name, self._token)
            return state if state.generation != generation else state.apply(PositionReport(self.name, {segment: end}))

        async with self._lock:
            self._reconcile(await self._shared.change(change))
        return False

    async def _up_to_a_condition(self, source: SegmentSource, block: EventBlock) -> int:
        """Return the number of events before the first for which a condition holds.

        If it is 0, the stream cut has been made, and the caller must check again.
        """
        indexes = {name: condition(source.segment, block) for name, condition in self._conditions.items()}
        first = min((index for index in indexes.values() if index is not None), default=len(block))
        if first == 0:
            await self._make_cuts([name for name, index in indexes.items() if index == 0])
        return first

    async def _make_cuts(self, names: list[str]) -> None:
        """Make stream cuts at this reader's position, unless another reader has made them."""

        def change(state: GroupState) -> GroupState:
            state.member(self.name, self._token)
            if state.generation != self._state.generation:
                return state
            for name in names:
                if state.checkpoint(name) is None:
                    state = state.apply(CreateCheckpoint(name, is_silent=True, is_kept=True))
                    state = state.apply(Pass(self.name, state.checkpoints_made, self._assigned.returned()))
            return state

        async with self._lock:
            self._reconcile(await self._shared.change(change))

    # --- synchronization with the group -------------------------------------------------------

    async def _poll(self) -> float | None:
        """Synchronize with the group's state once; return the seconds until the next poll, None at the end."""
        try:
            await self._refresh()
            await self._release(self._state)
        except ClosedError:
            return None
        except UnavailableError:
            pass  # retried by the next poll; reads fail if this lasts too long
        except NadiError as error:
            self._error = error
            self._attention = True
            self._changed.set()
            return None
        return None if self._closed else self._state.timing.refresh_ms / 1000

    async def _release(self, state: GroupState) -> None:
        """Release events up to the last complete checkpoint; the first reader by name does it for all.

        A release only moves forward: after a reset to an earlier position, truncated events are a gap.
        """
        if state.retention is not StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT:
            return
        complete = [
            checkpoint for checkpoint in state.checkpoints if checkpoint.is_complete and not checkpoint.is_silent
        ]
        if not complete or complete[-1].number <= self._released or self.name != min(state.readers, default=""):
            return
        for cut in cuts_of(complete[-1].positions).values():
            with suppress(InvalidStreamCutError, NotFoundError):  # released further before, or the stream was deleted
                await release(self._stores, self._shared.scope, self._shared.group, state.group_id, [cut])
        self._released = complete[-1].number

    def _leave_abandoned(self) -> Callable[[], Awaitable[None]]:
        """Return a function that leaves the group after this reader was garbage-collected; it must not reference it."""
        shared, assigned, name, token = self._shared, self._assigned, self.name, self._token

        def leave(state: GroupState) -> GroupState:
            return state.apply(Leave(name)) if state.has_member(name, token) else state

        async def leave_group() -> None:
            log.warning(
                "reader %s of group %s/%s was not closed: other readers continue from its recorded positions",
                *(name, shared.scope, shared.group),
            )
            assigned.close()
            with suppress(NadiError):  # the others will take it offline
                await shared.change(leave)

        return leave_group

    def _change(self, state: GroupState) -> GroupState:
        """Return the state with this reader's planned updates; segments it would release are frozen until stored."""
        state.member(self.name, self._token)
        planned, updates = plan(state, self.name, self._facts(state))
        owned = state.owned_by(self.name) if state.generation == self._state.generation else {}
        leaving = {update.segment for update in updates if isinstance(update, Release | Complete)}
        self._assigned.freeze([name for name in self._assigned.segments if name not in owned or name in leaving])
        return planned

    def _facts(self, state: GroupState) -> Facts:
        now = time.monotonic()
        self._watch.observe(state, now)
        silent = self._watch.silent(state)
        if state.generation != self._state.generation:
            return Facts(silent=silent)
        owned = state.owned_by(self.name)
        done, segment_in_use = self._done(), self._assigned.segment_in_use
        changed = any(name in owned and offset > owned[name].offset for name, offset in done.items())
        waited = now - self._reported_at
        life = state.timing.dead_after_ms / 1000 / REPORTS_IN_LIFE
        return Facts(
            returned={name: offset for name, offset in self._assigned.returned().items() if name in owned},
            done={name: offset for name, offset in done.items() if name in owned},
            movable={name for name in self._assigned.segments if name in owned and name != segment_in_use},
            completed={name: end for name, end in self._assigned.completed().items() if name in owned},
            passed=self._notices.passed,
            silent=silent,
            new_checkpoint=self._watch.due_checkpoint(state),
            is_report_due=waited >= life or (changed and waited >= min(POSITIONS_EVERY_S, life)),
        )

    def _done(self) -> dict[str, int]:
        return self._assigned.returned() if self._records_first else self._assigned.done()

    def _reconcile(self, state: GroupState) -> None:
        before, self._state = self._state, state
        self._synced_at, self._unanswered = time.monotonic(), 0
        is_reset = state.generation != before.generation
        if is_reset:
            self._notices.reset()
        is_lost = self._assigned.follow(state, self.name, restart=is_reset)
        if self._notices.follow(state, self.name) or is_reset or is_lost:
            self._attention = True
        if state.readers.get(self.name) != before.readers.get(self.name):
            self._reported_at = self._synced_at
        self._conditions = {
            name: condition for name, condition in self._conditions.items() if state.checkpoint(name) is None
        }
        self._changed.set()

    # --- positions and closing ----------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        return self._assigned.returned() | start_of(self._undelivered)

    async def current_time_window(self, stream: str) -> TimeWindow:
        return await time_window_at(self, stream, self.positions())

    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        if self._closed:
            return
        self._closed = True
        if is_done and self._undelivered is None:
            self._assigned.put_back()
            self._pass_reported()
        self._wake.set()
        self._changed.set()
        try:
            async with self._lock:
                await self._shared.change(self._leave, timeout)
        except ReaderGroupNotFoundError:
            pass  # the group was deleted
        finally:
            drop_out(self)

    def _leave(self, state: GroupState) -> GroupState:
        if not state.has_member(self.name, self._token):
            return state
        self._assigned.freeze(self._assigned.segments)
        return plan(state, self.name, replace(self._facts(state), is_leaving=True))[0]


# --- for other modules of the client ----------------------------------------------------------


def block_in_hand(reader: EventReader) -> EventBlock | None:
    """Return the block in use, from which `read_next_event` last returned an event, or None."""
    cursor = reader._assigned.cursor
    return None if cursor is None else cursor.block


async def time_window_at(reader: EventReader, stream: str, positions: Mapping[str, int]) -> TimeWindow:
    """Return the `current_time_window` for these positions of the reader."""
    cut = cuts_of({**reader._state.positions(), **positions}).get(stream)
    if cut is None:
        raise InvalidArgumentError(f"the group doesn't read stream {stream!r} now: pass it as `scope/stream`")
    if stream not in reader._windows:
        reader._windows[stream] = TimeWindows(reader._stores, cut.scope, cut.stream)
    return await reader._windows[stream].at(cut.positions)


def membership_of(reader: EventReader) -> ReaderMembership:
    return reader._membership


def drop_out(reader: EventReader) -> None:
    """Stop without leaving the group, like a dead reader: the others take it offline eventually."""
    reader._closed = reader._attention = True
    reader._membership.cancel()
    reader._assigned.close()
    reader._changed.set()
