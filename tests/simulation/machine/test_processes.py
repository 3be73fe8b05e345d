"""Processes in virtual time: each by its own clock, and nothing runs of one that stands still, or is dead."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import logging
import os
import random
import sys
import time
import uuid
import warnings
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nadi.errors import NadiError
from nadi.runtime import Runtime

from .loop import SimulatedLoop, StuckError, run
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


def test_what_waits_for_nothing_is_told() -> None:
    async def main(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(StuckError):
        run(main)


def test_time_that_stands_still_is_told() -> None:
    async def main(loop: SimulatedLoop) -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(StuckError, match="no time passes"):
        run(main)


def test_what_a_killed_process_was_in_the_middle_of_is_let_go_of_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    its: contextvars.ContextVar[int] = contextvars.ContextVar("its")

    async def page() -> None:
        token = its.set(1)
        try:
            await asyncio.sleep(60.0)
        finally:
            its.reset(token)  # ValueError in another context

    async def pages() -> AsyncIterator[None]:
        while True:
            await page()
            yield

    async def read() -> None:
        async for _ in pages():
            pass

    async def main(loop: SimulatedLoop) -> None:
        one = process(loop, "one")
        one.start(read())
        await asyncio.sleep(1.0)
        one.kill()

    run(main)
    gc.collect()
    assert heard == []


def test_what_a_killed_process_had_not_begun_is_let_go_of_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    class Plan:
        def __init__(self) -> None:
            self.itself = self  # only who looks for such rings lets go of it
            self.work = asyncio.sleep(60.0)

    async def plans() -> None:
        plan = Plan()
        await asyncio.sleep(60.0)
        await plan.work

    async def main(loop: SimulatedLoop) -> None:
        one = process(loop, "one")
        one.start(plans())
        await asyncio.sleep(1.0)
        one.kill()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(main)
        gc.collect()
    assert told == []
    assert heard == []


def test_work_past_the_runtime_is_told() -> None:
    async def main(loop: SimulatedLoop) -> None:
        await Runtime().in_thread(print)

    with pytest.raises(AssertionError, match="past the runtime"):
        run(main)


# --- clocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.9, 0.97, 1.03, 1.1])
def test_who_waits_for_what_its_clock_lacks_comes_there(rate: float) -> None:
    """A clock may lack the last of its digits when somebody is woken, and be finer than the simulation's."""
    young = next(seed for seed in itertools.count() if random.Random(seed).random() < 1e-4)

    async def main(loop: SimulatedLoop) -> int:
        await asyncio.sleep(5_000)
        one = Process(loop, "young", random.Random(young), rate)
        clock, chance = one.runtime.monotonic, random.Random(1)

        async def waits() -> int:
            most = 0
            for _ in range(500):
                due, tries = clock() + chance.random(), 0
                while clock() < due and tries < 100:
                    await one.runtime.sleep(due - clock())
                    tries += 1
                most = max(most, tries)
            return most

        return await one.start(waits())

    assert run(main) <= 2


def test_each_process_has_a_clock_of_its_own() -> None:
    async def main(loop: SimulatedLoop) -> None:
        async def live(one: Process) -> tuple[float, float]:
            began, runtime = loop.now, one.runtime.monotonic()
            await asyncio.sleep(10.0)
            assert time.monotonic() == loop.time() == one.runtime.monotonic()
            return loop.now - began, one.runtime.monotonic() - runtime

        fast, slow = process(loop, "fast", 1.25), process(loop, "slow", 0.8)
        took = await asyncio.gather(fast.start(live(fast)), slow.start(live(slow)))
        assert took[0] == pytest.approx((8.0, 10.0))
        assert took[1] == pytest.approx((12.5, 10.0))
        assert abs(fast.runtime.monotonic() - slow.runtime.monotonic()) > 100, "nor do they begin at the same number"

    run(main)


def test_timeouts_go_by_the_clock_of_their_process() -> None:
    async def main(loop: SimulatedLoop) -> None:
        async def give_up() -> float:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10.0):
                    await asyncio.sleep(11.0)
            return loop.now

        assert await process(loop, "fast", 1.25).start(give_up()) == pytest.approx(8.0)

    run(main)


def test_a_wall_clock_that_is_set_moves_no_other() -> None:
    async def main(loop: SimulatedLoop) -> None:
        async def look() -> tuple[float, float]:
            return time.time(), time.monotonic()

        one, other = process(loop, "one"), process(loop, "other")
        wall, monotonic = await one.start(look())
        one.runtime.set_ms = 5_000
        assert await one.start(look()) == (wall + 5.0, monotonic)
        assert (await other.start(look()))[0] == wall

    run(main)


def test_what_the_library_takes_from_outside_is_the_same_each_time() -> None:
    async def main(loop: SimulatedLoop) -> tuple[object, ...]:
        async def take() -> tuple[object, ...]:
            return uuid.uuid4(), os.urandom(4), random.random(), time.time_ns()

        return await process(loop, "one").start(take())

    real, state = time.monotonic, random.getstate()
    assert run(main) == run(main)
    assert time.monotonic is real
    assert random.getstate() == state


# --- pauses -------------------------------------------------------------------------------------------


