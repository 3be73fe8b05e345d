"""One budget for all bytes that a server holds for its peers, so that none of them can take what others need.

Half of it is for data received but not handled yet, half for data to be sent but not taken yet, so readers that don't
take their data hold up no writer. Each connection has an account for each direction. An account may hold no more than
a share of what is free, so shares shrink as more is held. The last quarter is for accounts that hold little, and every
account gets a few bytes, or a newcomer couldn't even ask. Whoever finds no room waits until some is given back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable

from nadi.limits import PEERS_BYTES, PEERS_LEAST_BYTES, PEERS_LITTLE_BYTES, PEERS_SHARE, WAKES_A_TURN

Waiter = Callable[[], None]
_KEPT_FOR_LITTLE = 4  # this part


class Budget:
    """The budget's two halves. `peak_bytes` is at least the most that was ever held at one time."""

    def __init__(self, total_bytes: int = PEERS_BYTES) -> None:
        self.total_bytes = total_bytes
        self.receiving, self.sending = Pool(total_bytes // 2), Pool(total_bytes // 2)

    @property
    def held_bytes(self) -> int:
        return self.receiving.held_bytes + self.sending.held_bytes

    @property
    def peak_bytes(self) -> int:
        return self.receiving.peak_bytes + self.sending.peak_bytes

    @property
    def waiting(self) -> int:
        """How many are waiting for room."""
        return self.receiving.waiting + self.sending.waiting


class Pool:
    """One half: `account` for a connection; `held_bytes` now, and `peak_bytes` at most so far."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        self.share_bytes = self._share_bytes()  # what one account may hold now
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()  # ordered, and its first is found at once
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def _share_bytes(self) -> int:
        free = self.total_bytes - self.held_bytes
        much = (free - self.total_bytes // _KEPT_FOR_LITTLE) // PEERS_SHARE
        return max(PEERS_LEAST_BYTES, min(PEERS_LITTLE_BYTES, free // PEERS_SHARE), much)

    @property
    def largest_share_bytes(self) -> int:
        """What one account could hold if nobody else held anything."""
        return max(PEERS_LEAST_BYTES, (self.total_bytes - self.total_bytes // _KEPT_FOR_LITTLE) // PEERS_SHARE)

    @property
    def waiting(self) -> int:
        """How many are waiting for room."""
        return len(self._waiting)

    def account(self) -> Account:
        """A new account, for the thread of the running loop."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        return Account(self)

    def wait(self, waiter: Waiter) -> None:
        """Call it once after room was given back; it checks again, and may wait again."""
        self._waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """It waits no longer."""
        self._waiting.pop(waiter, None)

    @property
    def is_at_home(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def at_home(self, function: Callable[[], None]) -> None:
        """Call it in the loop's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def change(self, count: int) -> None:
        """For accounts: hold `count` more bytes, or fewer if it is negative."""
        assert self._loop is not None
        self.held_bytes += count
        self.share_bytes = self._share_bytes()  # computed here, as it is asked for more often
        if count > 0:
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        elif self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._wake, len(self._waiting))

    def _wake(self, count: int) -> None:
        """Let each of those waiting now check once, a few per loop turn, the longest-waiting first."""
        self._is_due = False
        for _ in range(min(count, WAKES_A_TURN, len(self._waiting))):
            waiter, _ = self._waiting.popitem(last=False)
            waiter()
            count -= 1
        if count > 0 and self._waiting and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._wake, count)


class Account:
    """What is held for one connection, in one direction."""

    __slots__ = ("_pool", "held_bytes")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.held_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How much more it may hold."""
        return max(0, self._pool.share_bytes - self.held_bytes)

    async def room(self) -> None:
        """Wait until it may hold more."""
        while not self.room_bytes:
            came = asyncio.Event()
            self._pool.wait(came.set)
            try:
                await came.wait()
            finally:
                self._pool.forget(came.set)

    def take(self, size_bytes: int) -> None:
        """Hold that much more, or less if it is negative; a caller that can wait checks `room_bytes` first."""
        self.held_bytes += size_bytes
        self._pool.change(size_bytes)

    def give(self, size_bytes: int) -> None:
        """Hold that much less. From any thread: garbage collection there may drop the last reference to a buffer."""
        if not self._pool.is_at_home:
            self._pool.at_home(lambda: self.give(size_bytes))
            return
        self.held_bytes -= size_bytes
        self._pool.change(-size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold that much from now on."""
        change, self.held_bytes = size_bytes - self.held_bytes, size_bytes
        if change:
            self._pool.change(change)
