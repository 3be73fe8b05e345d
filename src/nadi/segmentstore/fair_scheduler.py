"""Connections with more to do than one turn allows continue one after another, with a bounded amount of work in each
turn of the loop, however many there are. Work done on arrival is counted too: once a crowd that arrives in one turn has
used it up, each does little, or waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nadi.limits import COMMANDS_A_TURN

Work = Callable[[], int]  # does some of it, and returns how many commands that was worth


class FairScheduler:
    """The scheduler of one loop. Work that isn't finished must be added again."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._is_due = False
        self._done = 0  # commands since the turn began; a new one begins when there are too many, or when work waits
        self.is_spent = False  # enough was done for one turn of the loop
        self.under_way = 0  # commands of all connections that wait for their containers

    def count(self, commands: int) -> None:
        self._done += commands
        if self._done >= COMMANDS_A_TURN:
            self.is_spent = True
            self._come_round()

    def add(self, work: Work) -> None:
        """Do it in a later turn of the loop, after what was added before."""
        self._waiting.append(work)
        self._come_round()

    async def do(self, work: Work) -> None:
        """Have it done in a later turn, and wait for that; it isn't done if nobody waits any more."""
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
        self.is_spent = False
        for _ in range(len(waiting)):  # what is added meanwhile is for later
            self._done += 1 + waiting.popleft()()
            if self._done >= COMMANDS_A_TURN:
                self.is_spent = True
                break
        self._is_due = False
        if waiting or self.is_spent:
            self._come_round()
