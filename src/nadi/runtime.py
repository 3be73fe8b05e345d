"""What a server takes from outside to read the time, wait, run blocking work, and make unique ids. It is handed in, so
tests can move the clock, and a whole server can run under its own clock (`tests/simulation`).

Durations are measured by the monotonic clock alone: the wall clock may be set forwards or back by days while a server
runs, and between two runs. It only says when something was made, for people and other systems to read.

Timers are the event loop's own: a custom clock comes with a loop that follows it.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Runtime:
    """The real ones."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; comparable only within this process, and nobody can set them."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds since an arbitrary start, those included in which the machine was suspended; nobody can set them.
        What others rely on to be over by then is measured by it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def monotonic_ms(self) -> int:
        """`monotonic` in whole milliseconds."""
        return int(self.monotonic() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def in_thread(
        self, function: Callable[..., T], *arguments: object, pool: Executor | None = None, **named: object
    ) -> asyncio.Future[T]:
        """Run a blocking function in a thread of `pool` or of the loop's own; the future has its result or error."""
        return asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments, **named))

    def rest(self, seconds: float) -> None:
        """Pause a thread that works in the background, so that others get the interpreter. Not for the loop's."""
        time.sleep(seconds)

    def chance(self) -> float:
        """A number from 0 to 1, to spread out those who would all come at once."""
        return random.random()

    def unique(self) -> str:
        """32 hexadecimal digits that nobody else has."""
        return uuid.uuid4().hex


REAL = Runtime()
