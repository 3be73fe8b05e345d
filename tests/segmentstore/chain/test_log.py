"""Appends whose caller was cancelled, as the container ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from nadi.limits import CHAIN_PAUSE_S, CHAIN_SLOW_S, FRAME_MAX_BYTES
from nadi.runtime import Runtime
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.segmentstore.tier1.log import AppendedFrame
from tests.support.memory_engine import MemoryEngine
from tests.support.replayed import replayed


class Slow(ChainLog):
    """A log whose store answers once the append is cancelled."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine, 0, 1, ChainStart(), _claimed)
        self.release = asyncio.Event()

    async def _append(self, parts: Sequence[bytes]) -> AppendedFrame:
        await self.release.wait()
        return await super()._append(parts)


class Broken(Slow):
    async def _append(self, parts: Sequence[bytes]) -> AppendedFrame:
        await self.release.wait()
        raise AssertionError("a mistake of ours")


async def _claimed() -> None:
    pass


async def abandoned(log: Slow) -> list[dict[str, Any]]:
    """Return the loop's error reports about an append whose caller is cancelled."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    task = asyncio.create_task(log.append([b"cancelled"]))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    log.release.set()
    await log.close()
    return reports


async def test_cancelled_append_that_was_fenced_is_not_logged() -> None:
    """Regression: a server that was overtaken while it stopped logged a traceback."""
    engine = MemoryEngine()
    log, later = Slow(engine), ChainLog(engine, 0, 2, ChainStart(), _claimed)
    await replayed(log)
    await replayed(later)
    await later.close()
    reports = await abandoned(log)
    assert log.fenced is not None
    del log
    gc.collect()
    assert reports == []


async def test_unexpected_error_of_a_cancelled_append_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = Broken(MemoryEngine())
    await replayed(log)
    assert await abandoned(log) == []
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1


# --- the pause between frames --------------------------------------------------------------------------


class Clock(Runtime):
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Paced(ChainLog):
    """A log whose frames take a given time."""

    took_s = 0.0

    def __init__(self, clock: Clock, interval_s: float = 0.0) -> None:
        super().__init__(MemoryEngine(), 0, 1, ChainStart(), _claimed, clock, interval_s)
        self._clock = clock

    async def _append(self, parts: Sequence[bytes]) -> AppendedFrame:
        self._clock.now += self.took_s
        return await super()._append(parts)


@pytest.mark.parametrize(
    ("took_s", "interval_s", "pause_s"),
    [
        (CHAIN_SLOW_S / 2, 0.0, 0.0),  # quick frames need no pause
        (0.032, 0.0, 0.002),
        (3.0, 0.0, CHAIN_PAUSE_S),
        (0.032, 0.050, 0.018),  # the interval is longer
        (0.064, 0.050, 0.004),
    ],
)
async def test_a_frame_that_took_long_is_followed_by_a_pause(took_s: float, interval_s: float, pause_s: float) -> None:
    clock = Clock()
    log = Paced(clock, interval_s)
    await replayed(log)
    assert log.is_settled(1), "no frame precedes it"
    log.took_s = took_s
    await log.append([b"frame"])
    ended_at = clock.now
    assert log.is_settled(1) is (pause_s == 0)
    assert log.is_settled(FRAME_MAX_BYTES), "a full frame doesn't wait"
    if pause_s:
        await log.settle(1)
    assert clock.now - ended_at == pytest.approx(pause_s)
    clock.now += 1e-6
    assert log.is_settled(1)
    await log.close()