def test_what_stands_still_does_everything_late() -> None:
    done: list[tuple[str, float]] = []

    async def main(loop: SimulatedLoop) -> None:
        async def live(name: str) -> None:
            for _ in range(4):
                await asyncio.sleep(1.0)
                done.append((name, loop.now))

        one, other = process(loop, "one"), process(loop, "other")
        tasks = [one.start(live("one")), other.start(live("other"))]
        loop.at(1.5, one.pause, 4.0)
        await asyncio.gather(*tasks)

    run(main)
    assert [when for name, when in done if name == "one"] == [1.0, 5.5, 6.5, 7.5]
    assert [when for name, when in done if name == "other"] == [1.0, 2.0, 3.0, 4.0]


def test_what_others_tell_it_waits_too() -> None:
    async def main(loop: SimulatedLoop) -> None:
        one, told = process(loop, "one"), loop.create_future()

        async def wait() -> float:
            await told
            return loop.now

        task = one.start(wait())
        await asyncio.sleep(1.0)
        one.pause(10.0)
        told.set_result(None)
        one.loop.call_at(loop.now + 1.0, lambda: None, context=one.context)
        await asyncio.sleep(5.0)
        assert not task.done()
        assert await task == 11.0

    run(main)


def test_what_was_due_when_it_stopped_waits_as_well() -> None:
    done: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        one = process(loop, "one")
        one.call_soon(lambda: done.append(loop.now))
        one.pause(5.0)
        await asyncio.sleep(10.0)

    run(main)
    assert done == [5.0]


def test_it_can_be_woken_and_then_is_not_woken_again() -> None:
    async def main(loop: SimulatedLoop) -> None:
        one = process(loop, "one")
        one.pause(5.0)
        one.wake()
        assert one.runs
        one.wake()
        one.pause(20.0)
        await asyncio.sleep(10.0)
        assert not one.runs  # the first pause would have ended by now

    run(main)


def test_the_longer_of_two_pauses_counts() -> None:
    async def main(loop: SimulatedLoop) -> None:
        one = process(loop, "one")
        task = one.start(asyncio.sleep(1.0))
        one.pause(2.0)
        loop.at(1.0, one.pause, 5.0)
        await task
        assert loop.now >= 6.0

    run(main)


# --- the end ------------------------------------------------------------------------------------------


def test_of_a_killed_process_nothing_runs_any_more() -> None:
    done: list[str] = []

    async def live(name: str) -> None:
        try:
            await asyncio.gather(asyncio.sleep(2.0), inner(name))
        finally:
            done.append(f"{name} ends")

    async def inner(name: str) -> None:
        await asyncio.sleep(1.0)
        done.append(name)

    async def main(loop: SimulatedLoop) -> None:
        killed, paused, other = process(loop, "killed"), process(loop, "paused"), process(loop, "other")
        for one in (killed, paused, other):
            one.start(live(one.name))
        await asyncio.sleep(0.5)
        paused.pause(1.0)
        killed.kill()
        paused.kill()
        assert killed.gone.done()
        await asyncio.sleep(5.0)
        assert done == ["other", "other ends"]

    run(main)


def test_nobody_wakes_a_dead_one() -> None:
    done: list[str] = []

    async def main(loop: SimulatedLoop) -> None:
        one, told = process(loop, "one"), loop.create_future()

        async def wait() -> None:
            await told
            done.append("woken")

        one.start(wait())
        await asyncio.sleep(1.0)
        one.kill()
        told.set_result(None)
        await asyncio.sleep(1.0)

    run(main)
    assert not done


def test_garbage_is_collected_when_the_simulations_clock_says_so() -> None:
    """Not when so many objects were made, which a process has made some of before a simulation begins."""
    ended: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                ended.append(loop.now)

        async def abandon() -> None:
            left = numbers()
            await anext(left)
            itself: list[object] = [left]
            itself.append(itself)

        await abandon()
        made = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        await asyncio.sleep(1.0)
        assert made
        assert not ended
        await asyncio.sleep(100.0)

    run(main)
    assert ended == [101.0]
    assert gc.isenabled()


def test_whoever_keeps_the_loop_does_not_keep_the_world() -> None:
    """A pool of memory did that isn't freed before what is in it, so that a hundred seeds took a gigabyte."""

    class Known:
        """By the network, and by a task of who was killed."""

        def told(self, _task: object) -> None:
            """Of the task's end."""

    loops: list[SimulatedLoop] = []
    known: list[weakref.ref[Known]] = []

    async def main(loop: SimulatedLoop) -> None:
        net: Any = Known()
        of_task, one = Known(), process(loop, "one")
        loop.sockets = net
        loops.append(loop)
        known.extend(map(weakref.ref, (net, of_task)))
        one.start(asyncio.sleep(100.0)).add_done_callback(of_task.told)
        await asyncio.sleep(1.0)
        one.kill()

    run(main)
    gc.collect()
    assert [what() for what in known] == [None, None]


def test_of_a_killed_process_nothing_is_told_either(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)

    async def fail() -> None:
        raise NadiError("nobody will know")

    async def live() -> None:
        await asyncio.gather(fail(), asyncio.sleep(2.0), return_exceptions=True)

    async def main(loop: SimulatedLoop) -> None:
        killed = process(loop, "killed")
        killed.start(live())
        await asyncio.sleep(0)  # it starts the two
        await asyncio.sleep(0)  # one fails, and whom it tells is killed first
        killed.kill()

    run(main)
    gc.collect()
    assert not caplog.records
