"""Who may do something next, of which only so much is done at a time: each of those who wait in turn.

Were it first come, first served, one who asks for a thousand things at once would be before everybody else with all of
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

Ticket = asyncio.Future[None]


class Turns:
    """`queue` a ticket, await it, and `give_back` when all is done; on one event loop."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._queues: dict[Hashable, deque[Ticket]] = {}  # by owner; the first has the next turn

    def queue(self, owner: Hashable, ticket: Ticket) -> None:
        """Have it called in one of the owner's turns. One that is queued for several is called in the first."""
        self._queues.setdefault(owner, deque()).append(ticket)
        self._call()

    def give_back(self) -> None:
        self._free += 1
        self._call()

    def _call(self) -> None:
        while self._free and self._queues:
            owner = next(iter(self._queues))
            waiting = self._queues.pop(owner)
            ticket = waiting.popleft()
            if waiting:
                self._queues[owner] = waiting  # behind the others
            if not ticket.done():
                self._free -= 1
                ticket.set_result(None)
