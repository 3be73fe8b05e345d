"""Shares of addresses: how much of something each may have in progress, and whose turn it is.

`Shares` refuses: an address may have as much in progress as is left for others: half of all if it is alone, and less
the more addresses there are. So a newcomer always finds some.

`Places` makes callers wait: a few are at work, and the rest of each owner (an address, a connection) follow in order,
with owners in rotation. So whoever asks for a lot makes only itself wait, and a caller from elsewhere is next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from nadi.access.rotation import Rotation


class Shares:
    """At most `most` at once: call `enter`, and if it returns True, `leave` later. refused: how often it didn't.

    >>> shares = Shares(4)
    >>> [shares.enter("flood") for _ in "abc"], shares.enter("good")
    ([True, True, False], True)
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self.refused = 0
        self._of_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Return whether one more from that address may start, and count it if so."""
        if self._of_address.get(address, 0) >= self._left:
            self.refused += 1
            return False
        self._left -= 1
        self._of_address[address] += 1
        return True

    @property
    def entered(self) -> int:
        """How many are in progress."""
        return self._most - self._left

    def leave(self, address: str) -> None:
        self._left += 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]


Ticket = asyncio.Future[None]


class Places:
    """`async with places.of(owner)`; or `queue` a ticket, await it, and `leave`. On one event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting = Rotation[Ticket]()

    @asynccontextmanager
    async def of(self, owner: Hashable) -> AsyncIterator[None]:
        """Hold one of the places once it is this owner's turn; a caller that gives up while waiting takes none."""
        ticket: Ticket = asyncio.get_running_loop().create_future()
        self.queue(owner, ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.cancelled():
                self._waiting.discard(owner, ticket)
            else:
                self.leave()  # the place came but is no longer wanted
            raise
        try:
            yield
        finally:
            self.leave()

    def queue(self, owner: Hashable, ticket: Ticket) -> None:
        """Set the ticket's result when it is the owner's turn; a ticket queued for several owners is called at the
        first turn of any. A cancelled ticket takes no place."""
        self._waiting.put(owner, ticket)
        self._call()

    def leave(self) -> None:
        """Give back the place of a ticket that was called."""
        self._free += 1
        self._call()

    def _call(self) -> None:
        while self._free and self._waiting:
            ticket = self._waiting.take()
            if not ticket.done():
                self._free -= 1
                ticket.set_result(None)
