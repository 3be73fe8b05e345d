"""A worker: one of many that process the segments of a stream.

It follows its share of the segments (`members`), collects batches and passes each to `_handle`, which records the new
positions by compare-and-set. If two workers briefly own a segment, one gets PositionConflictError and reads the record
again. Ends and gaps of segments are recorded here. While a server is away the worker waits, then resumes from the
record. It stops when `stop` is set, when `_check` returns False, or when a sealed stream is processed completely.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Generic, NamedTuple, TypeVar

from nadi.backoff import Backoff
from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import successors_of
from nadi.client.tables.catalog import CatalogRecord
from nadi.errors import ClosedError, EpochExpiredError, NadiError, NotFoundError, StreamRecreatedError, UnavailableError
from nadi.limits import PROCESS_BEAT_S
from nadi.model.event import EventBlock
from nadi.process.members import Members
from nadi.process.segment_follower import (
    Followed,
    Follower,
    PositionConflictError,
    SegmentPositions,
    gap_end,
    progress_at,
)

T = TypeVar("T")
_RATE_S = 10.0


class Recent(Generic[T]):
    """The values of the last `seconds`, each with its time; oldest first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.items: deque[tuple[float, T]] = deque()

    def add(self, now: float, value: T) -> None:
        self.items.append((now, value))
        self.forget(now)

    def forget(self, now: float) -> None:
        while self.items and self.items[0][0] < now - self._seconds:
            self.items.popleft()


