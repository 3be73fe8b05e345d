"""Starts a little work per turn of the loop, with peers in rotation: the loop is shared with the segment store, and a
flood of calls or requests from one peer must not delay appends or other peers' requests for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nadi.access.rotation import Rotation

Work = Callable[[], bool]  # says whether there was anything to do


class LoopTurns:
    """`await turns.mine(peer)` before the work, or `turns.ask(peer, work)`."""

    def __init__(self, most: int) -> None:
        """most: how many start in one turn of the loop."""
        self._most = self._left = most
        self._waiting = Rotation[Work]()
        self._is_due = False

    def ask(self, peer: str, work: Work) -> None:
        """Do the work when it is this peer's turn, which may be now."""
        loop = asyncio.get_running_loop()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            work()
        else:
            self._waiting.put(peer, work)

    async def mine(self, peer: str) -> None:
        """Wait for this peer's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if turn.done():  # it was given up
                return False
            turn.set_result(None)
            return True

        self.ask(peer, begin)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._left and self._waiting:
            work = self._waiting.take()
            self._left -= 1  # before the work, which may ask for another turn
            if not work():
                self._left += 1
        self._is_due = bool(self._waiting) or self._left < self._most
        if self._is_due:
            loop.call_soon(self._next, loop)
