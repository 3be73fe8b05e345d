"""Processes in virtual time: each runs by its own clock, and not while it is frozen or dead."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
import uuid

import pytest

from nadi.runtime import Runtime

from .loop import SimulatedLoop, StuckError, run, simulated
from .process import Process


def process(loop: SimulatedLoop, name: str, rate: float = 1.0) -> Process:
    return Process(loop, name, random.Random(name), rate)


def test_time_passes_only_while_idle() -> None:
    async def main(loop: SimulatedLoop) -> list[float]:
        async def sleeper(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return loop.time()

        return await asyncio.gather(*map(sleeper, (86_400.0, 0.001, 0.0)))

    assert run(main) == [86_400.0, 0.001, 0.0]


async def waits_for_nothing(loop: SimulatedLoop) -> None:
    await loop.create_future()


async def lets_no_time_pass(_loop: SimulatedLoop) -> None:
    for _ in itertools.count():
        await asyncio.sleep(0)


async def works_past_the_runtime(_loop: SimulatedLoop) -> None:
    await Runtime().in_thread(print)


@pytest.mark.parametrize(
    ("main", "error"),
    [
        (waits_for_nothing, StuckError),
        (lets_no_time_pass, StuckError),
        (works_past_the_runtime, AssertionError),
    ],
)
def test_impossible_actions_raise_errors(main: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(main)  # type: ignore[arg-type]


# --- clocks -------------------------------------------------------------------------------------------


@simulated
async def test_each_process_has_its_own_clock(loop: SimulatedLoop) -> None:
    async def live(one: Process) -> tuple[float, float]:
        began, runtime = loop.now, one.runtime.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await asyncio.sleep(11.0)
        assert time.monotonic() == loop.time() == one.runtime.monotonic()
        return loop.now - began, one.runtime.monotonic() - runtime

    fast, slow = process(loop, "fast", 1.25), process(loop, "slow", 0.8)
    times = await asyncio.gather(fast.start(live(fast)), slow.start(live(slow)))
    assert times[0] == pytest.approx((8.0, 10.0))
    assert times[1] == pytest.approx((12.5, 10.0))
    assert abs(fast.runtime.monotonic() - slow.runtime.monotonic()) > 100, "they start at different values"


@simulated
async def test_setting_a_wall_clock_affects_no_other(loop: SimulatedLoop) -> None:
    async def clocks() -> tuple[float, float]:
        return time.time(), time.monotonic()

    one, other = process(loop, "one"), process(loop, "other")
    wall, monotonic = await one.start(clocks())
    one.runtime.set_ms = 5_000
    assert await one.start(clocks()) == (wall + 5.0, monotonic)
    assert (await other.start(clocks()))[0] == wall


def test_global_functions_are_deterministic() -> None:
    async def main(loop: SimulatedLoop) -> tuple[object, ...]:
        async def take() -> tuple[object, ...]:
            return uuid.uuid4(), os.urandom(4), random.random(), time.time_ns()

        return await process(loop, "one").start(take())

    real, state = time.monotonic, random.getstate()
    assert run(main) == run(main)
    assert time.monotonic is real
    assert random.getstate() == state


# --- pauses and ends ----------------------------------------------------------------------------------


@simulated
async def test_frozen_process_does_everything_late(loop: SimulatedLoop) -> None:
    done: list[tuple[str, float]] = []

    async def live(name: str) -> None:
        for _ in range(4):
            await asyncio.sleep(1.0)
            done.append((name, loop.now))

    one, other = process(loop, "one"), process(loop, "other")
    tasks = [one.start(live("one")), other.start(live("other"))]
    loop.at(1.5, one.pause, 4.0)
    await asyncio.gather(*tasks)
    assert [when for name, when in done if name == "one"] == [1.0, 5.5, 6.5, 7.5]
    assert [when for name, when in done if name == "other"] == [1.0, 2.0, 3.0, 4.0]


@simulated
async def test_signals_to_a_frozen_process_wait(loop: SimulatedLoop) -> None:
    one, signalled = process(loop, "one"), loop.create_future()

    async def wait() -> float:
        await signalled
        return loop.now

    task = one.start(wait())
    await asyncio.sleep(1.0)
    one.pause(2.0)
    one.wake()
    one.pause(10.0)
    signalled.set_result(None)
    await asyncio.sleep(5.0)
    assert not one.runs, "only the first pause is over"
    assert not task.done()
    assert await task == 11.0


@simulated
async def test_killed_process_runs_no_code(loop: SimulatedLoop) -> None:
    done: list[str] = []
    signalled = loop.create_future()

    async def live(name: str) -> None:
        try:
            await asyncio.gather(asyncio.sleep(2.0), inner(name))
        finally:
            done.append(f"{name} ends")

    async def inner(name: str) -> None:
        await signalled
        done.append(name)

    killed, paused, other = process(loop, "killed"), process(loop, "paused"), process(loop, "other")
    for one in (killed, paused, other):
        one.start(live(one.name))
    await asyncio.sleep(0.5)
    paused.pause(1.0)
    killed.kill()
    paused.kill()
    assert killed.gone.done()
    signalled.set_result(None)
    await asyncio.sleep(5.0)
    assert done == ["other", "other ends"]
