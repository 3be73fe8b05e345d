"""The latest answers to questions that many ask at the same time: each is asked once, and again once it is too old.

A pace keeps all of them within a fifth of the time: they are put one after the other, each followed by a pause of
four times what it took. With more questions than that leaves room for, answers come later, and are older.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cachetools import LRUCache

from nadi.runtime import Runtime

K = TypeVar("K")
V = TypeVar("V")
_LONGEST_S = 1.0  # for which the others wait for a question: a store that is slow may answer some and not others


class Pace:
    """pause: after a question, as a multiple of what it took."""

    def __init__(self, clock: Runtime, pause: float = 4.0) -> None:
        self._clock, self._pause = clock, pause
        self._turn = asyncio.Lock()

    async def put(self, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer, once it was this question's turn."""
        await self._turn.acquire()
        began_s = self._clock.monotonic()
        task = asyncio.ensure_future(ask())
        try:
            await asyncio.wait([task], timeout=_LONGEST_S)
        finally:
            took_s = min(self._clock.monotonic() - began_s, _LONGEST_S)
            asyncio.get_running_loop().call_later(self._pause * took_s, self._turn.release)
        return await task


class Shared(Generic[K, V]):
    """most: answers kept, each for `age_s` after it came. An error is for those who waited for it."""

    def __init__(
        self, clock: Runtime, pace: Pace, ask: Callable[[K], Awaitable[V]], *, age_s: float, most: int
    ) -> None:
        self._clock, self._pace, self._ask, self._age_s = clock, pace, ask, age_s
        self._answers: LRUCache[K, _Answer[V]] = LRUCache(most)

    async def get(self, key: K) -> V:
        answer = self._answers.get(key)
        if answer is None or answer.until_s <= self._clock.monotonic():
            asking = self._pace.put(lambda: self._ask(key))
            answer = self._answers[key] = _Answer(self._clock, asking, self._age_s)
        return await asyncio.shield(answer.task)


class _Answer(Generic[V]):
    """until_s: when it is too old; never before it came."""

    def __init__(self, clock: Runtime, asking: Awaitable[V], age_s: float) -> None:
        self.until_s = float("inf")

        def came(task: asyncio.Future[V]) -> None:
            failed = task.cancelled() or task.exception() is not None
            self.until_s = clock.monotonic() + (0.0 if failed else age_s)

        self.task = asyncio.ensure_future(asking)
        self.task.add_done_callback(came)
