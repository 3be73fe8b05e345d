"""Schedules connections that have more to do than one turn of the loop allows.

They continue in order, with a bounded amount of work per turn. Work done on arrival counts too: once many requests
arriving in one turn have used up the limit, each connection does little, or waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nadi.limits import COMMANDS_A_TURN

Work = Callable[[], int]  # does some work and returns its cost in commands


class FairScheduler:
    """The scheduler of one loop. Unfinished work must be added again."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._is_due = False
        self._done = 0  # commands in this turn; the next begins at the limit, or when work waits
        self.is_exhausted = False  # this turn's limit is reached
        self.under_way = 0  # commands of all connections waiting for their containers

    def count(self, commands: int) -> None:
        self._done += commands
        if self._done >= COMMANDS_A_TURN:
            self.is_exhausted = True
            self._come_round()

    def add(self, work: Work) -> None:
        """Do the work in a later turn of the loop, after work added before."""
        self._waiting.append(work)
        self._come_round()

    async def do(self, work: Work) -> None:
        """Do the work in a later turn and wait for it; cancelling the wait cancels the work."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def in_turn() -> int:
            if done.done():
                return 0
            try:
                commands = work()
            except Exception as error:
                done.set_exception(error)
                return 0
            done.set_result(None)
            return commands

        self.add(in_turn)
        await done

    def _come_round(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting, self._done = self._waiting, 0
        self.is_exhausted = False
        for _ in range(len(waiting)):  # work added meanwhile waits
            self._done += 1 + waiting.popleft()()
            if self._done >= COMMANDS_A_TURN:
                self.is_exhausted = True
                break
        self._is_due = False
        if waiting or self.is_exhausted:
            self._come_round()
