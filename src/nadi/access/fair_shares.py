"""Share limited capacity fairly among addresses.

`Shares` rejects: an address may use as much as remains free for others, so half of the total if it is alone, and less
the more addresses there are. This always leaves some for a newcomer.

`FairQueue` makes callers wait: a few run, and the waiting ones of each owner (an address, a connection) follow in
order, with owners in rotation. So an owner with many requests delays only its own, and another owner is next.

`LoopTurns` limits the work started per iteration of the event loop, which the segment store uses, too: a flood of
requests from one peer must not delay appends or the requests of other peers for long.
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
Work = Callable[[], bool]  # returns whether it did anything


class Rotation(Generic[T]):
    """Queue of items, in order for each owner; owners are served in rotation.

    >>> rotation = Rotation[str]()
    >>> for owner, item in [("flood", "a"), ("flood", "b"), ("flood", "c"), ("good", "d")]:
    ...     rotation.put(owner, item)
    >>> [rotation.take() for _ in range(len(rotation))]
    ['a', 'd', 'b', 'c']
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, deque[T]] = OrderedDict()  # no empty queues; the first is the next
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, owner: Hashable, item: T) -> None:
        self._queues.setdefault(owner, deque()).append(item)
        self._size += 1

    def take(self) -> T:
        """Remove and return the oldest item of the next owner; raise IndexError if the queue is empty."""
        if not self._queues:
            raise IndexError("the rotation is empty")
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[owner] = queue  # behind the other owners
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
    """Limit of `most` in progress at once: call `enter` and, if it returns True, `leave` later. refused: how often
    `enter` returned False.

    >>> shares = Shares(4)
    >>> [shares.enter("flood") for _ in "abc"], shares.enter("good")
    ([True, True, False], True)
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self.refused = 0
        self._of_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count one more from this address, if allowed; return whether it is."""
        if self._of_address.get(address, 0) >= self._left:
            self.refused += 1
            return False
        self._left -= 1
        self._of_address[address] += 1
        return True

    @property
    def entered(self) -> int:
        """The number in progress."""
        return self._most - self._left

    def leave(self, address: str) -> None:
        self._left += 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]


class FairQueue:
    """Permits for `most` callers, or for another unit such as bytes, on one event loop. Use `async with
    places.of(owner)`; or `queue` a ticket, await it, and `leave`."""

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._waiting = Rotation[tuple[Ticket, int]]()
        self._next: tuple[Ticket, int] | None = None  # first in line, but not enough places are free

    @asynccontextmanager
    async def of(self, owner: Hashable, count: int = 1, *, limit_s: float | None = None) -> AsyncIterator[None]:
        """Hold `count` places, but at most all, once it is this owner's turn; a cancelled caller holds none. Raises
        UnavailableError after waiting `limit_s`."""
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
                self.leave(count)  # granted and cancelled at the same time
            if isinstance(error, TimeoutError):
                raise UnavailableError(
                    f"the server had no capacity within {limit_s:.0f} s because of other requests: try again"
                ) from error
            raise
        try:
            yield
        finally:
            self.leave(count)

    def queue(self, owner: Hashable, ticket: Ticket, count: int = 1) -> None:
        """Set the ticket's result when it is the owner's turn. A ticket queued for several owners is called at the
        first turn of any of them, and a cancelled ticket holds no place."""
        self._waiting.put(owner, (ticket, count))
        self._call()

    def leave(self, count: int = 1) -> None:
        """Release the places of a called ticket."""
        self._free += count
        self._call()

    def _call(self) -> None:
        while self._free and (self._next or self._waiting):
            self._next = self._next or self._waiting.take()
            ticket, count = self._next
            if not ticket.done():
                if count > self._free:
                    return  # later tickets wait, too, otherwise a large one would wait forever
                self._free -= count
                ticket.set_result(None)
            self._next = None


class LoopTurns:
    """Limit of `most` pieces of work started per loop iteration: `await turns.wait_for_turn(peer)` before the work, or
    pass it to `turns.ask(peer, work)`."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._waiting = Rotation[Work]()
        self._is_due = False

    def ask(self, peer: str, work: Work) -> None:
        """Run the work when it is this peer's turn, possibly now."""
        loop = asyncio.get_running_loop()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            work()
        else:
            self._waiting.put(peer, work)

    async def wait_for_turn(self, peer: str) -> None:
        """Wait for this peer's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if turn.done():  # cancelled
                return False
            turn.set_result(None)
            return True

        self.ask(peer, begin)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._left and self._waiting:
            work = self._waiting.take()
            self._left -= 1  # before the work, which may call `ask`
            if not work():
                self._left += 1
        self._is_due = bool(self._waiting) or self._left < self._most
        if self._is_due:
            loop.call_soon(self._next, loop)
