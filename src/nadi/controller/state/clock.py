"""The controller's clocks, given from outside so that tests can move them.

How long something lasts is measured by `monotonic_ms` alone: the wall clock may be set on or back by days while the
server runs, and between two runs. It says when something was made, for people and other systems to read.
"""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The real ones."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; comparable within this process only, and nobody can set them."""
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