class Rate:
    """Events per second over the last ten seconds, or since the first event. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._recent = clock, Recent[int](_RATE_S)  # one item per second

    def add(self, events: int) -> None:
        now, items = self._clock(), self._recent.items
        if items and now - items[-1][0] < 1:
            since, before = items.pop()
            items.append((since, before + events))
        else:
            self._recent.add(now, events)

    def per_s(self) -> float:
        now, items = self._clock(), self._recent.items
        self._recent.forget(now)
        return sum(events for _, events in items) / max(now - items[0][0], 1.0) if items else 0.0


class BatchLimits(NamedTuple):
    """A batch is complete at this size or number of events, or when its first event has waited `wait_s`."""

    size_bytes: int
    events: int
    wait_s: float


class SegmentBatch(NamedTuple):
    """The part of a batch from one segment: at least one block."""

    followed: Followed
    blocks: Sequence[EventBlock]


P = TypeVar("P", bound=SegmentPositions)


class StreamWorker(Generic[P]):
    """positions: the record of all workers. Subclasses define the methods below. remedy: advice if the stream was
    recreated."""

    remedy: ClassVar[str]

    def __init__(
        self,
        manager: StreamManager,
        scope: str,
        stream: str,
        positions: CatalogRecord[P],
        members: Members,
        limits: BatchLimits,
        logger: logging.Logger,
    ) -> None:
        self._manager, self._stores, self._scope, self._stream = manager, stores_of(manager), scope, stream
        self._positions, self._members, self._limits, self._log = positions, members, limits, logger
        self._follower = Follower(self._stores, scope, stream)
        self._rate = Rate()
        self._events = 0
        self._error = ""

    # --- defined by subclasses ----------------------------------------------------------

    async def _handle(self, batch: Sequence[SegmentBatch], stop: asyncio.Event) -> None:
        """Process a batch, which may be empty, and record it and earlier unrecorded ones; or start doing so in the
        background."""
        raise NotImplementedError

    async def _check(self) -> bool:
        """Return whether to continue; NotFoundError if the worker's object was deleted."""
        raise NotImplementedError

    async def _is_complete(self) -> bool:
        """Return whether no work remains, now or later."""
        return all(reach.is_done for reach in self._positions.newest.segments.values())

    def _unrecorded(self) -> Collection[int]:
        """Return the segments with events that were taken but aren't recorded."""
        return ()

    def _poll_interval_s(self) -> float:
        """Return how long to wait for events before reading the record of the others."""
        return PROCESS_BEAT_S / 4

    def _can_handle(self) -> bool:
        """Return whether a batch would be handled at once."""
        return True

    def _background_tasks(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        """Return tasks that run until `stop` is set."""
        return ()

    async def _finish(self) -> None:
        """Record the last batch."""

    async def _discard(self) -> None:
        """Drop unrecorded batches; they are read again from the recorded positions."""

    def _ends(self) -> Mapping[int, int]:
        """Return where to stop, for segments that aren't followed to their ends."""
        return {}

    async def _follow(self) -> None:
        followed = {reach.segment_id: reach for reach in self._positions.newest.followed}
        self._follower.follow((followed[segment] for segment in self._members.own_segments(followed)), self._ends())

    # --- running --------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, `_check` returns False, or all is done. StreamRecreatedError."""
        await self._positions.get()
        await self._report()
        coroutines = [self._work(stop), self._beat(stop), _until(stop), *self._background_tasks(stop)]
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            for task in done:
                await task
            await tasks[0]
        except NadiError as error:
            await self._failed(error, tasks)
        finally:
            stop.set()
            await cancel_all(tasks)
            self._follower.close()
            self._close()
            await self._members.leave()

    async def _failed(self, error: NadiError, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Raise the error that ends the worker, or return to end without one."""
        if isinstance(error, StreamRecreatedError):
            raise StreamRecreatedError(self._scope, self._stream, self.remedy) from error
        raise error

    def _close(self) -> None:
        """Close the writers."""

    async def _work(self, stop: asyncio.Event) -> None:
        backoff, is_old = Backoff(), False
        while not stop.is_set():
            try:
                if is_old:
                    await self._positions.get()
                    is_old = False
                if await self._is_complete():
                    self._log.info("the sealed stream is processed completely: this worker ends")
                    return
                await self._follow()
                await self._collect(stop)
                batch = [SegmentBatch(*item) for item in self._follower.taken()]
                if batch or self._unrecorded():
                    await self._handle(batch, stop)
                    backoff = Backoff()
                await self._pass_ends()
            except ClosedError:
                raise
            except (PositionConflictError, UnavailableError) as error:
                await self._discard()
                self._follower.follow(())
                is_old = True
                if isinstance(error, UnavailableError):
                    self._error = str(error)
                    self._log.warning("the server is unavailable; retrying: %s", error)
                    await backoff.pause()
                else:
                    self._log.info("%s; reading the positions again", error)
        with suppress(PositionConflictError):  # another worker owns the segment now
            await self._finish()

    async def _collect(self, stop: asyncio.Event) -> None:
        """Collect a batch until it is complete; return early if a segment has ended or the record is due to be read."""
        loop, follower, limits = asyncio.get_running_loop(), self._follower, self._limits
        refresh_at, until, size = loop.time() + self._poll_interval_s(), 0.0, 0
        while not stop.is_set():
            follower.wakeup.clear()
            if size < limits.size_bytes:
                size += follower.take(limits.size_bytes - size, limits.events)
            now = loop.time()
            if size:
                until = until or now + limits.wait_s
                events = sum(len(block) for segment in follower.all() for block in segment.taken)
                is_due = size >= limits.size_bytes or events >= limits.events or now >= until
                if is_due and self._can_handle():
                    return
                wait_s = until - now if now < until and self._can_handle() else 1.0
            elif now >= refresh_at or any(True for _ in follower.finished()):
                return
            else:
                wait_s = refresh_at - now
            with suppress(TimeoutError):
                await asyncio.wait_for(follower.wakeup.wait(), max(wait_s, 0.001))

    # --- ends and gaps --------------------------------------------------------------------------

    async def _pass_ends(self) -> None:
        unrecorded = self._unrecorded()
        for segment in self._follower.finished():
            if segment.reach.segment_id in unrecorded:
                continue
            if (error := segment.error) is None:
                await self._complete(segment)
            else:
                await self._pass_gap(segment, error)

    async def _complete(self, followed: Followed, gaps: int = 0) -> None:
        segment = followed.reach.segment_id
        try:
            successors = await successors_of(self._stores, self._scope, self._stream, segment)
        except EpochExpiredError:
            await self._find_head()
            return
        await self._positions.change(lambda newest: newest.completed(segment, followed.position, successors, gaps=gaps))
        self._follower.leave(segment)

    async def _pass_gap(self, followed: Followed, error: NadiError) -> None:
        try:
            to = gap_end(error)
        except EpochExpiredError:
            await self._find_head()
            return
        self._report_gap(followed.reach.segment_id, followed.position, error)
        if to is None:
            await self._complete(followed, gaps=1)
            return
        end = to
        await self._positions.change(lambda newest: newest.passed(followed.reach.segment_id, followed.position, end))
        followed.source.pass_gap()

    def _report_gap(self, segment: int, at: int, error: NadiError) -> None:
        self._log.warning("skipped a gap in segment %d at %d: %s", segment, at, error)
        self._error = str(error)

    async def _find_head(self) -> None:
        """Continue at the stream's head, because what leads there from here is forgotten."""
        segments = await progress_at(
            self._stores, self._scope, await self._manager.cuts(self._scope, self._stream).head()
        )
        first = min(reach.segment_id for reach in segments)
        self._log.warning(
            "the segments between this position and the stream's head are forgotten: continuing at the head"
        )
        await self._positions.change(
            lambda newest: newest.with_successors(
                segments, [reach.segment_id for reach in newest.followed if reach.segment_id < first]
            )
        )

    # --- background ---------------------------------------------------------------------------------

    async def _beat(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PROCESS_BEAT_S)
            is_checked = False
            try:
                if not await self._check():
                    self._log.info("the worker was stopped")
                    return
                is_checked = True
                await self._report()
                await self._positions.get()
            except NadiError as error:
                if isinstance(error, NotFoundError) and not is_checked:
                    raise
                self._error = str(error)
                self._log.warning("can't report this worker as live; retrying: %s", error)

    async def _report(self) -> None:
        own_segments = len(self._members.own_segments(reach.segment_id for reach in self._positions.newest.followed))
        await self._members.report(self._events, round(self._rate.per_s(), 1), own_segments, self._error)
        await self._members.refresh()

    def _count(self, events: int) -> None:
        self._events += events
        self._rate.add(events)


async def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for their end, ignoring their errors."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
