"""Shares of addresses: how much of something one may have under way, and whose turn it is.

`Shares` refuses: an address may have as much under way as is left for others, half of all where it is alone, less the
more there are. So whoever comes finds some.

`Places` has all wait: a few are at work, the others of each address come in order and addresses in rotation. So who
asks for much makes itself wait, and who comes from elsewhere is next.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """Of so many at once: `enter`, and if that says True `leave` later.

    >>> shares = Shares(4)
    >>> [shares.enter("flood") for _ in "abc"], shares.enter("good")
    ([True, True, False], True)
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._of_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Whether one more from there may begin."""
        if self._of_address.get(address, 0) >= self._left:
            return False
        self._left -= 1
        self._of_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._left += 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]


class Places:
    """`async with places.of(address)`; what is given up while it waits takes none."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def of(self, address: str) -> AsyncIterator[None]:
        """Hold one of the places, when it is this one's turn."""
        if self._free:
            self._free -= 1
        else:
            await self._turn(address)
        try:
            yield
        finally:
            self._pass_on()

    async def _turn(self, address: str) -> None:
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(came)
        try:
            await came
        except asyncio.CancelledError:
            if came.done() and not came.cancelled():
                self._pass_on()  # it came, and is not wanted any more
            else:
                self._forget(address, came)
            raise

    def _forget(self, address: str, came: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(address)
        if waiting is not None and came in waiting:
            waiting.remove(came)
            if not waiting:
                del self._waiting[address]

    def _pass_on(self) -> None:
        while self._waiting:
            address, waiting = self._waiting.popitem(last=False)
            came = waiting.popleft()
            if waiting:
                self._waiting[address] = waiting  # behind the others
            if not came.done():
                came.set_result(None)
                return
        self._free += 1
