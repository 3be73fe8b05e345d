"""Shares of addresses: how much of something each may have in progress, and whose turn it is.

`Shares` refuses: an address may have as much in progress as is left for others: half of all if it is alone, and less
the more addresses there are. So a newcomer always finds some.

`Places` makes callers wait: a few are at work, and the rest of each owner (an address, a connection) follow in order,
with owners in rotation. So whoever asks for a lot makes only itself wait, and a caller from elsewhere is next.

`LoopTurns` starts a little per turn of the loop, which is shared with the segment store: a flood of calls or requests
from one peer must not delay appends or other peers' requests for long.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from nadi.errors import UnavailableError

T = TypeVar("T")
Ticket = asyncio.Future[None]
Work = Callable[[], bool]  # says whether there was anything to do


class Rotation(Generic[T]):
    """Waiting items, in order for each owner; owners are served in rotation.

    >>> rotation = Rotation[str]()
    >>> for owner, item in [("flood", "a"), ("flood", "b"), ("flood", "c"), ("good", "d")]:
    ...     rotation.put(owner, item)
    >>> [rotation.take() for _ in range(len(rotation))]
    ['a', 'd', 'b', 'c']
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, deque[T]] = OrderedDict()  # none is empty; the first is the next
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, owner: Hashable, item: T) -> None:
        self._queues.setdefault(owner, deque()).append(item)
        self._size += 1

    def take(self) -> T:
        """Remove and return the oldest item of the owner whose turn it is; IndexError if nothing waits."""
        if not self._queues:
            raise IndexError("nothing waits")
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[owner] = queue  # after the others
        self._size -= 1
        return item

    def discard(self, owner: Hashable, item: T) -> None:
        """Remove the item if it is waiting."""
        queue = self._queues.get(owner)
        if queue is None or item not in queue:
            return
        queue.remove(item)
        self._size -= 1
        if not queue:
            del self._queues[owner]


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


class LoopTurns:
    """Starts a little work per turn of the loop: `await turns.mine(peer)` before it, or `turns.ask(peer, work)`."""

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
