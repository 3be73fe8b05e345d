"""Routing keys fall where Pravega's Java client puts them; ranges tile the key space."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.model.keyspace import equal_ranges, key_position

POSITIONS = {
    "": 0.24117842791623523,
    "a": 0.9433912753816884,
    "hello": 0.658716230571337,
    "key0": 0.37155562929548913,
    "routing-key": 0.7829314629288311,
    "é": 0.6688272069632242,
    "日本": 0.34924442974855974,
}


@pytest.mark.parametrize(("key", "position"), POSITIONS.items())
def test_known_positions(key: str, position: float) -> None:
    assert key_position(key) == position


@given(st.text() | st.text(st.characters(categories=["Cs"])))
def test_every_key_has_a_place(key: str) -> None:
    assert 0 <= key_position(key) < 1


@given(st.integers(1, 300), st.floats(0, 0.49), st.floats(0.5, 1))
def test_equal_ranges_tile(count: int, low: float, high: float) -> None:
    ranges = equal_ranges(count, low, high)
    assert len(ranges) == count
    assert (ranges[0][0], ranges[-1][1]) == (low, high)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(start < end for start, end in ranges)
