"""Calls of HDFS's client, in a loop of their own: what it checks and copies doesn't hold up a server's, and whoever has
no loop may call it, too. A call that has no answer in time is cancelled, and leaves nothing behind.

The loop's thread is a daemon, one for all stores of a process, begun by the first call.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from nadi.limits import HDFS_CALLS_AT_ONCE

T = TypeVar("T")
_END_S = 1.0


class Calls:
    """Of one store; from any thread or loop. What is called runs in the loop of this module."""

    def __init__(self, at_once: int = HDFS_CALLS_AT_ONCE) -> None:
        self._permits = asyncio.Semaphore(at_once)

    async def run(self, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """What it returns or raises; TimeoutError if it doesn't in that time, or has no turn."""
        return await asyncio.wrap_future(self._begin(timeout_s, work))

    def wait(self, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """`run`, for a thread that may block."""
        return self._begin(timeout_s, work).result()

    def _begin(self, timeout_s: float, work: Callable[[], Awaitable[T]]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(self._in_time(timeout_s, work), _thread.running())

    async def _in_time(self, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(timeout_s), self._permits:
            return await work()


class _Thread:
    """With the loop; a fork begins one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._run, name="hdfs", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            return self._loop

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        if self._pid == os.getpid():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_S)


_thread = _Thread()
