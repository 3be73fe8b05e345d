"""Waiters for something to happen to a segment: each is called once; many are called a few per turn of the loop.

A hundred thousand reads at one tail would otherwise stop everybody else while one event wakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nadi.limits import WAKES_A_TURN

Waiter = Callable[[], None]


class Waiters:
    """The waiters of one segment, in order of arrival."""

    __slots__ = ("_due", "_order", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Waiter, None] = {}
        self._due: dict[Waiter, None] = {}  # woken, and not called yet
        self._order: list[Waiter] = []  # of these, the next one last; those who left are in it still

    def __len__(self) -> int:
        return len(self._waiting) + len(self._due)

    def add(self, waiter: Waiter) -> None:
        self._waiting[waiter] = None

    def discard(self, waiter: Waiter) -> None:
        """Don't call it any more."""
        self._waiting.pop(waiter, None)
        self._due.pop(waiter, None)

    def wake(self) -> None:
        """Call all current waiters: the first ones at once, the others in later turns of the loop."""
        waiting = self._waiting
        if not self._due and len(waiting) == 1:
            waiting.popitem()[0]()
        elif waiting:
            self._waiting = {}
            is_arranged = bool(self._due)
            # a list, for the first key of a dict is found past all that were taken from it: the square of the crowd
            self._order[:0] = reversed(waiting)
            self._due |= waiting
            if not is_arranged:
                self._call()

    def _call(self) -> None:
        due, order = self._due, self._order
        for _ in range(min(len(order), WAKES_A_TURN)):
            waiter = order.pop()
            if waiter in due:
                del due[waiter]
                waiter()
        if due:
            asyncio.get_running_loop().call_soon(self._call)
        else:
            order.clear()
