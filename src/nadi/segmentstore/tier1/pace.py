"""Whether a small frame is written in the loop's own thread: where the disk is quick, a second thread costs more.

To hand a frame to the writer thread and to be told of its end wakes two threads, each of which waits for the
interpreter besides; a good disk has written and synced the frame meanwhile. On a slow one, or while a quick one stands
still, the loop must not wait: after a write that took long the writer thread has all frames for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nadi.limits import LOG_QUICK_FRAME_BYTES, LOG_QUICK_PAUSE_S, LOG_QUICK_WRITE_S

_WEIGHT = 1 / 8  # of the latest write in the average


class Pace:
    """Told of each write in the loop's thread. One that the writer thread did tells nothing: its time has the wait for
    the interpreter in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._average_s = LOG_QUICK_WRITE_S / 2
        self._pause_until = -LOG_QUICK_PAUSE_S

    def is_quick(self, payload_bytes: int) -> bool:
        """The frame may be written here and now."""
        return payload_bytes <= LOG_QUICK_FRAME_BYTES and self._clock() >= self._pause_until

    def took(self, seconds: float) -> None:
        self._average_s += (seconds - self._average_s) * _WEIGHT
        if self._average_s > LOG_QUICK_WRITE_S:
            self._pause_until = self._clock() + LOG_QUICK_PAUSE_S
            self._average_s = LOG_QUICK_WRITE_S / 2
