"""The controller's background tasks, which no call waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from nadi.errors import ClosedError

log = logging.getLogger(__name__)

T = TypeVar("T")
_AGAIN_S = 1.0
BACKGROUND = "controller background"  # their name


class Tasks:
    """Owner of the controller's background tasks: none outlives `close`."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._begun(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _begun(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._closed:
            coroutine.close()
            raise ClosedError("the controller is being stopped: try again")
        task = asyncio.get_running_loop().create_task(coroutine, name=BACKGROUND)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def to_its_end(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; it goes on if whoever waits for it is cancelled: a caller that has gone away must
        not leave something half done."""
        task = self._begun(coroutine)
        task.add_done_callback(_seen)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    async def close(self) -> None:
        self._closed = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_AGAIN_S)  # one may have taken it for the end of a call, which it repeats


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # who waited has it, if anybody still did
