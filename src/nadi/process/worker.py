"""A worker: one of many that process the segments of a stream.

It follows its share of the segments (`members`), takes what came in batches, and hands each to `_handle`, which records
how far that brings the segments by compare-and-set: so of two workers that have a segment for a moment, one is
overtaken, and looks again. Ends and gaps of segments are recorded here. While a server is away the worker waits, and
goes on from the record. It stops when it is told to, when `_check` says so, or once all of a sealed stream is done.
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
from nadi.client.segments.info import following
from nadi.client.tables.catalog import CatalogRecord
from nadi.errors import ClosedError, EpochGoneError, NadiError, NotFoundError, StreamRecreatedError, UnavailableError
from nadi.limits import PROCESS_BEAT_S
from nadi.model.event import EventBlock
from nadi.process.members import Members
from nadi.process.segment_follower import Followed, Follower, PositionConflictError, SegmentPositions, gap_end, reaches

T = TypeVar("T")
_RATE_S = 10.0


class Recent(Generic[T]):
    """What was added in the last so many seconds, each with its time; oldest first."""

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
    """Events per second over the last ten, or since the first event if that is less. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._recent = clock, Recent[int](_RATE_S)  # by second

    def add(self, events: int) -> None:
        now, items = self._clock(), self._recent.items
        if items and now - items[-1][0] < 1:
            began, before = items.pop()
            items.append((began, before + events))
        else:
            self._recent.add(now, events)

    def per_s(self) -> float:
        now, items = self._clock(), self._recent.items
        self._recent.forget(now)
        return sum(events for _, events in items) / max(now - items[0][0], 1.0) if items else 0.0


class BatchLimits(NamedTuple):
    """A batch is complete with so many bytes or events, or when its first event has waited so long."""

    size_bytes: int
    events: int
    wait_s: float


class Taken(NamedTuple):
    """What was taken of a segment, in one batch; there is at least one block."""

    followed: Followed
    blocks: Sequence[EventBlock]


P = TypeVar("P", bound=SegmentPositions)


