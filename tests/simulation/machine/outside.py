"""Replacements for the global functions that a client uses: the clocks of `time`, randomness, and socket options.

A server gets these from its `Runtime`; the client library calls the functions directly. During a simulation they return
the clocks of the calling process, and seeded randomness.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from nadi.client.segments import connection

from .process import BEGIN_MS, current
from .transport import SimulatedTransport


@contextmanager
def nothing_from_outside(now: Callable[[], float]) -> Iterator[None]:
    """now: the simulation's time, for code outside of processes."""
    others, state = random.Random(1), random.getstate()

    def monotonic() -> float:
        process = current.get()
        return now() if process is None else process.runtime.monotonic()

    def now_ms() -> int:
        process = current.get()
        return BEGIN_MS + int(now() * 1000) if process is None else process.runtime.now_ms()

    def urandom(count: int) -> bytes:
        process = current.get()
        return others.randbytes(count) if process is None else process.runtime.bytes(count)

    def now_s() -> float:
        return now_ms() / 1000

    def now_ns() -> int:
        return now_ms() * 1_000_000

    random.seed(1)  # functions bound as defaults can't be replaced
    with (
        mock.patch.object(time, "monotonic", monotonic),
        mock.patch.object(time, "time", now_s),
        mock.patch.object(time, "time_ns", now_ns),
        mock.patch.object(os, "urandom", urandom),
        mock.patch.object(connection, "_disable_resending", SimulatedTransport.take_back),
    ):
        try:
            yield
        finally:
            random.setstate(state)
