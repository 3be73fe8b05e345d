"""One event loop in one daemon thread: what the blocking face runs on."""

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

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_END: Any = object()


class LoopThread:
    """`run` from any other thread; `close` ends every wait with ClosedError.

    What is handed to the loop before it ends is ended with it: `_lock` keeps anything from coming after.
    """

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._lock = threading.Lock()
        self._process = OwnProcess()  # looked at without the lock, which another thread may have held when it forked
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
        except BaseException:  # Ctrl-C comes anywhere here
            running.give_up()
            raise

    def result(self, function: Callable[_Given, _Result], /, *args: _Given.args, **given: _Given.kwargs) -> _Result:
        """Call it in the loop's thread, and wait for what it returns."""

        async def call() -> _Result:
            return function(*args, **given)

        return self.run(call())

    def each(self, found: AsyncIterator[_Result]) -> Iterator[_Result]:
        async def following() -> _Result:
            return await anext(found, _END)

        while (one := self.run(following())) is not _END:
            yield one

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call it soon, and don't wait."""
        self._process.check()
        with self._lock:
            self._check_usable()
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, end everything that still runs, and stop the thread."""
        if not self._process.is_this:
            last.close()
            return
        with self._lock:
            if self._closed:
                last.close()
                return
            if threading.current_thread() is self._thread:
                last.close()
                raise RuntimeError("a client can't be closed in its own thread, which would wait for itself")
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._thread.join()

    def _check_usable(self) -> None:
        if self._closed or sys.is_finalizing():  # at the program's end the thread stands still already
            raise ClosedError("this client was closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            try:
                await last
            except Exception:
                log.exception("the client is closed, and this failed meanwhile:")
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
    """A coroutine on the loop, for the one thread that waits for it; half of what `run_coroutine_threadsafe` costs."""

    def __init__(self, work: Coroutine[Any, Any, _Result], loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop = work, loop
        self._task: asyncio.Task[_Result] | None = None
        self._ended: SimpleQueue[asyncio.Task[_Result]] = SimpleQueue()
        self._is_the_loops = False

    def start(self) -> None:
        self._is_the_loops = True
        self._loop.call_soon_threadsafe(self._start)

    def result(self) -> _Result:
        return self._ended.get().result()

    def give_up(self) -> None:
        """End the coroutine, if it has not ended. What the loop may have is ended there, before whatever comes next."""
        if not self._is_the_loops:
            self._work.close()
        elif self._task is None or not self._task.done():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the coroutine with it
                self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._ended.put)

    def _cancel(self) -> None:
        if self._task is None:  # interrupted before the loop was given it
            self._work.close()
        else:
            self._task.cancel()
