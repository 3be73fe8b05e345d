"""How bytes get from one host to another, one direction at a time: late, slowly, or not for a while.

A way that is cut loses nothing for good: as with TCP, what was under way comes once it is whole again, a little later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loop import SimulatedLoop

_LATENCY_S = 0.001
_LATE = 0.03  # of what is sent: it takes many times as long
_AGAIN_S = 0.5  # after which, on average, what a cut held is sent again
_FAST_BYTES_S = 100e6


class Way:
    """From one host to another. chance: decides how long each thing takes."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random) -> None:
        self._loop, self._chance = loop, chance
        self.latency_s, self.bytes_s = _LATENCY_S, _FAST_BYTES_S
        self.is_cut = False
        self._waiting: list[Callable[[], None]] = []

    def delay_s(self, size_bytes: int = 0) -> float:
        chance = self._chance
        latency_s = self.latency_s * (0.5 + 0.5 * chance.random())
        if chance.random() < _LATE:
            latency_s *= 50 * chance.random()
        return latency_s + size_bytes / self.bytes_s

    def arrive(self, then: Callable[[], None], earliest: float = 0.0, size_bytes: int = 0) -> float:
        """Call it when what is sent now arrives, after what was sent before; return when that is, unless it is cut."""
        when = max(self._loop.now + self.delay_s(size_bytes), earliest)
        self._loop.at(when, self._arrived, then)
        return when

    def _arrived(self, then: Callable[[], None]) -> None:
        if self.is_cut:
            self._waiting.append(then)
        else:
            then()

    def cut(self) -> None:
        self.is_cut = True

    def mend(self) -> None:
        """As it was at first."""
        self.is_cut = False
        self.latency_s, self.bytes_s = _LATENCY_S, _FAST_BYTES_S
        waiting, self._waiting = self._waiting, []
        again = self._loop.now + self._chance.expovariate(1 / _AGAIN_S)
        for then in waiting:
            self._loop.at(again, self._arrived, then)  # equal times: in this order
