"""How long to wait between two tries, and how often to retry a change that keeps losing to others.

Each caller decides what to retry and what ends it: the same error means one thing to a read and another to an append.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from nadi.errors import ContentionError
from nadi.limits import CHANGE_LONGEST_PAUSE_S, CHANGE_TRIES

Sleep = Callable[[float], Awaitable[None]]


class Backoff:
    """Growing pauses.

    chance: the part of each pause to make, 0 to 1; all of it unless waiters should spread out.

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
        self.is_fresh = True  # no pause made yet, or none since `reset`

    def take(self) -> float:
        """The length of the next pause, in seconds; later ones are longer."""
        self.is_fresh = False
        pause_s = self.next_s * self._chance()
        self.next_s = min(self._growth * self.next_s, self._longest_s)
        return pause_s

    async def pause(self) -> None:
        await self._sleep(self.take())

    def at_most(self, longest_s: float) -> None:
        """Make the next pause no longer than this."""
        self.next_s = min(self.next_s, longest_s)

    def reset(self) -> None:
        self.next_s, self.is_fresh = self._first_s, True


class Tries:
    """Counts tries of a change to `what` that is stored only if no other change was faster.

    Each lost try means that another change was stored. Those who lose to each other wait for different times.
    """

    def __init__(self, what: str, *, sleep: Sleep = asyncio.sleep, chance: Callable[[], float] = random.random) -> None:
        self._what = what
        self._lost = 0
        self._backoff = Backoff(longest_s=CHANGE_LONGEST_PAUSE_S, sleep=sleep, chance=chance)

    async def lost(self) -> None:
        """Another change was faster: wait before the next try, except the first time; ContentionError in the end."""
        self._lost += 1
        if self._lost == CHANGE_TRIES:
            raise ContentionError(self._what, self._lost)
        if self._lost > 1:  # one other is done by now
            await self._backoff.pause()
