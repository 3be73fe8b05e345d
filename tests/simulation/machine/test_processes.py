"""Processes in virtual time: each by its own clock, and nothing runs of one that stands still, or is dead."""

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


def test_time_passes_only_when_nothing_is_left_to_do() -> None:
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
def test_what_no_simulation_can_do_is_told(main: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(main)  # type: ignore[arg-type]


# --- clocks -------------------------------------------------------------------------------------------


@simulated
async def test_each_process_goes_by_a_clock_of_its_own(loop: SimulatedLoop) -> None:
    async def live(one: Process) -> tuple[float, float]:
        began, runtime = loop.now, one.runtime.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await asyncio.sleep(11.0)
        assert time.monotonic() == loop.time() == one.runtime.monotonic()
        return loop.now - began, one.runtime.monotonic() - runtime

    fast, slow = process(loop, "fast", 1.25), process(loop, "slow", 0.8)
    took = await asyncio.gather(fast.start(live(fast)), slow.start(live(slow)))
    assert took[0] == pytest.approx((8.0, 10.0))
    assert took[1] == pytest.approx((12.5, 10.0))
    assert abs(fast.runtime.monotonic() - slow.runtime.monotonic()) > 100, "nor do they begin at the same number"


@simulated
async def test_a_wall_clock_that_is_set_moves_no_other(loop: SimulatedLoop) -> None:
    async def look() -> tuple[float, float]:
        return time.time(), time.monotonic()

    one, other = process(loop, "one"), process(loop, "other")
    wall, monotonic = await one.start(look())
    one.runtime.set_ms = 5_000
    assert await one.start(look()) == (wall + 5.0, monotonic)
    assert (await other.start(look()))[0] == wall


def test_what_the_library_takes_from_outside_is_the_same_each_time() -> None:
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
async def test_what_stands_still_does_everything_late(loop: SimulatedLoop) -> None:
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
async def test_what_others_tell_it_waits_too(loop: SimulatedLoop) -> None:
    one, told = process(loop, "one"), loop.create_future()

    async def wait() -> float:
        await told
        return loop.now

    task = one.start(wait())
    await asyncio.sleep(1.0)
    one.pause(2.0)
    one.wake()
    one.pause(10.0)
    told.set_result(None)
    await asyncio.sleep(5.0)
    assert not one.runs, "the first pause would have ended by now"
    assert not task.done()
    assert await task == 11.0


@simulated
async def test_of_a_killed_process_nothing_runs_any_more(loop: SimulatedLoop) -> None:
    done: list[str] = []
    told = loop.create_future()

    async def live(name: str) -> None:
        try:
            await asyncio.gather(asyncio.sleep(2.0), inner(name))
        finally:
            done.append(f"{name} ends")

    async def inner(name: str) -> None:
        await told
        done.append(name)

    killed, paused, other = process(loop, "killed"), process(loop, "paused"), process(loop, "other")
    for one in (killed, paused, other):
        one.start(live(one.name))
    await asyncio.sleep(0.5)
    paused.pause(1.0)
    killed.kill()
    paused.kill()
    assert killed.gone.done()
    told.set_result(None)
    await asyncio.sleep(5.0)
    assert done == ["other", "other ends"]
