"""How a server ends: step by step, each within a bound. A peer, or a store, that never answers must not keep it from
ending; what was acknowledged is durable anyway, and what isn't closed is left as a kill would leave it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

log = logging.getLogger(__name__)
_CANCELLED_S = 0.5  # for what didn't end in time to notice that it is cancelled


class Ending(AsyncExitStack):
    """What ends a server: `step` by step, the last begun first."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[str] = []  # what hasn't ended, or not well

    def step(self, what: str, end: Callable[[], Awaitable[object]], limit_s: float, *, after_all: bool = False) -> None:
        """what: is ended by `end`, or left as it is. after_all: left, too, if anything before it was, which may use it
        still."""
        self.push_async_callback(self._end, what, end, limit_s, after_all)

    async def _end(self, what: str, end: Callable[[], Awaitable[object]], limit_s: float, after_all: bool) -> None:
        if after_all and self._left:
            return
        self._left.append(what)  # also if it fails, or this is cancelled: parts of it may go on
        if await end_within(limit_s, what, end):
            self._left.remove(what)


async def end_within(limit_s: float, what: str, end: Callable[[], Awaitable[object]]) -> bool:
    """Whether it has ended by then. If not, it is cancelled, and that is logged."""
    task = asyncio.get_running_loop().create_task(_awaited(end))  # in a simulation none may run any more
    try:
        await asyncio.wait([task], timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():  # an earlier step was, which ended the same
        log.warning("not closed, for it was cancelled: %s", what)
        return False
    if task.done():
        task.result()
        return True
    log.warning("still not closed after %g s: %s; it isn't waited for, and all acknowledged is stored", limit_s, what)
    task.cancel()
    await asyncio.wait([task], timeout=_CANCELLED_S)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s ended with an error: %s", what, error)
    return False


async def _awaited(end: Callable[[], Awaitable[object]]) -> None:
    await end()


def end_process_within(limit_s: float) -> None:
    """End this process by then, whatever still keeps it: a thread that waits for a disk can't be told to end. For a
    process that begins to stop, and has nothing else to do."""

    def end() -> None:
        log.error("this process hasn't ended after %g s: it ends as if it were killed, which loses nothing", limit_s)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
