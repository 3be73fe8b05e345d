"""How long to keep trying.

A loop with a time limit runs under a `TimeLimit` and notes the trouble it meets, so that a timeout says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from nadi.errors import NadiError, RequestTimeoutError, UnavailableError


def is_cancelled() -> bool:
    """Return, in an `except CancelledError`, whether this task was cancelled rather than what it was waiting for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class TimeLimit:
    """`async with`: a body that takes longer ends with a RequestTimeoutError that names `what` and the trouble met.

    timeout_s: None is forever. A timeout that the body itself raises passes unchanged.
    """

    def __init__(
        self, timeout_s: float | None, what: Callable[[], str], trouble: Callable[[], NadiError | None] = lambda: None
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
            # the cause is for callers, where its type says more than the message
            cause = None if type(met) in (UnavailableError, RequestTimeoutError) else met
            raise RequestTimeoutError(self._what() + (f": {met}" if met else "")) from cause