class StreamWorker(Generic[P]):
    """positions: the record of all workers. A kind of worker defines the methods below. remedy: what to do where the
    stream was made anew."""

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

    # --- what a kind of worker defines ----------------------------------------------------------

    async def _handle(self, batch: Sequence[Taken], stop: asyncio.Event) -> None:
        """Process a batch, which may be empty, and record that and what is in hand; or have that done in the
        background."""
        raise NotImplementedError

    async def _check(self) -> bool:
        """Whether to go on; NotFoundError if what the worker is for is gone."""
        raise NotImplementedError

    async def _is_complete(self) -> bool:
        """Whether nothing is left to be done, now or later."""
        return all(reach.is_done for reach in self._positions.newest.segments.values())

    def _in_hand(self) -> Collection[int]:
        """The segments with events that were taken and aren't recorded."""
        return ()

    def _look_s(self) -> float:
        """How long to wait for events before others are looked at."""
        return PROCESS_BEAT_S / 4

    def _is_free(self) -> bool:
        """Whether a batch would be handled at once."""
        return True

    def _beside(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        """What runs beside, until `stop` is set."""
        return ()

    async def _finish(self) -> None:
        """CatalogRecord what was done last."""

    async def _forget(self) -> None:
        """Let go of what is in hand: it is begun again from the record."""

    def _ends(self) -> Mapping[int, int]:
        """Up to where segments are followed that aren't followed to their ends."""
        return {}

    async def _follow(self) -> None:
        followed = {reach.segment_id: reach for reach in self._positions.newest.followed}
        self._follower.follow((followed[segment] for segment in self._members.mine(followed)), self._ends())

    # --- running --------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, `_check` says so, or all is done; StreamRemadeError: the stream was made anew."""
        await self._positions.get()
        await self._say()
        coroutines = [self._work(stop), self._beat(stop), _until(stop), *self._beside(stop)]
        tasks = [asyncio.create_task(one) for one in coroutines]
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
            await ended(tasks)
            self._follower.close()
            self._close()
            await self._members.leave()

    async def _failed(self, error: NadiError, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Raise the error with which it ends, or return to end without one."""
        if isinstance(error, StreamRecreatedError):
            raise StreamRecreatedError(self._scope, self._stream, self.remedy) from error
        raise error

    def _close(self) -> None:
        """Close what writes."""

    async def _work(self, stop: asyncio.Event) -> None:
        backoff, is_old = Backoff(), False
        while not stop.is_set():
            try:
                if is_old:
                    await self._positions.get()
                    is_old = False
                if await self._is_complete():
                    self._log.info("all that was to come is done: this worker ends")
                    return
                await self._follow()
                await self._collect(stop)
                batch = [Taken(*one) for one in self._follower.taken()]
                if batch or self._in_hand():
                    await self._handle(batch, stop)
                    backoff = Backoff()
                await self._pass_ends()
            except ClosedError:
                raise
            except (PositionConflictError, UnavailableError) as error:
                await self._forget()
                self._follower.follow(())
                is_old = True
                if isinstance(error, UnavailableError):
                    self._error = str(error)
                    self._log.warning("the server is away, or slow: %s", error)
                    await backoff.pause()
                else:
                    self._log.info("%s: looking again", error)
        with suppress(PositionConflictError):  # another has it
            await self._finish()

    async def _collect(self, stop: asyncio.Event) -> None:
        """Take what came: once some did, a little later; nothing if something ended, or others may be there."""
        loop, follower, limits = asyncio.get_running_loop(), self._follower, self._limits
        look_at, until, size = loop.time() + self._look_s(), 0.0, 0
        while not stop.is_set():
            follower.news.clear()
            if size < limits.size_bytes:
                size += follower.take(limits.size_bytes - size, limits.events)
            now = loop.time()
            if size:
                until = until or now + limits.wait_s
                events = sum(len(block) for one in follower.all() for block in one.taken)
                is_due = size >= limits.size_bytes or events >= limits.events or now >= until
                if is_due and self._is_free():
                    return
                wait_s = until - now if now < until and self._is_free() else 1.0
            elif now >= look_at or any(True for _ in follower.over()):
                return
            else:
                wait_s = look_at - now
            with suppress(TimeoutError):
                await asyncio.wait_for(follower.news.wait(), max(wait_s, 0.001))

    # --- ends and gaps --------------------------------------------------------------------------

    async def _pass_ends(self) -> None:
        in_hand = self._in_hand()
        for one in self._follower.over():
            if one.reach.segment_id in in_hand:
                continue
            if (error := one.error) is None:
                await self._complete(one)
            else:
                await self._pass_gap(one, error)

    async def _complete(self, one: Followed, gaps: int = 0) -> None:
        segment = one.reach.segment_id
        try:
            successors = await following(self._stores, self._scope, self._stream, segment)
        except EpochGoneError:
            await self._find_head()
            return
        await self._positions.change(lambda newest: newest.completed(segment, one.given, successors, gaps=gaps))
        self._follower.leave(segment)

    async def _pass_gap(self, one: Followed, error: NadiError) -> None:
        try:
            to = gap_end(error)
        except EpochGoneError:
            await self._find_head()
            return
        self._tell_gap(one.reach.segment_id, one.given, error)
        if to is None:
            await self._complete(one, gaps=1)
            return
        end = to
        await self._positions.change(lambda newest: newest.passed(one.reach.segment_id, one.given, end))
        one.source.pass_gap()

    def _tell_gap(self, segment: int, at: int, error: NadiError) -> None:
        self._log.warning("a gap in segment %d at %d: %s", segment, at, error)
        self._error = str(error)

    async def _find_head(self) -> None:
        """What leads from here to the stream's head is forgotten: go on there."""
        found = await reaches(self._stores, self._scope, await self._manager.cuts(self._scope, self._stream).head())
        first = min(reach.segment_id for reach in found)
        self._log.warning("what follows segments before the stream's head is forgotten: going on there")
        await self._positions.change(
            lambda newest: newest.with_found(
                found, [reach.segment_id for reach in newest.followed if reach.segment_id < first]
            )
        )

    # --- beside ---------------------------------------------------------------------------------

    async def _beat(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PROCESS_BEAT_S)
            is_checked = False
            try:
                if not await self._check():
                    self._log.info("it was stopped: this worker ends")
                    return
                is_checked = True
                await self._say()
                await self._positions.get()
            except NadiError as error:
                if isinstance(error, NotFoundError) and not is_checked:
                    raise
                self._error = str(error)
                self._log.warning("can't say that this worker is there: %s", error)

    async def _say(self) -> None:
        mine = len(self._members.mine(reach.segment_id for reach in self._positions.newest.followed))
        await self._members.say(self._events, round(self._rate.per_s(), 1), mine, self._error)
        await self._members.look()

    def _count(self, events: int) -> None:
        self._events += events
        self._rate.add(events)


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and wait until they have ended; their errors were raised already."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
