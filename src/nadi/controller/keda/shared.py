"""The latest answers to questions that many ask at the same time: each is asked once, and again once it is too old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cachetools import LRUCache

from nadi.runtime import Runtime

K = TypeVar("K")
V = TypeVar("V")


class Shared(Generic[K, V]):
    """most: answers kept. An answer is asked for again after `age_s`, or four times what it took, if that is longer: so
    questions never take more than a fifth of anything, however many ask. An error is for those who waited for it."""

    def __init__(self, clock: Runtime, ask: Callable[[K], Awaitable[V]], *, age_s: float, most: int) -> None:
        self._clock, self._ask, self._age_s = clock, ask, age_s
        self._answers: LRUCache[K, _Answer[V]] = LRUCache(most)

    async def get(self, key: K) -> V:
        answer = self._answers.get(key)
        if answer is None or answer.until_s <= self._clock.monotonic():
            answer = self._answers[key] = _Answer(self._clock, self._ask(key), self._age_s)
        return await asyncio.shield(answer.task)


class _Answer(Generic[V]):
    """until_s: when it is too old; never before it came."""

    def __init__(self, clock: Runtime, asking: Awaitable[V], age_s: float) -> None:
        self.until_s = float("inf")
        began_s = clock.monotonic()

        async def ask() -> V:
            return await asking

        def came(task: asyncio.Task[V]) -> None:
            now_s = clock.monotonic()
            failed = task.cancelled() or task.exception() is not None
            self.until_s = now_s if failed else now_s + max(age_s, 4 * (now_s - began_s))

        self.task = asyncio.get_running_loop().create_task(ask())
        self.task.add_done_callback(came)
