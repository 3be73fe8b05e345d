"""Who waits for something to happen to a segment: each is called once, and many are called a few in a turn of the loop.

A hundred thousand reads at one tail would otherwise stop everybody else while one event wakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nadi.limits import WAKES_A_TURN

Waiter = Callable[[], None]


class Waiters:
    """Of one segment, in the order in which they came."""

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Waiter, None] = {}
        self._due: dict[Waiter, None] = {}  # woken, and not called yet

    def __len__(self) -> int:
        return len(self._waiting) + len(self._due)

    def add(self, waiter: Waiter) -> None:
        self._waiting[waiter] = None

    def discard(self, waiter: Waiter) -> None:
        """It is not called any more."""
        self._waiting.pop(waiter, None)
        self._due.pop(waiter, None)

    def wake(self) -> None:
        """Call everybody who waits now: the first ones at once, and the others in later turns of the loop."""
        waiting = self._waiting
        if self._due:
            self._due |= waiting  # their turns are arranged already
            self._waiting = {}
        elif len(waiting) == 1:
            waiting.popitem()[0]()
        elif waiting:
            self._due, self._waiting = waiting, {}
            self._call()

    def _call(self) -> None:
        due = self._due
        for _ in range(min(len(due), WAKES_A_TURN)):
            waiter = next(iter(due))
            del due[waiter]
            waiter()
        if due:
            asyncio.get_running_loop().call_soon(self._call)
