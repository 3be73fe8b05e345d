"""EventReader: one reader of a group.

A task compares the group's state with what is read here, at intervals and whenever there is something to
report: it starts what was acquired, stops what was released, and stores what `plan` returns, all in
one update. Reading itself waits for it only when the group's guarantees require that.

What was handed to the application counts as done when the application asks for more: only that is
recorded, and a segment is given away only when nothing of it is in the application's hands. So if this
reader dies, another repeats what may be unfinished, and nothing else.

An application in another thread takes the events of the block in hand by itself.
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
from nadi.client.readergroup.assigned_segments import Holdings, end_of
from nadi.client.readergroup.event_reads import Condition, EventRead, GroupReads, Notices, place_of
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
    """A reader's part in its group. It also ends if the reader is dropped without `close`, say after an error, or the
    reader would block its segments and every checkpoint forever. Its task references the reader only during a look."""

    def __init__(self, reader: EventReader, wake: asyncio.Event, let_go: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._wake, self._let_go = weakref.ref(reader), wake, let_go
        self._task = asyncio.create_task(self._keep_up())

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    async def end(self, timeout_s: float) -> None:
        """Leave the group; what the reader returned last does not count as done."""
        reader = self._reader()
        if reader is not None:
            await reader.close(is_done=False, timeout=timeout_s)
            return
        self._wake.set()
        await asyncio.wait([self._task], timeout=timeout_s)

    async def _keep_up(self) -> None:
        while (reader := self._reader()) is not None:
            self._wake.clear()
            pause_s = await reader._look()
            if pause_s is None:
                return
            del reader
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
        await self._let_go()


@checked(without=("read_next_event",))
class EventReader(GroupReads[EventRead]):
    """A reader that takes its share of a group's events; created by `ReaderGroup.create_reader`. Not thread-safe.

    conditions: by name, each called with a segment's name and a block before the block is returned; it
    returns the index of the first event for which it holds, or None. Where a condition first holds in the
    group, a stream cut of that name is made, just before that event.

    records_first: what is handed out is recorded as done before, so that it is handed out at most once.
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
        self._news, self._wake = asyncio.Event(), asyncio.Event()
        self._holdings = Holdings(stores, f"group reader {next(_ids)}", self._news.set)
        self._attention = False  # something other than the block's next event needs handling
        self._notices = Notices()
        self._conditions = dict(conditions)
        self._windows: dict[str, TimeWindows] = {}
        self._watch = Watch(name)
        self._released = 0  # number of the last checkpoint that was released
        self._synced_at = self._reported_at = time.monotonic()
        self._unanswered = 0  # how many requests for the state in a row had no answer
        self._lock = asyncio.Lock()
        self._error: NadiError | None = None
        self._closed = False
        self._membership = ReaderMembership(self, self._wake, self._abandoned())

    # --- reading ----------------------------------------------------------------------------

    def _next_ready(self) -> EventRead | None:
        cursor = self._holdings.cursor
        return None if cursor is None or self._attention or self._held is not None else cursor.next()

    def _again(self, *, is_whole: bool) -> EventRead | None:
        return self._holdings.again(is_whole=is_whole)

    async def read_next_event(self, timeout: float | None = None) -> EventRead | None:
        found = self._next_ready()
        return found if found is not None else await self._next(timeout, is_whole=False)

    async def read_next_block(self, timeout: float | None = None) -> EventRead | None:
        return await self._next(timeout, is_whole=True)

    async def _next(self, timeout: float | None, *, is_whole: bool) -> EventRead | None:
        check_timeout(timeout)
        self._holdings.put_back()
        self._attention = False
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._news.clear()
                    if self._closed:
                        raise ClosedError(f"reader {self.name} was closed")
                    if self._error is not None:
                        raise self._error
                    self._pass_told()
                    if self._silence_s > self._patience_s:  # others may have taken everything
                        await self._refresh()
                        if self._unanswered > 1 and self._silence_s > self._stores.timeout_s:
                            raise self._no_word()
                        continue
                    if self._notices:
                        return self._notices.take()
                    found = await self._find(is_whole)
                    if found is not None:
                        return found
                    if self._state.is_completed:
                        return EventRead(is_read_completed=True)
                    if self._holdings.completed():
                        self._wake.set()
                    await self._news.wait()
        except RequestTimeoutError:
            raise
        except TimeoutError:
            if self._unanswered > 1:  # once may be this process's own sleep
                raise self._no_word() from None
            return None

    def _no_word(self) -> RequestTimeoutError:
        why = self._stores.waits_for() or "is the server there?"
        return RequestTimeoutError(f"the state of the reader group can't be read for {self._silence_s:.0f} s: {why}")

    @property
    def _silence_s(self) -> float:
        """Seconds since the group's state was last read."""
        return time.monotonic() - self._synced_at

    @property
    def _patience_s(self) -> float:
        return self._state.timing.dead_after_ms / 1000

    async def _refresh(self) -> None:
        """Compare with the group's state, and count a request without an answer: the reading side decides how long to
        wait."""
        try:
            async with self._lock:
                self._reconcile(await self._shared.change(self._change, self._patience_s / 2))
        except RequestTimeoutError:
            self._unanswered += 1

    def _pass_told(self) -> None:
        if self._notices.pass_told(self._holdings.given()):
            self._wake.set()

    async def _find(self, is_whole: bool) -> EventRead | None:
        """The next event, block or gap of any segment; None if none has arrived."""
        while (source := self._holdings.next_source()) is not None:
            item = source.peek()
            if isinstance(item, Gap):
                self._holdings.at_gap = source
                if item.damage is not None and item.to_offset is not None and self._on_damage == RAISE:
                    raise item.error
                return EventRead(segment=item.segment, gap=item)
            assert item is not None
            count = len(item) if not self._conditions else await self._up_to_a_condition(source, item)
            if count > 0 and self._records_first:
                block_end = end_of(item, min(count, self._holdings.most_events))
                if not await self._recorded(source.segment, block_end):
                    return None  # what was learned of the group meanwhile comes first
            if count > 0:
                return self._holdings.take(source, count, is_whole=is_whole).first()
        return None

    async def _recorded(self, segment: str, end: int) -> bool:
        """Whether the group knows that everything in the segment up to `end` is done. If not, tell it, after which the
        caller has to look again: the segment may be another reader's by now."""
        held = self._state.owned_by(self.name).get(segment)
        if held is not None and held.offset >= end:
            return True
        generation = self._state.generation

        def change(state: GroupState) -> GroupState:
            state.member(self.name, self._token)
            return state if state.generation != generation else state.apply(PositionReport(self.name, {segment: end}))

        async with self._lock:
            self._reconcile(await self._shared.change(change))
        return False

    async def _up_to_a_condition(self, source: SegmentSource, block: EventBlock) -> int:
        """How many events lie before one where a condition holds; 0 if a stream cut was made before the first
        of them, and the caller has to look again."""
        found = {name: condition(source.segment, block) for name, condition in self._conditions.items()}
        first = min((index for index in found.values() if index is not None), default=len(block))
        if first == 0:
            await self._make_cuts([name for name, index in found.items() if index == 0])
        return first

    async def _make_cuts(self, names: list[str]) -> None:
        """Make stream cuts where this reader is now, unless another reader was first."""

        def change(state: GroupState) -> GroupState:
            state.member(self.name, self._token)
            if state.generation != self._state.generation:
                return state
            for name in names:
                if state.checkpoint(name) is None:
                    state = state.apply(CreateCheckpoint(name, is_silent=True, is_kept=True))
                    state = state.apply(Pass(self.name, state.checkpoints_made, self._holdings.given()))
            return state

        async with self._lock:
            self._reconcile(await self._shared.change(change))

    # --- keeping up with the group ------------------------------------------------------------

    async def _look(self) -> float | None:
        """Compare with the group's state once; return in how many seconds to do so again, None at the end."""
        try:
            await self._refresh()
            await self._release(self._state)
        except ClosedError:
            return None
        except UnavailableError:
            pass  # tried again soon; reading ends by itself when this has lasted too long
        except NadiError as error:
            self._error = error
            self._attention = True
            self._news.set()
            return None
        return None if self._closed else self._state.timing.refresh_ms / 1000

    async def _release(self, state: GroupState) -> None:
        """The first reader by name releases for all, up to the last complete checkpoint. A release only moves forward:
        after a reset, what was released stays released, and what retention has truncated meanwhile is a gap."""
        if state.retention is not StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT:
            return
        complete = [one for one in state.checkpoints if one.is_complete and not one.is_silent]
        if not complete or complete[-1].number <= self._released or self.name != min(state.readers, default=""):
            return
        for cut in cuts_of(complete[-1].positions).values():
            with suppress(InvalidStreamCutError, NotFoundError):  # more was released before; or the stream was deleted
                await release(self._stores, self._shared.scope, self._shared.group, state.group_id, [cut])
        self._released = complete[-1].number

    def _abandoned(self) -> Callable[[], Awaitable[None]]:
        """What to do once nobody holds this reader any more; the function must not reference the reader."""
        shared, holdings, name, token = self._shared, self._holdings, self.name, self._token

        def leave(state: GroupState) -> GroupState:
            return state.apply(Leave(name)) if state.has_member(name, token) else state

        async def let_go() -> None:
            log.warning(
                "reader %s of group %s/%s was dropped without close(): others go on at what was recorded of it",
                *(name, shared.scope, shared.group),
            )
            holdings.close()
            with suppress(NadiError):  # then the others find it silent
                await shared.change(leave)

        return let_go

    def _change(self, state: GroupState) -> GroupState:
        """The next state as this reader wants it; segments it would give away are frozen until that is decided."""
        state.member(self.name, self._token)
        planned, updates = plan(state, self.name, self._facts(state))
        owned = state.owned_by(self.name) if state.generation == self._state.generation else {}
        going = {update.segment for update in updates if isinstance(update, Release | Complete)}
        self._holdings.freeze([name for name in self._holdings.segments if name not in owned or name in going])
        return planned

    def _facts(self, state: GroupState) -> Facts:
        now = time.monotonic()
        self._watch.look(state, now)
        silent = self._watch.silent(state)
        if state.generation != self._state.generation:
            return Facts(silent=silent)
        owned = state.owned_by(self.name)
        done, in_hand = self._done(), self._holdings.in_hand
        changed = any(name in owned and offset > owned[name].offset for name, offset in done.items())
        waited = now - self._reported_at
        life = state.timing.dead_after_ms / 1000 / REPORTS_IN_LIFE
        return Facts(
            given={name: offset for name, offset in self._holdings.given().items() if name in owned},
            done={name: offset for name, offset in done.items() if name in owned},
            movable={name for name in self._holdings.segments if name in owned and name != in_hand},
            completed={name: end for name, end in self._holdings.completed().items() if name in owned},
            passed=self._notices.passed,
            silent=silent,
            new_checkpoint=self._watch.due_checkpoint(state),
            is_report_due=waited >= life or (changed and waited >= min(POSITIONS_EVERY_S, life)),
        )

    def _done(self) -> dict[str, int]:
        return self._holdings.given() if self._records_first else self._holdings.done()

    def _reconcile(self, state: GroupState) -> None:
        before, self._state = self._state, state
        self._synced_at, self._unanswered = time.monotonic(), 0
        is_reset = state.generation != before.generation
        if is_reset:
            self._notices.reset()
        is_lost = self._holdings.follow(state, self.name, anew=is_reset)
        if self._notices.follow(state, self.name) or is_reset or is_lost:
            self._attention = True
        if state.readers.get(self.name) != before.readers.get(self.name):
            self._reported_at = self._synced_at
        self._conditions = {
            name: condition for name, condition in self._conditions.items() if state.checkpoint(name) is None
        }
        self._news.set()

    # --- the end ------------------------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        return self._holdings.given() | place_of(self._held)

    async def current_time_window(self, stream: str) -> TimeWindow:
        return await time_window_at(self, stream, self.positions())

    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        if self._closed:
            return
        self._closed = True
        if is_done and self._held is None:
            self._holdings.put_back()
            self._pass_told()
        self._wake.set()
        self._news.set()
        try:
            async with self._lock:
                await self._shared.change(self._leave, timeout)
        except ReaderGroupNotFoundError:
            pass  # the group was deleted: there is nothing to leave
        finally:
            drop_out(self)

    def _leave(self, state: GroupState) -> GroupState:
        if not state.has_member(self.name, self._token):
            return state
        self._holdings.freeze(self._holdings.segments)
        return plan(state, self.name, replace(self._facts(state), is_leaving=True))[0]


# --- what the rest of the client asks of a reader ---------------------------------------------


def block_in_hand(reader: EventReader) -> EventBlock | None:
    """Return the block in hand, from which `read_next_event` last returned an event, or None."""
    cursor = reader._holdings.cursor
    return None if cursor is None else cursor.block


async def time_window_at(reader: EventReader, stream: str, positions: Mapping[str, int]) -> TimeWindow:
    """Return the `current_time_window` as if the reader were at these positions."""
    cut = cuts_of({**reader._state.positions(), **positions}).get(stream)
    if cut is None:
        raise InvalidArgumentError(f"the group reads nothing of {stream!r} now: say `scope/stream`")
    if stream not in reader._windows:
        reader._windows[stream] = TimeWindows(reader._stores, cut.scope, cut.stream)
    return await reader._windows[stream].at(cut.positions)


def membership_of(reader: EventReader) -> ReaderMembership:
    return reader._membership


def drop_out(reader: EventReader) -> None:
    """End without leaving the group, as a dead reader does: the others take it offline in time."""
    reader._closed = reader._attention = True
    reader._membership.cancel()
    reader._holdings.close()
    reader._news.set()
