"""A container's state is written after its log, in checkpoints; the log is released up to what a snapshot has.

A checkpoint is taken between two frames, when everything applied is durable, and a task writes it while frames
continue. If a snapshot in tier 2 is due, it is taken as part of the checkpoint, because no commit may run meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

import lmdb

from nadi import limits
from nadi.errors import DamagedStateError, UnavailableError
from nadi.limits import COURTESY_LONGEST_S, COURTESY_MOST_TIMES, COURTESY_SLOW_TIMES, LOG_QUICK_FRAME_BYTES
from nadi.runtime import Runtime
from nadi.segmentstore.counters import StoreCounters
from nadi.segmentstore.recovery.storage import ContainerParts, OpenStorage
from nadi.segmentstore.state.machine import StateCheckpoint

log = logging.getLogger(__name__)
_LOOK_S = 0.02
_WEIGHT = 1 / 16  # of the latest frame in the average
_REST_S = 30.0  # the quickest average of this time, or of the one before, counts as that of a disk at rest
_IDLE_S = 0.5  # without a frame: nobody waits


class BackgroundThrottle:
    """How far work in the background gives way to frames: whoever waits for an acknowledgement shares the disk with it.
    Each small frame says how long it took. If frames take longer than they do at rest, whoever works in the background
    pauses after each piece of it, and for longer the more frames suffer; never longer than four times the work before
    it. clock: the monotonic one. paused_s: how long each kind of work has paused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.paused_s: dict[str, float] = {}
        self._clock = clock
        self._average_s = 0.0
        self._quickest = (0.0, 0.0)  # of the time before, and so far of this one
        self._turns_at = self._last_at = -_REST_S

    def took(self, seconds: float, payload_bytes: int) -> None:
        """A frame of that size was written. Large ones say more about themselves than about others."""
        if payload_bytes > LOG_QUICK_FRAME_BYTES:
            return
        now = self._clock()
        if now - self._last_at > _REST_S:  # what was known is old
            self._average_s, self._quickest, self._turns_at = seconds, (seconds, seconds), now + _REST_S
        self._last_at = now
        self._average_s += (seconds - self._average_s) * _WEIGHT
        if now >= self._turns_at:
            self._quickest, self._turns_at = (self._quickest[1], self._average_s), now + _REST_S
        elif self._average_s < self._quickest[1]:
            self._quickest = self._quickest[0], self._average_s

    def pause(self, what: str, work_s: float) -> float:
        """How many seconds to pause after so much work in the background; they are counted for it."""
        if self._clock() - self._last_at > _IDLE_S:
            return 0.0
        slow = self._average_s / max(min(self._quickest), 1e-6)
        if slow < COURTESY_SLOW_TIMES:
            return 0.0
        pause = min(work_s * min(slow - 1, COURTESY_MOST_TIMES), COURTESY_LONGEST_S)
        self.paused(what, pause)
        return pause

    def paused(self, what: str, seconds: float) -> None:
        self.paused_s[what] = self.paused_s.get(what, 0.0) + seconds


