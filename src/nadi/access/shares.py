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
from nadi.errors import UnavailableError


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
    """`async with places.of(owner)`; or `queue` a ticket, await it, and `leave`. On one event loop. A caller may take
    several: bytes, say."""

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._waiting = Rotation[tuple[Ticket, int]]()
        self._next: tuple[Ticket, int] | None = None  # its turn has come, but not all of its places are free

    @asynccontextmanager
    async def of(self, owner: Hashable, count: int = 1, *, limit_s: float | None = None) -> AsyncIterator[None]:
        """Hold so many of the places, all at most, once it is this owner's turn; a caller that gives up while waiting
        takes none. UnavailableError: its turn hasn't come within `limit_s`."""
        ticket: Ticket = asyncio.get_running_loop().create_future()
        count = min(count, self._most)
        self.queue(owner, ticket, count)
        try:
            async with asyncio.timeout(limit_s):
                await ticket
        except (asyncio.CancelledError, TimeoutError) as error:
            if ticket.cancelled():
                self._waiting.discard(owner, (ticket, count))
                self._call()
            else:
                self.leave(count)  # the places came but are no longer wanted
            if isinstance(error, TimeoutError):
                raise UnavailableError(
                    f"others have had all the room there is for {limit_s:.0f} s: try again"
                ) from error
            raise
        try:
            yield
        finally:
            self.leave(count)

    def queue(self, owner: Hashable, ticket: Ticket, count: int = 1) -> None:
        """Set the ticket's result when it is the owner's turn; a ticket queued for several owners is called at the
        first turn of any. A cancelled ticket takes no place."""
        self._waiting.put(owner, (ticket, count))
        self._call()

    def leave(self, count: int = 1) -> None:
        """Give back the places of a ticket that was called."""
        self._free += count
        self._call()

    def _call(self) -> None:
        while self._free and (self._next or self._waiting):
            self._next = self._next or self._waiting.take()
            ticket, count = self._next
            if not ticket.done():
                if count > self._free:
                    return  # those after it wait, too, or it would wait forever
                self._free -= count
                ticket.set_result(None)
            self._next = None
