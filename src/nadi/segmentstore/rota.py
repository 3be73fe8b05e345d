"""Connections that have more to do than one turn allows go on one after another, a bounded amount of work in each turn
of the loop, however many of them there are. So the loop comes round soon for those who have little to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nadi.limits import COMMANDS_A_TURN

Work = Callable[[], int]  # does some, and says how many commands that was worth


class Rota:
    """Of one loop. Work that is not finished is to be added again."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._is_due = False

    def add(self, work: Work) -> None:
        """Do it in a later turn of the loop, after what was added before."""
        self._waiting.append(work)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting, left = self._waiting, COMMANDS_A_TURN
        for _ in range(len(waiting)):  # what is added meanwhile is for later
            if left <= 0:
                break
            left -= 1 + waiting.popleft()()
        self._is_due = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)
