"""Ordered shutdown of a server, with a time limit for each step.

A peer or store that never answers must not keep the server from ending. Acknowledged data is durable anyway; whatever
is still open is abandoned, as after a kill.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

log = logging.getLogger(__name__)
_CANCELLED_S = 0.5  # for a cancelled step to end


class ShutdownSteps(AsyncExitStack):
    """The shutdown steps of a server, run in reverse order of `step` calls."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished: list[str] = []  # running, failed or timed out

    def step(self, name: str, end: Callable[[], Awaitable[object]], limit_s: float, *, after_all: bool = False) -> None:
        """Add a step: `end` closes the named object, which is abandoned after limit_s.

        after_all: abandon it too if an earlier step failed, because that step's object may still use it.
        """
        self.push_async_callback(self._end, name, end, limit_s, after_all)

    async def _end(self, name: str, end: Callable[[], Awaitable[object]], limit_s: float, after_all: bool) -> None:
        if after_all and self._unfinished:
            return
        self._unfinished.append(name)  # stays there if it fails or is cancelled: parts of it may still run
        if await end_within(limit_s, name, end):
            self._unfinished.remove(name)


async def end_within(limit_s: float, name: str, end: Callable[[], Awaitable[object]]) -> bool:
    """Run `end` and return whether it finished in time; otherwise cancel it and log a warning."""
    task = asyncio.get_running_loop().create_task(_awaited(end))  # wrapped: in a simulation the task may never run
    try:
        await asyncio.wait([task], timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():  # an earlier step with the same task was cancelled
        log.warning("closing was cancelled: %s", name)
        return False
    if task.done():
        task.result()
        return True
    log.warning("not closed within %g s: %s; continuing without it, no acknowledged data is lost", limit_s, name)
    task.cancel()
    await asyncio.wait([task], timeout=_CANCELLED_S)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        log.warning("closing %s failed: %s", name, error)
    return False


async def _awaited(end: Callable[[], Awaitable[object]]) -> None:
    await end()


def end_process_within(limit_s: float) -> None:
    """Kill this process after limit_s unless it has ended: a thread that waits for a disk can't be cancelled.

    Call it once the process has begun to stop.
    """

    def end() -> None:
        log.error(
            "this process hasn't stopped within %g s: exiting as if killed; no acknowledged data is lost", limit_s
        )
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
