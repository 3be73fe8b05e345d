"""Limit the time of retries.

A retry loop runs under a `TimeLimit` and records its last error, so that a timeout includes the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from nadi.errors import NadiError, RequestTimeoutError, UnavailableError


def is_cancelled() -> bool:
    """Return, in an `except CancelledError`, whether this task was cancelled and not the future it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class TimeLimit:
    """Async context manager that ends its body after `timeout_s` with a RequestTimeoutError.

    message, trouble: called for the error's text and for the reason, if known. timeout_s: None for no limit. A timeout
    that the body itself raises passes unchanged.
    """

    def __init__(
        self,
        timeout_s: float | None,
        message: Callable[[], str],
        trouble: Callable[[], NadiError | None] = lambda: None,
    ) -> None:
        self._timeout_s, self._message, self._trouble = timeout_s, message, trouble

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(self._timeout_s)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            trouble = self._trouble()
            # callers get the cause if its type says more than the message
            cause = None if type(trouble) in (UnavailableError, RequestTimeoutError) else trouble
            raise RequestTimeoutError(self._message() + (f": {trouble}" if trouble else "")) from cause
