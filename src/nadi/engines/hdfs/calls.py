"""Calls that block, each in a thread, with a limit on how long a caller waits and on how many there are.

A call that doesn't end in time is left behind, since nothing can stop it: another thread takes its place, until too
many are left behind. The threads are daemons, so that none of those keeps a process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from nadi.limits import HDFS_CALLS_AT_ONCE, HDFS_CALLS_LEFT

T = TypeVar("T")
_IDLE_S = 60.0  # then a thread ends


class Calls:
    """Of one store; from any thread or loop."""

    def __init__(self, at_once: int = HDFS_CALLS_AT_ONCE, most_left: int = HDFS_CALLS_LEFT) -> None:
        self._at_once, self._most_left = at_once, most_left
        self._waiting: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = self._left = 0

    @property
    def left(self) -> int:
        """How many calls that were left behind haven't ended."""
        return self._left

    async def run(self, timeout_s: float, function: Callable[[], T]) -> T:
        """What the function returns or raises; TimeoutError if it doesn't in that time, or has no thread."""
        call = self._begin(function)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(call.result)
        finally:
            self._leave(call)

    def wait(self, timeout_s: float, function: Callable[[], T]) -> T:
        """`run`, for a thread that may block."""
        call = self._begin(function)
        try:
            return call.result.result(timeout_s)
        finally:
            self._leave(call)

    def _begin(self, function: Callable[[], T]) -> _Call[T]:
        call = _Call(function)
        self._waiting.put(call)
        with self._lock:
            self._start_thread()
        return call

    def _start_thread(self) -> None:
        if self._idle < self._waiting.qsize() and self._threads - self._left < self._at_once:
            self._threads += 1
            threading.Thread(target=self._work, name="hdfs", daemon=True).start()

    def _leave(self, call: _Call[T]) -> None:
        """Of a call whose caller goes."""
        if call.result.done() or call.result.cancel():
            return
        with self._lock:
            if call.is_running and not call.is_left and self._left < self._most_left:
                call.is_left = True
                self._left += 1
                self._start_thread()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                call = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                call = None
            with self._lock:
                self._idle -= 1
                if call is None:
                    if self._waiting.empty():
                        self._threads -= 1
                        return
                    continue
                call.is_running = True
                self._start_thread()  # whoever put another one meanwhile took this thread for idle
            call()
            with self._lock:
                call.is_running = False
                if call.is_left:  # another has its place
                    self._left -= 1
                    self._threads -= 1
                    return


class _Call(Generic[T]):
    """is_running, is_left: changed under the lock of `Calls`."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.result: Future[T] = Future()
        self.is_running = self.is_left = False
        self._function = function

    def __call__(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            value = self._function()
        except BaseException as error:  # a panic of the library isn't an Exception
            self.result.set_exception(error)
        else:
            self.result.set_result(value)
