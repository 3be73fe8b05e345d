"""Lets what comes in numbers go in groups, whose members do the same steps at the same time.

What is asked of a container at one time shares a frame of its log, which costs the same for one as for a hundred. Those
who come one by one, as from many clients, are each at another step, and each has frames of its own. So while some are
under way, who comes waits until half of them have arrived, and then sets out with all others who wait.

Those that don't get on, because a container is on its way to another server, are seldom half of a group; and they hold
the next one up only for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nadi.limits import CONVOY_FEW, CONVOY_WAIT_S


class Convoy:
    """few: so many go as they come. wait_s: nobody waits longer than this."""

    def __init__(self, few: int = CONVOY_FEW, wait_s: float = CONVOY_WAIT_S) -> None:
        self._few, self._wait_s = few, wait_s
        self._under_way = self._most = 0  # now, and when the last group set out
        self._waiting: list[asyncio.Future[None]] = []
        self._late: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        """Around the steps."""
        if self._waiting or self._under_way >= self._few:
            await self._turn()
        else:
            self._under_way += 1
        try:
            yield
        finally:
            self._arrived()

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._late is None:
            self._late = loop.call_later(self._wait_s, self._set_out)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._arrived()
            raise

    def _arrived(self) -> None:
        self._under_way -= 1
        if self._waiting and self._under_way < max(self._few, self._most // 2):
            self._set_out()

    def _set_out(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        waiting, self._waiting = [turn for turn in self._waiting if not turn.done()], []  # the others have gone
        self._under_way += len(waiting)
        self._most = self._under_way
        for turn in waiting:
            turn.set_result(None)
