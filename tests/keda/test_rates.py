"""The rate of events into a stream: while it is scaled, and when it ends."""

from __future__ import annotations

import math

import pytest

from nadi.controller.stream_rates import is_flowing, rate
from nadi.model.load import WINDOWS_S, SegmentLoad


def load(events: float, *, age_s: float, idle_s: float = 0.0, segment: int = 0) -> SegmentLoad:
    """Return an even load over the segment's age, which ended idle_s ago."""
    rates = tuple(
        events * math.exp(-idle_s / w) * math.expm1(-age_s / w) / math.expm1(-(age_s + idle_s) / w) for w in WINDOWS_S
    )
    return SegmentLoad(f"home/meters/{segment}.#epoch.0", age_s + idle_s, rates, tuple(100 * one for one in rates))


@pytest.mark.parametrize("age_s", [0.6, 5, 1000])
def test_an_even_rate_is_itself_at_any_age(age_s: float) -> None:
    assert rate([load(50, age_s=age_s), load(30, age_s=age_s)], events=True) == pytest.approx(80)
    assert rate([load(50, age_s=age_s)], events=False) == pytest.approx(5000)


@pytest.mark.parametrize("after_s", [0.6, 3, 10, 30, 300])
def test_an_even_rate_stays_the_same_over_a_scaling(after_s: float) -> None:
    old = [load(100, age_s=100, idle_s=after_s)]
    new = [load(50, age_s=after_s, segment=segment) for segment in (1, 2)]
    assert rate([*old, *new], events=True) == pytest.approx(100, rel=0.001)


def test_rate_without_loads_is_zero() -> None:
    assert rate([], events=True) == 0
    assert rate([SegmentLoad("home/meters/0.#epoch.0", 0.0, (0.0,) * 6, (0.0,) * 6)], events=True) == 0
    assert not is_flowing([])


@pytest.mark.parametrize("events", [0.1, 1, 1e6])
@pytest.mark.parametrize("age_s", [1, 20, 1000])
def test_a_stream_is_idle_ten_to_fourteen_seconds_after_the_last_event(events: float, age_s: float) -> None:
    assert is_flowing([load(events, age_s=age_s)])
    assert is_flowing([load(events, age_s=age_s, idle_s=9.9)])
    assert not is_flowing([load(events, age_s=age_s, idle_s=14.1)])
    assert is_flowing([load(events, age_s=age_s, idle_s=14.1), load(1, age_s=3, segment=1)])
