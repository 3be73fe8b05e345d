"""The progress of standing queries, by itself."""

from __future__ import annotations

import pytest

from nadi.errors import ConflictError
from nadi.model.segments import SegmentRange
from nadi.process.following import OvertakenError
from nadi.search.standing.progress import Batch, Counts, HeldError, Place, Progress

A, B = Place(0, 0.0, 0.5), Place(1, 0.5, 1.0)
BOTH = SegmentRange(1 << 32, 0.0, 1.0)
START = Progress(places={0: A, 1: B})


def test_a_batch_is_begun_and_done_once() -> None:
    one = START.stepped([], [Batch(0, 0, 10)])
    assert (one.places[0].is_begun, one.positions()) == (True, {0: 10, 1: 0})
    wrong: list[tuple[list[Batch], list[Batch]]] = [
        ([Batch(0, 0, 9)], []),
        ([], [Batch(0, 0, 10)]),
        ([], [Batch(0, 10, 20)]),
        ([], [Batch(7, 0, 1)]),
    ]
    for done, begun in wrong:
        with pytest.raises(OvertakenError):
            one.stepped(done, begun)
    with pytest.raises(OvertakenError):
        one.completed(0, 10, [])
    two = one.stepped([Batch(0, 0, 10)], [Batch(0, 10, 20), Batch(1, 0, 5)], Counts(3, 1, 0))
    assert (two.places[0].reached, two.places[0].end, two.events, two.hits) == (10, 20, 3, 1)
    with pytest.raises(OvertakenError):
        two.stepped([Batch(0, 0, 10)], [])


def test_a_segment_waits_for_those_before_it() -> None:
    one = START.completed(0, 0, [BOTH])
    assert [place.segment_id for place in one.followed] == [1]
    assert one.positions() == {1: 0, BOTH.segment_id: -1}
    two = one.completed(1, 0, [BOTH])
    assert [place.segment_id for place in two.followed] == [BOTH.segment_id]
    assert set(two.places) == {BOTH.segment_id}


def test_a_version_counts_from_what_is_begun_with_it() -> None:
    one = START.stepped([], [Batch(0, 0, 10)]).joined("g", is_held=False)
    assert (one.version, one.groups, one.least_version) == (1, {"g": 1}, 0)
    one = one.stepped([], [Batch(1, 0, 5)])
    assert [one.places[segment].version for segment in (0, 1)] == [0, 1]
    one = one.stepped([Batch(0, 0, 10)], [])
    assert one.least_version == 1
    one = one.without(["q"])
    assert (one.removed, one.least_version) == ({"q": 2}, 1)
    one = one.stepped([Batch(1, 0, 5)], [])
    assert one.least_version == 2
    assert one.forgotten(["q"], ["g"]) == Progress(2, one.places)


def test_nothing_is_begun_while_a_past_is_left() -> None:
    one = START.stepped([], [Batch(0, 0, 10)]).joined("g", is_held=True)
    with pytest.raises(HeldError):
        one.stepped([Batch(0, 0, 10)], [Batch(0, 10, 20)])
    one = one.stepped([Batch(0, 0, 10)], [])
    with pytest.raises(HeldError):
        one.passed(0, 10, 20)
    one = one.released("g").passed(0, 10, 20)
    assert (one.places[0].reached, one.places[0].is_begun, one.gaps) == (20, False, 1)


def test_a_group_is_added_or_given_up() -> None:
    one = START.announced("g").beaten("g")
    assert (one.adding, one.has("g")) == ({"g": 1}, False)
    assert one.added("g", is_led=False) == START.joined("g", is_held=False)
    led = one.added("g", is_led=True)
    assert (led.adding, led.led, led.version, led.catching_up, led.has("g")) == ({}, ["g"], 0, ["g"], True)
    held = led.joined("g", is_held=True)
    assert (held.led, held.held, held.groups, held.catching_up) == ([], ["g"], {"g": 1}, ["g"])
    assert led.given_up("g") is None
    assert one.cleared("g") is None
    gone = one.given_up("g")
    assert gone is not None
    assert gone.given_up("g") is None
    for late in (gone, START):
        with pytest.raises(ConflictError):
            late.beaten("g")
        with pytest.raises(ConflictError):
            late.added("g", is_led=True)
    assert gone.cleared("g") == START


def test_done_is_what_is_written() -> None:
    one = START.stepped([], [Batch(0, 0, 10)])
    assert (one.positions(), one.done_positions()) == ({0: 10, 1: 0}, {0: 0, 1: 0})
    assert one.stepped([Batch(0, 0, 10)], [], gaps=2).gaps == 2
