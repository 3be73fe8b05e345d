"""How long something is tried, and how long to wait between two tries.

What to try again, and what ends it, each caller says in its own loop: the same error means another thing to a read, to
an append and to a lookup. A loop that has a time runs under a `TimeLimit` and notes what it meets; so who waited in
vain is told why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from nadi.errors import NadiError, RequestTimeoutError


class Backoff:
    """Growing pauses: 5 ms, doubled each time up to `longest_s`."""

    def __init__(self, longest_s: float = 1.0) -> None:
        self._next_s = 0.005
        self._longest_s = longest_s

    async def pause(self) -> None:
        await asyncio.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._longest_s)


def is_cancelled() -> bool:
    """In an `except CancelledError`: whether this task was cancelled, and not what it waits for, which others end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class TimeLimit:
    """`async with`: what takes longer ends with a RequestTimeoutError that says `what`, and the trouble there was.

    timeout_s: None is for ever. A timeout that the body raises by itself passes as it is.
    """

    def __init__(
        self,
        timeout_s: float | None,
        what: Callable[[], str],
        trouble: Callable[[], NadiError | None] = lambda: None,
    ) -> None:
        self._timeout_s, self._what, self._trouble = timeout_s, what, trouble

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(self._timeout_s)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            met = self._trouble()
            raise RequestTimeoutError(self._what() + (f": {met}" if met else "")) from met
