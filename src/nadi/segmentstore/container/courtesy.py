"""How far work in the background gives way to frames: whoever waits for an acknowledgement shares the disk with it.

Each small frame says how long it took. If frames take longer than they do at rest, whoever works in the background
pauses after each piece of it, and for longer the more frames suffer. While nobody writes, or frames take what they
always take, there is no pause; and none is longer than four times the work before it, so background work never starves.
"""

from __future__ import annotations

from collections.abc import Callable

from nadi.limits import COURTESY_LONGEST_S, COURTESY_MOST_TIMES, COURTESY_SLOW_TIMES, LOG_QUICK_FRAME_BYTES

_WEIGHT = 1 / 16  # of the latest frame in the average
_REST_S = 30.0  # the quickest average of this time, or of the one before, counts as that of a disk at rest
_IDLE_S = 0.5  # without a frame: nobody waits


class Courtesy:
    """Of one container. clock: the monotonic one. paused_s: how long each kind of work has paused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.paused_s: dict[str, float] = {}
        self._clock = clock
        self._average_s = 0.0
        self._quickest = (0.0, 0.0)  # of the time before, and so far of this one
        self._turns_at = self._last_at = -_REST_S

    def took(self, seconds: float, payload_bytes: int) -> None:
        """A frame of that size was written. Large ones say more about themselves than about others."""
        if payload_bytes > LOG_QUICK_FRAME_BYTES:
            return
        now = self._clock()
        if now - self._last_at > _REST_S:  # what was known is old
            self._average_s, self._quickest, self._turns_at = seconds, (seconds, seconds), now + _REST_S
        self._last_at = now
        self._average_s += (seconds - self._average_s) * _WEIGHT
        if now >= self._turns_at:
            self._quickest, self._turns_at = (self._quickest[1], self._average_s), now + _REST_S
        elif self._average_s < self._quickest[1]:
            self._quickest = self._quickest[0], self._average_s

    def pause(self, what: str, work_s: float) -> float:
        """How many seconds to pause after so much work in the background; they are counted for it."""
        if self._clock() - self._last_at > _IDLE_S:
            return 0.0
        slow = self._average_s / max(min(self._quickest), 1e-6)
        if slow < COURTESY_SLOW_TIMES:
            return 0.0
        pause = min(work_s * min(slow - 1, COURTESY_MOST_TIMES), COURTESY_LONGEST_S)
        self.paused(what, pause)
        return pause

    def paused(self, what: str, seconds: float) -> None:
        """Count a pause; from any thread that does that work."""
        self.paused_s[what] = self.paused_s.get(what, 0.0) + seconds
