"""Whether a small frame is written in the loop's own thread: where the disk is quick, a second thread costs more.

Handing a frame to the writer thread and hearing back wakes two threads, each of which also waits for the
interpreter; a good disk has written and synced the frame meanwhile. On a slow disk, or while a quick one stalls,
the loop must not wait: after several slow writes the writer thread gets all frames for a while, and for
longer each time the disk is found slow again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nadi.limits import LOG_QUICK_FRAME_BYTES, LOG_QUICK_LONGEST_PAUSE_S, LOG_QUICK_PAUSE_S, LOG_QUICK_WRITE_S

_WEIGHT = 1 / 16  # of the latest write in the average
_MOST_S = 4 * LOG_QUICK_WRITE_S  # the most that a write counts: one that stalled says little about the next


class Pace:
    """Learns of each write in the loop's thread. One done by the writer thread says nothing: its time includes the wait
    for the interpreter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._average_s = LOG_QUICK_WRITE_S / 2
        self._pause_s = 0.0  # the last one
        self._pause_until = clock()

    def is_quick(self, payload_bytes: int) -> bool:
        """Whether the frame may be written here and now."""
        return payload_bytes <= LOG_QUICK_FRAME_BYTES and self._clock() >= self._pause_until

    def took(self, seconds: float) -> None:
        self._average_s += (min(seconds, _MOST_S) - self._average_s) * _WEIGHT
        if self._average_s > LOG_QUICK_WRITE_S:
            now = self._clock()
            is_slow_again = now - self._pause_until < self._pause_s
            self._pause_s = min(self._pause_s * 2, LOG_QUICK_LONGEST_PAUSE_S) if is_slow_again else LOG_QUICK_PAUSE_S
            self._pause_until = now + self._pause_s
            self._average_s = LOG_QUICK_WRITE_S / 2
