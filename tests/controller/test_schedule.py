"""Periodic work: rounds recur, whatever happens in one of them."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from nadi.controller.engine.workflows import Schedule, Tasks, WorkBatcher
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord
from nadi.errors import StorageFullError, UnavailableError
from nadi.throttled_log import ProblemLog, SeldomWarning
from tests.controller.support import FakeClock
from tests.support.waiting import until_async

from .fake_store import FakeStore
from .support import running, settle


def test_rounds_recur_after_failures(caplog: pytest.LogCaptureFixture) -> None:
    clock, starts = FakeClock(), list[int]()
    outcomes: list[Exception | int | None] = [
        None,
        UnavailableError("away"),
        UnavailableError("away"),
        ValueError("odd"),
        25_000,  # it takes that long: two are missed, and the next follows at once
        7_000,
        UnavailableError("away"),
    ]

    async def one() -> None:
        starts.append(clock.monotonic_ms() - 1_000_000)
        outcome = outcomes.pop(0) if outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            await clock.sleep(outcome / 1000)

    async def run() -> None:
        tasks = Tasks()
        Schedule(clock, tasks).start("things", 10.0, one)
        await asyncio.sleep(0)
        await clock.advance(100_000)
        await tasks.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert starts == [10_000, 20_000, 30_000, 40_000, 50_000, 75_000, 85_000, 95_000]
    assert [record.getMessage() for record in caplog.records] == [
        "things wait for the next round: UnavailableError: away",
        "things wait for the next round: ValueError: odd",
        "things wait for the next round: UnavailableError: away",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False]


def test_complaint_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    problems = ProblemLog(logging.getLogger("nadi"), "%s has something", lambda: now)
    for thing, error in (("a", "1"), ("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")):
        problems.report(thing, UnavailableError(error))
        now += 60.0
    problems.settled("a")
    problems.settled("c")
    problems.report("a", UnavailableError("1"))
    assert [record.getMessage().split()[0] + record.getMessage()[-1] for record in caplog.records] == [
        "a1", "b1", "a2", "a1", "a1"
    ]  # fmt: skip


def test_complaint_with_varying_text_is_throttled(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    problems = ProblemLog(logging.getLogger("nadi"), "%s waits", lambda: now)
    for number in range(240):  # two minutes
        now = number / 2
        problems.report("it", UnavailableError(f"can't store part-{number}"))
    problems.report("it", StorageFullError("no room"))
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["part-0", "part-120", "room"]


def test_frequent_warning_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    warning = SeldomWarning(logging.getLogger("nadi"), "%d of them, the last from %s", lambda: now)
    for number in range(36_000):  # an hour
        now = number / 10
        warning(number)
    assert len(caplog.records) < 70
    assert caplog.records[1].getMessage() == "10 of them, the last from 10"
    now += 61.0
    warning("another")
    now += 1.0
    warning("another")
    assert [record.getMessage().partition(" ")[0] for record in caplog.records][-1] == "1"


# --- work that comes in numbers is batched; no member waits long or is forgotten --------------------


NEVER_S = 3600.0


class Trip:
    """A member of a batch, which finishes when its event is set."""

    def __init__(self, convoy: WorkBatcher) -> None:
        self.is_under_way, self.arrive = False, asyncio.Event()
        self.task = asyncio.create_task(self._go(convoy))

    async def _go(self, convoy: WorkBatcher) -> None:
        async with convoy.member():
            self.is_under_way = True
            await self.arrive.wait()


async def trips(convoy: WorkBatcher, count: int) -> list[Trip]:
    started = [Trip(convoy) for _ in range(count)]
    await settle(10)
    return started


async def arrived(some: list[Trip]) -> None:
    for trip in some:
        trip.arrive.set()
    await settle(10)


def under_way(some: list[Trip]) -> int:
    return sum(trip.is_under_way for trip in some)


async def test_few_members_start_at_once_and_more_are_batched() -> None:
    convoy = WorkBatcher(few=4, wait_s=NEVER_S)
    first, waiting = await trips(convoy, 4), await trips(convoy, 20)
    assert (under_way(first), under_way(waiting)) == (4, 0)
    await arrived(first[:1])
    assert under_way(waiting) == 20, "all at once"
    last = await trips(convoy, 5)
    await arrived(first[1:])
    await arrived(waiting[:8])
    assert under_way(last) == 0, "12 of 23 are still in progress"
    await arrived(waiting[8:10])
    assert under_way(last) == 5, "half have arrived"
    await arrived([*waiting[10:], *last])
    again = await trips(convoy, 4)
    assert under_way(again) == 4, "no earlier members remain"
    await arrived(again)


async def test_stuck_members_delay_others_briefly() -> None:
    convoy, began = WorkBatcher(few=2, wait_s=0.1), asyncio.get_running_loop().time()
    stuck, waiting = await trips(convoy, 2), await trips(convoy, 3)
    is_early = asyncio.get_running_loop().time() - began < 0.1
    assert not (is_early and under_way(waiting))
    await until_async(lambda: under_way(waiting) == 3)
    more = await trips(convoy, 1)
    await until_async(lambda: under_way(more) == 1)
    await arrived([*stuck, *waiting, *more])


async def test_cancelled_member_is_not_waited_for() -> None:
    """A cancelled member may be waiting, just starting, or in progress."""
    chance = random.Random(7)
    convoy = WorkBatcher(few=2, wait_s=NEVER_S)
    for _ in range(200):
        some = await trips(convoy, 12)
        for trip in some:
            if chance.random() < 0.3:
                trip.task.cancel()
            if chance.random() < 0.3:
                await settle(chance.randrange(3))
        for trip in some:
            trip.arrive.set()
            if chance.random() < 0.2:
                trip.task.cancel()
        await asyncio.gather(*(trip.task for trip in some), return_exceptions=True)
        assert (convoy._active, convoy._waiting) == (0, 0)


async def test_hundreds_of_streams_at_once() -> None:
    names = [StreamName("home", f"stream-{number}") for number in range(300)]
    async with running(FakeStore()) as controller:
        await controller.create_scope("home")
        await asyncio.gather(*(controller.create_stream(name, StreamConfigRecord()) for name in names))
        assert all([await controller.stream_exists(name) for name in names])
