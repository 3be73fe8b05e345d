"""Pauses between retries, and a limit on retries of compare-and-set changes.

Callers decide which errors to retry and when to stop: the same error differs between a read and an append.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from nadi.errors import ContentionError
from nadi.limits import CHANGE_LONGEST_PAUSE_S, CHANGE_TRIES

Sleep = Callable[[float], Awaitable[None]]


class Backoff:
    """Exponentially growing pauses.

    chance: fraction of each pause to wait, 0 to 1; below 1, waiters spread out.

    >>> backoff = Backoff(first_s=1.0, longest_s=5.0)
    >>> [backoff.take() for _ in range(4)]
    [1.0, 2.0, 4.0, 5.0]
    >>> backoff.reset()
    >>> backoff.take()
    1.0
    """

    def __init__(
        self,
        *,
        first_s: float = 0.005,
        longest_s: float = 1.0,
        growth: float = 2.0,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._first_s, self._longest_s, self._growth = min(first_s, longest_s), longest_s, growth
        self._sleep, self._chance = sleep, chance
        self.next_s = self._first_s
        self.is_fresh = True  # no pause since creation or `reset`

    def take(self) -> float:
        """Return the next pause in seconds, and lengthen the following pause."""
        self.is_fresh = False
        pause_s = self.next_s * self._chance()
        self.next_s = min(self._growth * self.next_s, self._longest_s)
        return pause_s

    async def pause(self) -> None:
        await self._sleep(self.take())

    def at_most(self, longest_s: float) -> None:
        """Limit the next pause to this length."""
        self.next_s = min(self.next_s, longest_s)

    def reset(self) -> None:
        self.next_s, self.is_fresh = self._first_s, True


class Tries:
    """A counter of compare-and-set attempts on `subject`.

    Each failed attempt means that another change was stored. Pauses are randomized to separate competing callers.
    """

    def __init__(
        self, subject: str, *, sleep: Sleep = asyncio.sleep, chance: Callable[[], float] = random.random
    ) -> None:
        self._subject = subject
        self._lost = 0
        self._backoff = Backoff(longest_s=CHANGE_LONGEST_PAUSE_S, sleep=sleep, chance=chance)

    async def lost(self) -> None:
        """Record a failed attempt and wait before the next one; the first retry is immediate.

        ContentionError: the limit of attempts was reached.
        """
        self._lost += 1
        if self._lost == CHANGE_TRIES:
            raise ContentionError(self._subject, self._lost)
        if self._lost > 1:
            await self._backoff.pause()
