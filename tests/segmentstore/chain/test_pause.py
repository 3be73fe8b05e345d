"""When a frame may follow another: after those who were told of the one before have had time to say what follows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nadi.limits import CHAIN_PAUSE_S, CHAIN_SLOW_S, FRAME_MAX_BYTES
from nadi.runtime import Runtime
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.segmentstore.tier1.log import Appended
from tests.support.memory_engine import MemoryEngine
from tests.support.replayed import replayed


class Clock(Runtime):
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Slow(ChainLog):
    """Whose frames take so long."""

    took_s = 0.0

    def __init__(self, clock: Clock, interval_s: float = 0.0) -> None:
        super().__init__(MemoryEngine(), 0, 1, ChainStart(), _claimed, clock, interval_s)
        self._clock = clock

    async def _append(self, parts: Sequence[bytes]) -> Appended:
        self._clock.now += self.took_s
        return await super()._append(parts)


async def _claimed() -> None:
    pass


@pytest.mark.parametrize(
    ("took_s", "interval_s", "pause_s"),
    [
        (CHAIN_SLOW_S / 2, 0.0, 0.0),  # whoever is quick would lose by it
        (0.032, 0.0, 0.002),
        (3.0, 0.0, CHAIN_PAUSE_S),
        (0.032, 0.050, 0.018),  # the interval is longer
        (0.064, 0.050, 0.004),
    ],
)
async def test_a_frame_that_took_long_is_followed_by_a_pause(took_s: float, interval_s: float, pause_s: float) -> None:
    clock = Clock()
    log = Slow(clock, interval_s)
    await replayed(log)
    assert log.is_settled(1), "there is none before it"
    log.took_s = took_s
    await log.append([b"frame"])
    ended_at = clock.now
    assert log.is_settled(1) is (pause_s == 0)
    assert log.is_settled(FRAME_MAX_BYTES), "a whole frame needs no more"
    if pause_s:
        await log.settle(1)
    assert clock.now - ended_at == pytest.approx(pause_s)
    clock.now += 1e-6
    assert log.is_settled(1)
    await log.close()
