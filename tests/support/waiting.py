"""Waiting for what comes to hold: with a limit, and so short a pause that nobody waits long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def until(holds: Callable[[], object], limit_s: float = 60.0) -> float:
    """Wait until it holds; how many seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit_s, "it never came to hold"
        time.sleep(0.01)
    return time.monotonic() - began


async def until_async(holds: Callable[[], object], limit_s: float = 60.0) -> float:
    """As `until`, while the loop goes on."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds():
        assert loop.time() - began < limit_s, "it never came to hold"
        await asyncio.sleep(0.005)
    return loop.time() - began
