"""Run an event loop in a daemon thread, for the blocking client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

import uvloop

from nadi.client.control.process import OwnProcess
from nadi.errors import ClosedError

log = logging.getLogger("nadi.client")

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_END: Any = object()


class LoopThread:
    """An event loop whose thread runs coroutines for other threads; `close` ends every wait with ClosedError.

    The end of the loop also ends all work handed to it: `_lock` prevents work from being added afterwards.
    """

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._lock = threading.Lock()
        self._process = OwnProcess()  # checked without the lock, which another thread may have held at the fork
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for the coroutine's result; Ctrl-C ends the wait and the coroutine."""
        running = _LoopCall(work, self._loop)
        try:
            self._process.check()
            with self._lock:
                self._check_usable()
                running.start()
            return running.result()
        except asyncio.CancelledError:
            raise ClosedError("this client was closed") from None
        except BaseException:  # such as Ctrl-C, at any point
            running.cancel()
            raise

    def result(self, function: Callable[_Params, _Result], /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        """Call `function` in the loop's thread and return its result."""

        async def call() -> _Result:
            return function(*args, **kwargs)

        return self.run(call())

    def each(self, items: AsyncIterator[_Result]) -> Iterator[_Result]:
        async def next_item() -> _Result:
            return await anext(items, _END)

        while (item := self.run(next_item())) is not _END:
            yield item

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call in the loop's thread, without waiting for it."""
        self._process.check()
        with self._lock:
            self._check_usable()
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, cancel all remaining tasks, and stop the thread."""
        if not self._process.is_this:
            last.close()
            return
        with self._lock:
            if self._closed:
                last.close()
                return
            if threading.current_thread() is self._thread:
                last.close()
                raise RuntimeError(
                    "a client can't be closed from its event loop's thread: close it from another thread"
                )
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._thread.join()

    def _check_usable(self) -> None:
        if self._closed or sys.is_finalizing():  # at the program's end the daemon thread is already stopped
            raise ClosedError("this client was closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from the client's event loop would deadlock: use another thread")

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            try:
                await last
            except Exception:
                log.exception("closing the client failed in part:")
            tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_asyncgens()
        finally:
            self._loop.call_soon(self._loop.stop)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


class _LoopCall(Generic[_Result]):
    """A coroutine on the loop and the thread that waits for it; costs half of `run_coroutine_threadsafe`."""

    def __init__(self, work: Coroutine[Any, Any, _Result], loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop = work, loop
        self._task: asyncio.Task[_Result] | None = None
        self._ended: SimpleQueue[asyncio.Task[_Result]] = SimpleQueue()
        self._is_handed_over = False

    def start(self) -> None:
        self._is_handed_over = True
        self._loop.call_soon_threadsafe(self._start)

    def result(self) -> _Result:
        return self._ended.get().result()

    def cancel(self) -> None:
        """End the coroutine unless it has ended; once handed over, the loop does so before it runs later work."""
        if not self._is_handed_over:
            self._work.close()
        elif self._task is None or not self._task.done():
            with contextlib.suppress(RuntimeError):  # the loop has ended together with the coroutine
                self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._ended.put)

    def _cancel(self) -> None:
        if self._task is None:  # interrupted before `_start` was scheduled
            self._work.close()
        else:
            self._task.cancel()