class Checkpoints:
    """Those of one container. wake: called when there is something to do. recover_from: if it must recover, and why."""

    _opened: OpenStorage

    def __init__(
        self,
        parts: ContainerParts,
        wake: Callable[[], None],
        recover_from: Callable[[Exception], None],
        throttle: BackgroundThrottle,
        counts: StoreCounters,
        runtime: Runtime,
    ) -> None:
        self.sequence = 0  # of the last frame that the state reflects as it is written
        self.logged_bytes = 0  # since the process began; the container counts them
        self.waits_for_room = False  # checkpoints fail for lack of room, and are retried
        self.stopping = False
        self._parts, self._wake, self._recover_from, self._runtime = parts, wake, recover_from, runtime
        self._throttle, self._counts = throttle, counts
        self.current_at = runtime.monotonic()  # when one was made, or there was nothing to write, last
        self._task: asyncio.Task[Any] | None = None  # a checkpoint, or something else that no commit may run beside
        self._started_at = 0.0
        self._truncation_due = False

    def follow(self, opened: OpenStorage) -> None:
        """Start on the container's parts, once they are open."""
        self._opened, self.sequence = opened, opened.metadata.state().sequence
        loop, snapshots = asyncio.get_running_loop(), self._parts.snapshots

        def damaged(error: DamagedStateError) -> None:
            loop.call_soon_threadsafe(self._recover_from, error)

        opened.metadata.on_damage = snapshots.on_damage = damaged
        snapshots.on_fenced = self._recover_from
        snapshots.on_stored = self._truncate_soon
        snapshots.counts, self.current_at = self._counts, self._runtime.monotonic()
        # Containers take turns: their checkpoints' syncs would otherwise hold up the log all at once.
        self._started_at = self._runtime.monotonic() - limits.CHECKPOINT_INTERVAL_S * (self._parts.number % 4) / 4

    def go_on(self) -> None:
        if self._truncation_due:
            self.truncate_log()
        due = self._runtime.monotonic() - self._started_at >= limits.CHECKPOINT_INTERVAL_S
        if due or self._opened.state.dirty_count >= limits.CHECKPOINT_DIRTY_RECORDS:
            self.start()

    async def bring_up_to_date(self) -> None:
        """Have the state as it is now in a checkpoint and a snapshot; return when it is, or after some seconds."""
        snapshots, clock = self._parts.snapshots, self._runtime.monotonic
        sequence, ends = self._opened.state.sequence, clock() + limits.SNAPSHOT_STOP_S
        while snapshots.sequence < sequence and clock() < ends and not self.stopping:
            if self._task is None or self._task.done():
                snapshots.hasten()
                self._started_at = -math.inf  # between this frame and the next
                self._wake()
            await self._runtime.sleep(_LOOK_S)

    def start(self) -> None:
        """Start writing the state, between two frames, unless a checkpoint is already running."""
        if self._task is not None and not self._task.done():
            return
        self._started_at = self._runtime.monotonic()
        self._parts.take_room()  # if a full disk had no room for it before
        state = self._opened.state
        if state.sequence == self.sequence:
            self.current_at = self._started_at
            self.truncate_log()
            if self._snapshot_is_due():
                self._run(self.snapshot())
        else:
            self._run(self._write(state.checkpoint()))

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.create_task(work, name=f"checkpoint-{self._parts.number}")

    async def _write(self, checkpoint: StateCheckpoint) -> None:
        state, began = self._opened.state, self._runtime.monotonic()
        try:
            await self._commit(checkpoint)
        except Exception as error:
            self._counts.checkpoint_errors += 1
            if self._parts.is_no_room(error):
                if not self.waits_for_room:
                    what = "container %d: no room for its state: it stays in the log: %s"
                    log.warning(what, self._parts.number, error)
                self.waits_for_room = True
                state.not_written(checkpoint)
                return
            # marks were cleared but nothing was written: only a recovery can find out again what to write
            is_damaged = isinstance(error, DamagedStateError)  # then it must not be recovered from as it is
            self._recover_from(error if is_damaged else UnavailableError(f"the state could not be written: {error}"))
            return
        self.waits_for_room = False
        self.current_at = self._runtime.monotonic()
        self._counts.checkpoints.add(self.current_at - began)
        state.checkpointed(checkpoint)
        self.sequence = checkpoint.sequence
        self._truncate_soon()
        if self._snapshot_is_due():
            await self.snapshot()

    async def _commit(self, checkpoint: StateCheckpoint) -> None:
        metadata = self._opened.metadata
        while True:
            try:
                await self._runtime.in_thread(metadata.commit, *checkpoint.to_commit(), self._resting())
            except lmdb.MapFullError:
                metadata.grow()  # in the loop, where all reads happen, so that nobody reads meanwhile
                log.info("container %d: its state has twice the room now", self._parts.number)
            except lmdb.Error as error:  # nothing was written: once more, with the room kept aside
                if not self._parts.is_no_room(error) or not self._parts.release_room():
                    raise
            else:
                return

    def _resting(self) -> Callable[[], None]:
        """What a commit calls now and then: it lets the loop get on with frames, unless the end is waited for."""
        left = limits.CHECKPOINT_RESTS

        def rest() -> None:
            nonlocal left
            if left and not self.stopping and not self._opened.log.is_full:
                left -= 1
                self._runtime.rest(limits.CHECKPOINT_REST_S)
                self._throttle.paused("checkpoints", limits.CHECKPOINT_REST_S)

        return rest

    def _snapshot_is_due(self) -> bool:
        if self.stopping:
            return False  # the last one is made when all else has ended
        metadata, is_full = self._opened.metadata, self._opened.log.is_full
        return self._parts.snapshots.due(metadata, self.sequence, self.logged_bytes, hurry=is_full)

    async def snapshot(self) -> None:
        await self._parts.snapshots.take(self._opened.metadata, self.sequence, self.logged_bytes)

    async def finish(self) -> None:
        """Take the last snapshot and release the log up to it, once all frames are written and `ended`."""
        await self._parts.snapshots.finish(self._opened.metadata, self.sequence, self.logged_bytes)
        self.truncate_log()

    async def ended(self) -> None:
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        self._task = None

    def _truncate_soon(self) -> None:
        self._truncation_due = True
        self._wake()

    def truncate_log(self) -> None:
        """Release the log up to what is needed: bytes not in tier 2, and changes not in the snapshot, for the state
        ends with the process. Damaged bytes stay, so that they can be restored, but don't hold up others: else the log
        would grow until it is full, and writers would wait forever. Between frames only: a frame in flight may say that
        bytes are in tier 2, and may yet be lost."""
        self._truncation_due = False
        _, durable_log, state, runs = self._opened
        oldest, damaged = state.log_needed()
        before = self._parts.snapshots.sequence + 1
        if oldest is not None:
            before = min(before, oldest)
        durable_log.truncate(before, keep=damaged)
        if runs is not None:  # a start may still replay what mentions the others
            runs.release(state.runs.take_unused(before))
