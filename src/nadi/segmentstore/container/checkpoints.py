"""Writes a container's state after its log, in checkpoints, and releases the log up to the snapshot.

A checkpoint is taken between two frames, when everything applied is durable, and a task writes it while frames
continue. If a snapshot in tier 2 is due, it is part of the checkpoint, because no commit may run meanwhile.
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
from nadi.limits import LOG_QUICK_FRAME_BYTES, THROTTLE_MAX_FACTOR, THROTTLE_MAX_S, THROTTLE_SLOWDOWN
from nadi.runtime import Runtime
from nadi.segmentstore.counters import StoreCounters
from nadi.segmentstore.recovery.storage import ContainerStorage, OpenStorage
from nadi.segmentstore.state.machine import StateCheckpoint

log = logging.getLogger(__name__)
_POLL_S = 0.02
_WEIGHT = 1 / 16  # weight of the latest frame in the average
_PERIOD_S = 30.0  # the quickest average of this period, or the one before, counts as an idle disk's
_IDLE_S = 0.5  # without a frame, no caller waits


class BackgroundThrottle:
    """Makes background work yield to frames, which share its disk. Each small frame reports its duration. If frames
    take longer than on an idle disk, background work pauses after each piece, in proportion to the slowdown, for at
    most four times the duration of that piece. clock: monotonic. paused_s: total pause by kind of work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.paused_s: dict[str, float] = {}
        self._clock = clock
        self._average_s = 0.0
        self._quickest = (0.0, 0.0)  # of the previous period, and so far of this one
        self._turns_at = self._last_at = -_PERIOD_S

    def record(self, seconds: float, payload_bytes: int) -> None:
        """Report a frame's duration. Large frames are ignored: they are slow by themselves."""
        if payload_bytes > LOG_QUICK_FRAME_BYTES:
            return
        now = self._clock()
        if now - self._last_at > _PERIOD_S:  # earlier figures are outdated
            self._average_s, self._quickest, self._turns_at = seconds, (seconds, seconds), now + _PERIOD_S
        self._last_at = now
        self._average_s += (seconds - self._average_s) * _WEIGHT
        if now >= self._turns_at:
            self._quickest, self._turns_at = (self._quickest[1], self._average_s), now + _PERIOD_S
        elif self._average_s < self._quickest[1]:
            self._quickest = self._quickest[0], self._average_s

    def pause(self, kind: str, work_s: float) -> float:
        """Return, and count, the seconds to pause after background work of that duration."""
        if self._clock() - self._last_at > _IDLE_S:
            return 0.0
        slow = self._average_s / max(min(self._quickest), 1e-6)
        if slow < THROTTLE_SLOWDOWN:
            return 0.0
        pause = min(work_s * min(slow - 1, THROTTLE_MAX_FACTOR), THROTTLE_MAX_S)
        self.paused(kind, pause)
        return pause

    def paused(self, kind: str, seconds: float) -> None:
        self.paused_s[kind] = self.paused_s.get(kind, 0.0) + seconds


