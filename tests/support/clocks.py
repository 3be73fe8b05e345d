"""Clocks of machines that don't run evenly."""

from __future__ import annotations

from collections.abc import Callable

from nadi.runtime import Runtime


class StandsStill(Runtime):
    """The clock of a machine that freezes for an hour during the first sleep, with everything that runs there.

    slept: called with each sleep's number, from 1, before it.
    """

    def __init__(self, slept: Callable[[int], None] = lambda number: None) -> None:
        self._slept, self._sleeps = slept, 0

    def monotonic(self) -> float:
        return super().monotonic() + (3_600.0 if self._sleeps else 0.0)

    async def sleep(self, seconds: float) -> None:
        self._sleeps += 1
        self._slept(self._sleeps)
        await super().sleep(seconds)


class OnlySleeps:
    """A replacement for `time`: sleeps take slightly longer than requested; nothing else takes time."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 1e-6
