"""The controller's background tasks, its periodic work, the grouping of calls that come in numbers, and answers that
many callers share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

from nadi.errors import ClosedError
from nadi.limits import CONVOY_FEW, CONVOY_WAIT_S
from nadi.runtime import Runtime
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")
_AGAIN_S = 1.0
BACKGROUND = "controller background"  # their name
Ended = Callable[[asyncio.Task[Any]], None]


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task failed", exc_info=task.exception())


def seen(future: asyncio.Future[Any]) -> None:
    """For futures whose error is for those who wait, if anybody still does."""
    if not future.cancelled():
        future.exception()


class Tasks:
    """Owner of the controller's background tasks: none outlives `close`."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, T], ended: Ended = _log_failure) -> asyncio.Task[T]:
        if self._closed:
            coroutine.close()
            raise ClosedError("the controller is being stopped: try again")
        task = asyncio.get_running_loop().create_task(coroutine, name=BACKGROUND)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(ended)
        return task

    async def to_its_end(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; it goes on if whoever waits for it is cancelled: a caller that has gone away must
        not leave something half done."""
        return await asyncio.shield(self.spawn(coroutine, seen))

    async def close(self) -> None:
        self._closed = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_AGAIN_S)  # one may have taken it for the end of a call, which it repeats


class Convoy:
    """Lets work that comes in numbers go in groups, whose members share the frames of a container's log: while `few`
    are under way, a new one waits until half of them have arrived, at most `wait_s`, and sets out with all that
    wait."""

    def __init__(self, few: int = CONVOY_FEW, wait_s: float = CONVOY_WAIT_S) -> None:
        self._few, self._wait_s = few, wait_s
        self._under_way = self._waiting = 0
        self._most = 0  # under way when the last group set out
        self._set_out = asyncio.Event()  # of those that wait now

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        if self._waiting or self._under_way >= self._few:
            self._waiting += 1
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._set_out.wait()
            except TimeoutError:
                pass  # those before it don't get on
            finally:
                self._waiting -= 1
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if self._under_way < max(self._few, self._most // 2):
                self._most = self._under_way + self._waiting
                self._set_out.set()
                self._set_out = asyncio.Event()


class Shared(Generic[K, T]):
    """Answers to questions that many ask at the same time: each is asked once, and again when its answer is `age_s`
    old, or for `rest` times as long as it took. most: answers kept. An error is for those who waited for it."""

    def __init__(
        self, clock: Runtime, ask: Callable[[K], Awaitable[T]], *, age_s: float, rest: float = 0.0, most: int = 1
    ) -> None:
        self._clock, self._ask, self._age_s, self._rest = clock, ask, age_s, rest
        self._answers: LRUCache[K, asyncio.Task[tuple[T, float]]] = LRUCache(most)

    async def get(self, key: K) -> T:
        task, now_s = self._answers.get(key), self._clock.monotonic()
        is_over = task is not None and task.done()
        if task is None or (is_over and (task.cancelled() or task.exception() or task.result()[1] <= now_s)):
            task = self._answers[key] = asyncio.create_task(self._asked(key))
            task.add_done_callback(seen)
        return (await asyncio.shield(task))[0]  # it goes on for others, though one of them leaves

    async def _asked(self, key: K) -> tuple[T, float]:
        began_s = self._clock.monotonic()
        answer = await self._ask(key)
        now_s = self._clock.monotonic()
        return answer, now_s + max(self._age_s, self._rest * (now_s - began_s))


class Schedule:
    """Periodic work, each kind in a task of its own. A round that fails is logged, and the next one tries again."""

    def __init__(self, clock: Runtime, tasks: Tasks) -> None:
        self._clock, self._tasks = clock, tasks
        self._complaints = Complaints(log, "%s wait for the next round")

    def start(self, what: str, period_s: float, one_round: Callable[[], Awaitable[None]]) -> None:
        """what: a few words for log messages, which say that it is waiting."""
        self._tasks.spawn(self._run(what, period_s, one_round))

    async def _run(self, what: str, period_s: float, one_round: Callable[[], Awaitable[None]]) -> None:
        """One round per period, however long each takes: after a round that overruns, the next follows at once, and
        missed ones are not made up for."""
        clock, period_ms = self._clock, int(period_s * 1000)
        due_ms = clock.monotonic_ms()
        while True:
            due_ms = max(due_ms + period_ms, clock.monotonic_ms())
            await clock.sleep((due_ms - clock.monotonic_ms()) / 1000)
            with self._complaints.about(what):
                await one_round()
