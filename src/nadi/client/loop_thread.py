"""One event loop in one daemon thread: what the blocking face runs on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from nadi.errors import ClosedError

_Result = TypeVar("_Result")


class LoopThread:
    """`run` from any other thread; `close` ends every wait with ClosedError."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The coroutine's result; Ctrl-C ends the wait and the coroutine."""
        if self._closed or sys.is_finalizing():  # at the program's end the thread stands still already
            work.close()
            raise ClosedError("this client was closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("this client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call it soon; a third of what `run` costs."""
        if self._closed or sys.is_finalizing():
            raise ClosedError("this client was closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, end everything that still runs, and stop the thread."""
        if self._closed:
            last.close()
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._thread.join()

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            await last
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
