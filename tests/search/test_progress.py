"""The progress of standing queries, by itself."""

from __future__ import annotations

import pytest

from nadi.model.segments import SegmentRange
from nadi.process.following import OvertakenError, Reach
from nadi.search.standing.progress import Batch, Begun, Counts, HeldError, Progress

A, B = Reach(0, 0.0, 0.5), Reach(1, 0.5, 1.0)
BOTH = SegmentRange(1 << 32, 0.0, 1.0)
START = Progress.started([A, B])


def test_a_batch_is_begun_and_done_once() -> None:
    one = START.stepped([], [Batch(0, 0, 10)])
    assert (one.begun, one.positions()) == ({0: Begun(0, 0)}, {0: 10, 1: 0})
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
    assert (two.begun[0].start, two.segments[0].reached, two.events, two.hits) == (10, 20, 3, 1)
    with pytest.raises(OvertakenError):
        two.stepped([Batch(0, 0, 10)], [])


def test_a_segment_waits_for_those_before_it() -> None:
    one = START.completed(0, 0, [BOTH])
    assert [place.segment_id for place in one.followed] == [1]
    assert one.positions() == {1: 0, BOTH.segment_id: -1}
    two = one.completed(1, 0, [BOTH])
    assert [place.segment_id for place in two.followed] == [BOTH.segment_id]
    assert set(two.segments) == {BOTH.segment_id}


def test_a_version_counts_from_what_is_begun_with_it() -> None:
    one = START.stepped([], [Batch(0, 0, 10)]).joined("g", is_held=False)
    assert (one.version, one.groups, one.least_version) == (1, {"g": 1}, 0)
    one = one.stepped([], [Batch(1, 0, 5)])
    assert [one.begun[segment].version for segment in (0, 1)] == [0, 1]
    one = one.stepped([Batch(0, 0, 10)], [])
    assert one.least_version == 1
    one = one.without(["q"])
    assert (one.removed, one.least_version) == ({"q": 2}, 1)
    one = one.stepped([Batch(1, 0, 5)], [])
    assert one.least_version == 2
    assert one.forgotten(["q"], ["g"]) == Progress(one.segments, version=2)


def test_nothing_is_begun_while_a_past_is_left() -> None:
    one = START.stepped([], [Batch(0, 0, 10)]).joined("g", is_held=True)
    with pytest.raises(HeldError):
        one.stepped([Batch(0, 0, 10)], [Batch(0, 10, 20)])
    one = one.stepped([Batch(0, 0, 10)], [])
    with pytest.raises(HeldError):
        one.passed(0, 10, 20)
    released = one.released("g", 2)
    assert released is not None
    assert released.released("g") is None
    one = released.passed(0, 10, 20)
    assert (one.segments[0].reached, one.begun, one.gaps) == (20, {}, 3)


def test_a_group_is_added_and_led_and_held() -> None:
    assert START.added("g", is_led=False) == START.joined("g", is_held=False)
    led = START.added("g", is_led=True)
    assert (led.led, led.version, led.catching_up, led.has("g")) == (["g"], 0, ["g"], True)
    held = led.joined_from_past("g")
    assert held is not None
    assert (held.led, held.held, held.groups, held.catching_up) == ([], ["g"], {"g": 1}, ["g"])
    assert held.joined_from_past("g") is None


def test_done_is_what_is_written() -> None:
    one = START.stepped([], [Batch(0, 0, 10)])
    assert (one.positions(), one.done_positions()) == ({0: 10, 1: 0}, {0: 0, 1: 0})
    assert one.stepped([Batch(0, 0, 10)], [], gaps=2).gaps == 2
