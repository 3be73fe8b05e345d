"""How many workers a function has: as many as there are segments with unread data. Pure.

More are started at once; fewer are kept once more were not needed for `idle_s` seconds. All instances of a function
(several `nadi function run`, on one machine or many) see the same readers in the group, and plan by the same rule
without asking each other: of too many workers, the last by name go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """What an instance does next: `start` so many workers, and `stop` these."""

    start: int = 0
    stop: tuple[str, ...] = ()


class WorkerPlan:
    """Of one instance, for all: from `least` to `most` workers."""

    def __init__(self, least: int, most: int, idle_s: float) -> None:
        self._least, self._most, self._idle_s = least, most, idle_s
        self._needs: deque[tuple[float, int]] = deque()

    def change(self, now: float, unread: int, own: Collection[str], others: Collection[str]) -> Change:
        """What to do at `now` seconds, with so many unread segments, these workers here and those elsewhere.

        >>> plan = WorkerPlan(0, 3, idle_s=5.0)
        >>> plan.change(0.0, 8, [], [])
        Change(start=3, stop=())
        >>> plan.change(1.0, 0, ["a", "b", "c"], [])
        Change(start=0, stop=())
        >>> plan.change(6.0, 0, ["a", "b", "c"], [])
        Change(start=0, stop=('a', 'b', 'c'))
        """
        wanted = self._wanted(now, unread)
        everyone = sorted({*own, *others})
        if len(everyone) <= wanted:
            return Change(start=wanted - len(everyone))
        surplus = everyone[wanted:]
        return Change(stop=tuple(name for name in surplus if name in own))

    def _wanted(self, now: float, unread: int) -> int:
        """The most that was needed within the last `idle_s`."""
        while self._needs and self._needs[0][0] <= now - self._idle_s:
            self._needs.popleft()
        while self._needs and self._needs[-1][1] <= unread:
            self._needs.pop()
        self._needs.append((now, unread))
        return min(max(self._needs[0][1], self._least), self._most)
