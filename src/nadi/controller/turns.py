"""A few calls begin in each turn of the loop, from all peers in rotation: the loop is shared with the segment store,
and a flood of calls from one peer is to delay neither appends nor the calls of others for long."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class Turns:
    """`await turns.mine(peer)` before the work."""

    def __init__(self, most: int) -> None:
        """most: that begin in one turn of the loop."""
        self._most = self._left = most
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_due = False

    async def mine(self, peer: str) -> None:
        """Wait for a turn of this peer's."""
        loop = asyncio.get_running_loop()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._left and self._waiting:
            peer, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[peer] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        self._is_due = bool(self._waiting) or self._left < self._most
        if self._is_due:
            loop.call_soon(self._next, loop)
