"""The controller's clock, given from outside so that tests can move it."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The real one."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
