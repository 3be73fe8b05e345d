"""The list of damaged places: those that touch for one reason are one, and all that was noted is in it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import DamagedDataError
from nadi.segmentstore.container import container
from nadi.segmentstore.container.container import KnownDamage

S = "s/t/0.#epoch.0"


def listed(*noted: tuple[int, int, str]) -> list[tuple[int, int, str]]:
    known = KnownDamage(0)
    for begin, end, reason in noted:
        known.note(DamagedDataError(S, begin, end, reason))
    return sorted((damage.offset, damage.end_offset, damage.reason) for damage in known.all())


def test_places_that_touch_keep_their_reasons() -> None:
    assert listed((0, 10, "a"), (10, 20, "b")) == [(0, 10, "a"), (10, 20, "b")]
    assert listed((10, 20, "b"), (0, 10, "a")) == [(0, 10, "a"), (10, 20, "b")]
    assert listed((0, 10, "a"), (20, 30, "b"), (10, 20, "b")) == [(0, 10, "a"), (10, 30, "b")]
    assert listed((0, 10, "a"), (2, 8, "b")) == [(0, 10, "a")], "it is known"


def test_places_that_touch_for_one_reason_are_one() -> None:
    assert listed((0, 10, "a"), (20, 30, "a"), (10, 20, "a"), (5, 25, "a")) == [(0, 30, "a")]


def test_what_is_known_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    listed((0, 10, "a"), (0, 10, "a"), (2, 3, "b"), (10, 12, "b"))
    assert len(caplog.records) == 2


def test_beyond_the_limit_places_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "DAMAGE_LISTED", 2)
    known = KnownDamage(0)
    for begin, reason in ((0, "a"), (10, "b"), (20, "c"), (20, "c"), (20, "b")):
        known.note(DamagedDataError(S, begin, begin + 10, reason))
    assert len(known.all()) == 2
    assert sum(damage.end_offset - damage.offset for damage in known.all()) == 30
    assert known.unlisted == 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from("abc")), max_size=12))
def test_every_byte_that_was_noted_is_listed(noted: list[tuple[int, int, str]]) -> None:
    told = {at for begin, size, _ in noted for at in range(begin, begin + size)}
    found = listed(*((begin, begin + size, reason) for begin, size, reason in noted))
    assert {at for begin, end, _ in found for at in range(begin, end)} == told
    for reason in "abc":
        places = [place for place in found if place[2] == reason]
        assert all(one[1] < other[0] for one, other in pairwise(places)), "those that touch are one"
