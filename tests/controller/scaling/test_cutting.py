"""Where ranges are cut: whatever positions writers report, the pieces tile the range, and are as many as was said."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.controller.scaling.judge import around, cut, sampled
from nadi.model.load import KeySample
from nadi.model.segments import KeyRange


def near(base: float, steps: int) -> float:
    """The number that many representable ones above it."""
    for _ in range(steps):
        base = math.nextafter(base, 2.0)
    return base


POSITIONS = st.builds(near, st.sampled_from([0.0, 0.25, 0.5, 0.3]), st.integers(0, 5)) | st.floats(
    0, 1, exclude_max=True
)


def check(made: list[KeyRange], low: float, high: float, pieces: int) -> None:
    assert made[0][0] == low
    assert made[-1][1] == high
    assert all(one < other for one, other in made)
    assert all(one[1] == other[0] for one, other in pairwise(made))
    assert len(made) <= pieces


@settings(max_examples=200, deadline=None)
@given(
    keys=st.lists(st.tuples(POSITIONS, st.integers(1, 30)), min_size=1, max_size=20),
    weight=st.sampled_from([1.0, 1e-300, 1e300]),
    ends=st.sampled_from([(0.0, 1.0), (0.25, 0.5), (0.25, near(0.25, 4))]),
    pieces=st.integers(2, 20),
)
def test_pieces_tile_the_range(keys: list[tuple[float, int]], weight: float, ends: KeyRange, pieces: int) -> None:
    positions = tuple(position for position, times in keys for _ in range(times))
    sample = sampled(KeySample(positions, (weight,) + (1.0,) * (len(positions) - 1)), *ends)
    check(cut(sample, pieces), *ends, pieces)
    hot = sample.heaviest()
    if hot is not None:
        made = around(sample, hot, pieces)
        check(made, *ends, pieces)
        assert len(made) > 1 or len(sample.positions) == 1


@pytest.mark.parametrize("others", [(0.1, 0.2), (0.8, 0.9)])
def test_two_pieces_divide_a_hot_key_from_where_most_others_are(others: tuple[float, float]) -> None:
    positions = (0.5,) * 60 + (0.3,) * 5 + others * 15
    sample = sampled(KeySample(positions, (1.0,) * len(positions)), 0.0, 1.0)
    hot = sample.heaviest()
    assert hot is not None
    ((_, border), _) = around(sample, hot, 2)
    assert border == pytest.approx(0.4 if others[0] < 0.5 else 0.65)
