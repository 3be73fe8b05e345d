"""Waiting for conditions, with a limit and short pauses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def until(holds: Callable[[], object], limit_s: float = 60.0) -> float:
    """Wait until the condition holds; return the seconds it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit_s, "the condition never held"
        time.sleep(0.01)
    return time.monotonic() - began


async def until_async(holds: Callable[[], object], limit_s: float = 60.0) -> float:
    """Wait like `until`, while the loop runs."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds():
        assert loop.time() - began < limit_s, "the condition never held"
        await asyncio.sleep(0.005)
    return loop.time() - began
