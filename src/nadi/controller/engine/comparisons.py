"""Questions about a stream's cuts that take long, answered in a thread of their own.

Cuts of ten thousand segments are compared in a fifth of a second, in which the loop would serve nobody else. One thread
does that for all; the history it looks at is a copy, for the loop may add epochs meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nadi.controller.state.history import History
from nadi.limits import CUT_QUICK_SEGMENTS

T = TypeVar("T")

_thread = ThreadPoolExecutor(1, "nadi stream cuts")


async def ask(history: History, question: Callable[[History], T]) -> T:
    """What `question` says of the history; it changes nothing, and raises what it likes."""
    if len(history.segments) <= CUT_QUICK_SEGMENTS:
        return question(history)
    return await asyncio.get_running_loop().run_in_executor(_thread, question, history.copied())
