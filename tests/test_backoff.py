"""Pauses between retries, and the limit on retries of compare-and-set changes."""

from __future__ import annotations

import pytest

from nadi.backoff import Backoff, Tries
from nadi.errors import ContentionError
from nadi.limits import CHANGE_LONGEST_PAUSE_S, CHANGE_TRIES


async def test_pauses_grow_to_the_limit_and_reset() -> None:
    slept: list[float] = []
    fresh: list[bool] = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    backoff = Backoff(first_s=0.5, longest_s=10.0, growth=4.0, sleep=sleep)
    for _ in range(4):
        fresh.append(backoff.is_fresh)
        await backoff.pause()
    backoff.at_most(3.0)
    await backoff.pause()
    backoff.reset()
    fresh.append(backoff.is_fresh)
    await backoff.pause()
    assert slept == [0.5, 2.0, 8.0, 10.0, 3.0, 0.5]
    assert fresh == [True, False, False, False, True]


def test_chance_spreads_pauses_and_not_their_growth() -> None:
    parts = iter([0.0, 0.5, 0.25])
    backoff = Backoff(first_s=1.0, longest_s=100.0, chance=lambda: next(parts))
    assert [backoff.take() for _ in range(3)] == [0.0, 1.0, 1.0]


async def test_change_that_always_loses_raises_contention_error() -> None:
    slept: list[float] = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    tries = Tries("the record", sleep=sleep, chance=lambda: 1.0)
    for _ in range(CHANGE_TRIES - 1):
        await tries.lost()
    with pytest.raises(ContentionError) as raised:
        await tries.lost()
    assert (raised.value.name, raised.value.attempts) == ("the record", CHANGE_TRIES)
    assert len(slept) == CHANGE_TRIES - 2, "not after the first"
    assert slept == sorted(slept)
    assert slept[-1] == CHANGE_LONGEST_PAUSE_S
