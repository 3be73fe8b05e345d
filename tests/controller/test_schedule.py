"""Periodic work: due again and again, whatever a round does."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nadi.controller.engine.workflows import Schedule, Tasks
from nadi.errors import StorageFullError, UnavailableError
from nadi.throttled_log import Complaints, SeldomWarning
from tests.controller.support import FakeClock


def test_rounds_come_whatever_happens_to_them(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_complaint_is_made_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = Complaints(logging.getLogger("nadi"), "%s has something", lambda: now)
    for thing, error in (("a", "1"), ("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")):
        complaints.tell(thing, UnavailableError(error))
        now += 60.0
    complaints.settled("a")
    complaints.settled("c")
    complaints.tell("a", UnavailableError("1"))
    assert [record.getMessage().split()[0] + record.getMessage()[-1] for record in caplog.records] == [
        "a1", "b1", "a2", "a1", "a1"
    ]  # fmt: skip


def test_a_complaint_whose_words_are_others_each_time_is_no_flood(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = Complaints(logging.getLogger("nadi"), "%s waits", lambda: now)
    for number in range(240):  # two minutes
        now = number / 2
        complaints.tell("it", UnavailableError(f"can't store part-{number}"))
    complaints.tell("it", StorageFullError("no room"))
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["part-0", "part-120", "room"]


def test_what_strangers_cause_all_the_time_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
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
