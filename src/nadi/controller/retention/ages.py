"""What the wall clock showed how long ago: retention by time is about ages, and clocks are set.

A segment's time index dates bytes by the wall clock. If the clock is set forward, everything looks old at once, and
what was written a minute ago must not be taken for yesterday's. So ages are measured by the monotonic clock: data is
older than an age if its date lies before everything that the wall clock has shown since then.

The date of bytes is never less than what the clock showed when they came (`segmentstore.state.time_index`). So if a
clock jumps forward, and back again or not, nothing is truncated early. What was dated while it was fast is kept until
the clock has really shown that date. How it went before this process started isn't known: over a restart the clock is
believed; but not at once, as some machines start with a wrong one and correct it then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nadi.limits import RETENTION_CLOCK_PIECES
from nadi.runtime import Runtime

_SLACK_MS = 200  # by which two clocks may differ before it is taken for a change


@dataclass(frozen=True, slots=True)
class _Piece:
    """From then on, by the monotonic clock, the wall clock was so much ahead of it."""

    since_ms: int
    ahead_ms: int


class Ages:
    """Reads both clocks whenever `note` is called, and remembers how they have parted."""

    def __init__(self, clock: Runtime) -> None:
        self._clock = clock
        self._started_ms = self._noted_ms = clock.monotonic_ms()
        self._pieces = deque([_Piece(self._started_ms, clock.now_ms() - self._started_ms)])

    @property
    def known_ms(self) -> int:
        """For how long the clocks have been compared."""
        return self._clock.monotonic_ms() - self._started_ms

    def note(self) -> None:
        """Compare the clocks; call it every second or so."""
        now_ms = self._clock.monotonic_ms()
        ahead_ms, last = self._clock.now_ms() - now_ms, self._pieces[-1]
        if abs(ahead_ms - last.ahead_ms) > _SLACK_MS:  # set back, it may have been so since the last note
            self._pieces.append(_Piece(self._noted_ms if ahead_ms < last.ahead_ms else now_ms, ahead_ms))
            if len(self._pieces) > RETENTION_CLOCK_PIECES:
                first, second = self._pieces.popleft(), self._pieces.popleft()
                self._pieces.appendleft(_Piece(first.since_ms, min(first.ahead_ms, second.ahead_ms)))
        self._noted_ms = now_ms

    def moment(self, age_ms: int) -> int:
        """A moment before which everything is older than that age, in ms since 1970; 0 if there is none."""
        self.note()
        then_ms = self._noted_ms - age_ms
        pieces = list(self._pieces)
        ends_ms = [piece.since_ms for piece in pieces[1:]] + [self._noted_ms]
        began_ms = [then_ms, *(max(piece.since_ms, then_ms) for piece in pieces[1:])]
        shown = (
            began + piece.ahead_ms
            for piece, began, end in zip(pieces, began_ms, ends_ms, strict=True)
            if end >= then_ms
        )
        return max(0, min(shown) - _SLACK_MS)