class Checkpoints:
    """The checkpoints of one container. wake: called when there is work. recover_from: called if the container must
    recover."""

    _opened: OpenStorage

    def __init__(
        self,
        parts: ContainerStorage,
        wake: Callable[[], None],
        recover_from: Callable[[Exception], None],
        throttle: BackgroundThrottle,
        counts: StoreCounters,
        runtime: Runtime,
    ) -> None:
        self.sequence = 0  # the last frame in the written state
        self.logged_bytes = 0  # since the process started; counted by the container
        self.waits_for_space = False  # checkpoints fail on a full disk, and are retried
        self.stopping = False
        self._parts, self._wake, self._recover_from, self._runtime = parts, wake, recover_from, runtime
        self._throttle, self._counts = throttle, counts
        self.current_at = runtime.monotonic()  # time of the last checkpoint, or of nothing to write
        self._task: asyncio.Task[Any] | None = None  # a checkpoint, or other work that excludes commits
        self._started_at = 0.0
        self._truncation_due = False

    def follow(self, opened: OpenStorage) -> None:
        """Start on the container's storage, once it is open."""
        self._opened, self.sequence = opened, opened.metadata.state().sequence
        loop, snapshots = asyncio.get_running_loop(), self._parts.snapshots

        def damaged(error: DamagedStateError) -> None:
            loop.call_soon_threadsafe(self._recover_from, error)

        opened.metadata.on_damage = snapshots.on_damage = damaged
        snapshots.on_fenced = self._recover_from
        snapshots.on_stored = self._truncate_soon
        snapshots.counts, self.current_at = self._counts, self._runtime.monotonic()
        # Staggered: otherwise all containers' checkpoint syncs would delay the log at once.
        self._started_at = self._runtime.monotonic() - limits.CHECKPOINT_INTERVAL_S * (self._parts.number % 4) / 4

    def start_if_due(self) -> None:
        if self._truncation_due:
            self.truncate_log()
        due = self._runtime.monotonic() - self._started_at >= limits.CHECKPOINT_INTERVAL_S
        if due or self._opened.state.dirty_count >= limits.CHECKPOINT_DIRTY_RECORDS:
            self.start()

    async def bring_up_to_date(self) -> None:
        """Store the current state in a checkpoint and a snapshot; return once it is stored, or after some seconds."""
        snapshots, clock = self._parts.snapshots, self._runtime.monotonic
        sequence, ends = self._opened.state.sequence, clock() + limits.SNAPSHOT_STOP_S
        while snapshots.sequence < sequence and clock() < ends and not self.stopping:
            if self._task is None or self._task.done():
                snapshots.hasten()
                self._started_at = -math.inf  # start between this frame and the next
                self._wake()
            await self._runtime.sleep(_POLL_S)

    def start(self) -> None:
        """Start writing the state, between two frames, unless a checkpoint is already running."""
        if self._task is not None and not self._task.done():
            return
        self._started_at = self._runtime.monotonic()
        self._parts.reserve_space()  # if a full disk had no space for it before
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
            if self._parts.is_disk_full(error):
                if not self.waits_for_space:
                    message = "container %d: no space for its state, which stays in the log: free space on its disk: %s"
                    log.warning(message, self._parts.number, error)
                self.waits_for_space = True
                state.not_written(checkpoint)
                return
            # marks were cleared but nothing was written: only a recovery can mark the records again
            is_damaged = isinstance(error, DamagedStateError)  # then recovery must not reuse it
            self._recover_from(error if is_damaged else UnavailableError(f"the state could not be written: {error}"))
            return
        self.waits_for_space = False
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
                metadata.grow()  # in the loop, where all reads happen, so no read runs meanwhile
                log.info("container %d: doubled the space for its state", self._parts.number)
            except lmdb.Error as error:  # nothing was written: retry with the reserve
                if not self._parts.is_disk_full(error) or not self._parts.release_space():
                    raise
            else:
                return

    def _resting(self) -> Callable[[], None]:
        """Return a function that a commit calls now and then: it yields to frames, except during a stop."""
        left = limits.CHECKPOINT_RESTS

        def rest() -> None:
            nonlocal left
            if left and not self.stopping and not self._opened.log.is_full:
                left -= 1
                self._runtime.rest(limits.CHECKPOINT_PAUSE_S)
                self._throttle.paused("checkpoints", limits.CHECKPOINT_PAUSE_S)

        return rest

    def _snapshot_is_due(self) -> bool:
        if self.stopping:
            return False  # `finish` takes the last one
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
        """Release the log's frames that aren't needed: their bytes are in tier 2, and their changes in the snapshot, as
        the state ends with the process. Damaged bytes stay, so that they can be restored, without blocking others: else
        the log would fill up and writers wait forever. Call between frames only: a frame in flight may say that bytes
        are in tier 2, and still be lost."""
        self._truncation_due = False
        _, durable_log, state, runs = self._opened
        oldest, damaged = state.log_needed()
        before = self._parts.snapshots.sequence + 1
        if oldest is not None:
            before = min(before, oldest)
        durable_log.truncate(before, keep=damaged)
        if runs is not None:  # a start may replay frames that refer to the others
            runs.release(state.runs.take_unused(before))
