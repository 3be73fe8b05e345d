"""Clocks, sleeping, threads, randomness and unique ids of a server, passed in as one object.

Tests replace it to control time, and `tests/simulation` runs a whole server under a simulated clock.

Durations use the monotonic clock alone: the wall clock may jump by days, during a run and between two runs. It only
dates records for people and other systems. Timers belong to the event loop: a custom clock needs a matching loop.
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
    """The real clocks, threads and random source."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; comparable only within this process; can't be set."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds since an arbitrary start, including time suspended; can't be set.

        Measures leases and other deadlines that peers rely on.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def monotonic_ms(self) -> int:
        """`monotonic` in whole milliseconds."""
        return int(self.monotonic() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def in_thread(
        self, function: Callable[..., T], *arguments: object, pool: Executor | None = None, **named: object
    ) -> asyncio.Future[T]:
        """Run a blocking function in a thread of `pool`, or else of the loop's executor; return its future."""
        return asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments, **named))

    def rest(self, seconds: float) -> None:
        """Pause a background thread to release the interpreter; never call it in the loop's thread."""
        time.sleep(seconds)

    def chance(self) -> float:
        """Return a random number from 0 to 1, to spread out simultaneous callers."""
        return random.random()

    def unique(self) -> str:
        """Return a unique id of 32 hexadecimal digits."""
        return uuid.uuid4().hex


REAL = Runtime()
