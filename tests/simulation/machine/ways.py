"""The ways of bytes from one host to another, in one direction each: late, slow, or cut for a while.

A cut loses nothing for good: as with TCP, data in transit arrives after the way is restored, slightly later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loop import SimulatedLoop

_LATENCY_S = 0.001
_LATE = 0.03  # share of data that takes many times as long
_AGAIN_S = 0.5  # mean delay of retransmissions after a cut
_FAST_BYTES_S = 100e6


class Way:
    """A way from one host to another. chance: decides the delays."""

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
        """Call it when data sent now arrives, after all earlier data; return when that is, unless the way is cut."""
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
        """Restore the way."""
        self.is_cut = False
        self.latency_s, self.bytes_s = _LATENCY_S, _FAST_BYTES_S
        waiting, self._waiting = self._waiting, []
        again = self._loop.now + self._chance.expovariate(1 / _AGAIN_S)
        for then in waiting:
            self._loop.at(again, self._arrived, then)  # equal times stay in this order
