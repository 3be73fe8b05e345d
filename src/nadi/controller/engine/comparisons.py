"""Slow questions about a stream's cuts, answered in a separate thread.

Comparing cuts of ten thousand segments takes a fifth of a second, during which the loop would serve nobody else. One
thread does it for all streams. It works on a view of the history, since the loop may add epochs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nadi.controller.state.history import History
from nadi.limits import CUT_QUICK_SEGMENTS
from nadi.runtime import Runtime

T = TypeVar("T")

_thread = ThreadPoolExecutor(1, "nadi stream cuts")


async def ask(runtime: Runtime, history: History, question: Callable[[History], T], *, cuts: int = 1) -> T:
    """The answer to `question` about the history; the question changes nothing and may raise any error. cuts: how many
    it is about."""
    if len(history.segments) * cuts <= CUT_QUICK_SEGMENTS:
        return question(history)
    return await runtime.in_thread(question, history.view(), pool=_thread)
