"""Limit the bytes that a server buffers for its peers, so that no peer can use up the memory of others.

One half of the budget is for received data that is not handled yet, the other for data that is not sent yet, so that
slow readers don't delay writers. Each connection has an account in each half. An account may hold at most a share of
the free bytes, so shares shrink as more is held. The last quarter is for accounts that hold little, and every account
gets a few bytes, so that a newcomer can at least send a request. Connections without capacity wait for bytes to be
released.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable

from nadi.limits import PEERS_BYTES, PEERS_LEAST_BYTES, PEERS_LITTLE_BYTES, PEERS_SHARE, WAKES_A_TURN

Waiter = Callable[[], None]
_RESERVED_PART = 4  # a quarter is reserved for accounts that hold little


class Budget:
    """The two halves of the budget. `peak_bytes`: an upper bound of the most bytes ever held at one time."""

    def __init__(self, total_bytes: int = PEERS_BYTES) -> None:
        self.total_bytes = total_bytes
        self.receiving, self.sending = Pool(total_bytes // 2), Pool(total_bytes // 2)

    @property
    def buffered_bytes(self) -> int:
        return self.receiving.buffered_bytes + self.sending.buffered_bytes

    @property
    def peak_bytes(self) -> int:
        return self.receiving.peak_bytes + self.sending.peak_bytes

    @property
    def waiting(self) -> int:
        """The number of waiting connections."""
        return self.receiving.waiting + self.sending.waiting


class Pool:
    """One half of the budget; `buffered_bytes`: now, `peak_bytes`: the maximum so far."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.buffered_bytes = 0
        self.peak_bytes = 0
        self.share_bytes = self._share_bytes()  # what one account may hold now
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()  # its first entry is found in constant time
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def _share_bytes(self) -> int:
        free = self.total_bytes - self.buffered_bytes
        unreserved = (free - self.total_bytes // _RESERVED_PART) // PEERS_SHARE
        return max(PEERS_LEAST_BYTES, min(PEERS_LITTLE_BYTES, free // PEERS_SHARE), unreserved)

    @property
    def largest_share_bytes(self) -> int:
        """The share of an account if all bytes are free."""
        return max(PEERS_LEAST_BYTES, (self.total_bytes - self.total_bytes // _RESERVED_PART) // PEERS_SHARE)

    @property
    def waiting(self) -> int:
        """The number of waiting accounts."""
        return len(self._waiting)

    def account(self) -> Account:
        """Return a new account, for the thread of the running loop."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        return Account(self)

    def wait(self, waiter: Waiter) -> None:
        """Call `waiter` once after bytes were released; it checks its share and may wait again."""
        self._waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """Remove a waiter."""
        self._waiting.pop(waiter, None)

    @property
    def is_loop_thread(self) -> bool:
        """Whether the caller runs in the loop's thread."""
        return threading.get_ident() == self._thread

    def call_in_loop(self, function: Callable[[], None]) -> None:
        """Schedule a call in the loop's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def change(self, count: int) -> None:
        """Hold `count` more bytes, or fewer if negative; called by accounts."""
        assert self._loop is not None
        self.buffered_bytes += count
        self.share_bytes = self._share_bytes()  # computed here, because it is read more often
        if count > 0:
            self.peak_bytes = max(self.peak_bytes, self.buffered_bytes)
        elif self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._wake, len(self._waiting))

    def _wake(self, count: int) -> None:
        """Call each current waiter once, the oldest first, a few per loop iteration."""
        self._is_due = False
        for _ in range(min(count, WAKES_A_TURN, len(self._waiting))):
            waiter, _ = self._waiting.popitem(last=False)
            waiter()
            count -= 1
        if count > 0 and self._waiting and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._wake, count)


class Account:
    """The bytes held for one connection in one direction."""

    __slots__ = ("_pool", "buffered_bytes")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.buffered_bytes = 0

    @property
    def capacity_bytes(self) -> int:
        """How many more bytes the account may hold."""
        return max(0, self._pool.share_bytes - self.buffered_bytes)

    async def wait_for_capacity(self, size_bytes: int = 1) -> None:
        """Wait until the account may hold `size_bytes` more, or half of what an account may hold if all bytes are free,
        which they hardly ever are."""
        while self.capacity_bytes < min(size_bytes, self._pool.largest_share_bytes // 2):
            released = asyncio.Event()
            self._pool.wait(released.set)
            try:
                await released.wait()
            finally:
                self._pool.forget(released.set)

    def take(self, size_bytes: int) -> None:
        """Hold `size_bytes` more, or fewer if negative; callers that can wait check `capacity_bytes` first."""
        self.buffered_bytes += size_bytes
        self._pool.change(size_bytes)

    def give(self, size_bytes: int) -> None:
        """Release `size_bytes`; callable from any thread, because garbage collection may free a buffer in any."""
        if not self._pool.is_loop_thread:
            self._pool.call_in_loop(lambda: self.give(size_bytes))
            return
        self.buffered_bytes -= size_bytes
        self._pool.change(-size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold exactly `size_bytes` from now on."""
        change, self.buffered_bytes = size_bytes - self.buffered_bytes, size_bytes
        if change:
            self._pool.change(change)
