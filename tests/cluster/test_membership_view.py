"""When exactly somebody is dead: by the moments at which looks and questions begin and end."""

from __future__ import annotations

import pytest

from nadi.cluster.membership_view import Member, MembershipPace, MembershipView, encode
from nadi.engines.engine import Entry

DEAD_S = MembershipPace().dead_s


def entry(counter: int) -> Entry:
    one = Member(id="x", store="", controller="", rest="", version="", started_ms=0, counter=counter)
    return Entry(encode(one), f"v{counter}")


def seen(began: float, ended: float) -> MembershipView:
    """One that has seen version 1 of a server, in a look that lasted from then to then."""
    roster = MembershipView("me", MembershipPace())
    roster.listed({"x": "v1"}, began, ended)
    roster.found("x", entry(1), ended, ended)
    return roster


def lives(roster: MembershipView) -> bool:
    return roster.peers()["x"].is_alive


def test_silence_begins_when_the_look_that_heard_of_it_ended() -> None:
    """It may have been heard of at the very end of it."""
    roster = seen(10.0, 12.0)
    assert roster.next_doubt() == 12.0 + DEAD_S
    assert roster.questions(12.0 + DEAD_S - 0.001) == []
    assert roster.questions(12.0 + DEAD_S) == ["x"]
    roster.listed({"x": "v2"}, 12.5, 14.0)
    assert roster.next_doubt() == 14.0 + DEAD_S


def test_silence_ends_when_the_last_question_began() -> None:
    """It may have been answered right then."""
    roster = seen(10.0, 10.0)
    roster.found("x", entry(1), 10.0 + DEAD_S - 0.001, 10.0 + 2 * DEAD_S)
    assert lives(roster)
    roster.found("x", entry(1), 10.0 + DEAD_S, 10.0 + 2 * DEAD_S)
    assert not lives(roster)
    assert roster.peers()["x"].since == roster.stable_since == 10.0 + 2 * DEAD_S


def test_an_answer_with_another_version_begins_it_anew() -> None:
    roster = seen(10.0, 10.0)
    roster.found("x", entry(2), 14.0, 15.0)
    assert roster.next_doubt() == 15.0 + DEAD_S
    roster.found("x", entry(2), 17.9, 18.0)
    assert lives(roster)


def test_after_looks_that_failed_all_have_their_full_time() -> None:
    roster = seen(10.0, 10.0)
    roster.failed()
    assert not roster.is_current(10.1)
    roster.found("x", entry(1), 20.0, 20.0)
    assert lives(roster)
    roster.listed({"x": "v1"}, 20.0, 21.0)
    assert roster.is_current(21.0)
    assert roster.next_doubt() == 21.0 + DEAD_S
    roster.found("x", entry(1), 21.0 + DEAD_S, 21.0 + DEAD_S)
    assert not lives(roster)


@pytest.mark.parametrize(("gap_s", "is_alive"), [(DEAD_S, False), (DEAD_S + 0.001, True)])
def test_after_a_pause_too(gap_s: float, is_alive: bool) -> None:
    roster = seen(10.0, 10.0)
    roster.listed({"x": "v1"}, 10.0 + gap_s, 10.0 + gap_s)
    roster.found("x", entry(1), 10.0 + gap_s, 10.0 + gap_s)
    assert lives(roster) == is_alive


def died() -> MembershipView:
    roster = seen(10.0, 10.0)
    roster.listed({"x": "v1"}, 13.0, 13.0)
    roster.found("x", entry(1), 13.0, 13.0)
    assert roster.is_dead("x")
    return roster


def test_a_dead_one_with_another_version_is_neither_until_it_is_read() -> None:
    roster = died()
    roster.listed({"x": "v2"}, 14.0, 14.0)
    assert not roster.is_dead("x")
    assert "x" not in roster.servers()
    assert roster.questions(14.0) == ["x"]
    roster.found("x", entry(2), 14.0, 14.5)
    assert lives(roster)
    assert roster.next_doubt() == 14.5 + DEAD_S


def test_an_old_list_does_not_wake_it() -> None:
    roster = died()
    roster.listed({"x": "v0"}, 14.0, 14.0)
    roster.found("x", entry(1), 14.0, 14.5)
    assert roster.is_dead("x")
    roster.listed({}, 15.0, 15.0)
    assert roster.questions(15.0) == []


def test_nor_does_a_beat_that_was_under_way() -> None:
    roster = died()
    roster.listed({"x": "v0"}, 14.0, 14.0)
    roster.found("x", entry(0), 14.0, 14.5)
    assert roster.is_dead("x")
    assert roster.questions(14.5) == []


def test_one_that_is_missing_from_a_list_is_asked_for() -> None:
    roster = seen(10.0, 10.0)
    roster.listed({}, 11.0, 11.0)
    assert lives(roster)
    assert roster.questions(11.0) == ["x"]
    roster.found("x", entry(2), 11.0, 11.0)
    assert roster.questions(11.0) == []
    roster.listed({}, 12.0, 12.0)
    roster.found("x", None, 12.0, 12.0)
    assert not lives(roster)
    roster.forget()
    assert roster.peers() == {}


def test_who_is_named_is_remembered() -> None:
    roster = seen(10.0, 10.0)
    roster.name({"x", "y", "me"})
    assert roster.questions(10.0) == ["y"]
    roster.found("y", None, 10.0, 10.0)
    roster.found("x", None, 10.0, 10.0)
    roster.forget()
    assert {name: peer.is_alive for name, peer in roster.peers().items()} == {"x": False, "y": False}


def test_one_that_is_named_before_it_is_listed_lives() -> None:
    roster = MembershipView("me", MembershipPace())
    roster.name({"x"})
    roster.found("x", entry(1), 10.0, 10.0)
    assert lives(roster)
    assert roster.stable_since == 10.0


def test_values_are_read_once_in_a_while_the_oldest_first() -> None:
    roster = MembershipView("me", MembershipPace())
    roster.listed({"x": "v1", "y": "v1", "me": "v1"}, 10.0, 10.0)
    assert roster.questions(10.0) == ["x", "y"]
    roster.found("y", entry(1), 10.0, 10.0)
    roster.found("x", entry(1), 11.0, 11.0)
    roster.listed({"x": "v2", "y": "v2"}, 14.9, 14.9)
    assert roster.questions(14.9) == []
    assert roster.questions(16.0) == ["y", "x"]
