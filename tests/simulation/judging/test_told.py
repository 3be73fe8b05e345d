"""What is taken back is noticed, and what may be said at the same time is not taken for that."""

from __future__ import annotations

import pytest

from .told import Known, SegmentsTold, TakenBackError


def told(*answers: list[int]) -> SegmentsTold:
    """Each after the one before."""
    made = SegmentsTold()
    for segments in answers:
        made.of_current(segments, made.known)
    return made


def test_a_replaced_segment_is_never_current_again() -> None:
    made = told([0, 1], [1, 2, 3])
    made.of_current([1, 2, 3], made.known)
    with pytest.raises(TakenBackError, match=r"\[0\] are current"):
        made.of_current([0, 1], made.known)


def test_of_answers_at_the_same_time_none_is_the_first() -> None:
    made = told([0, 1])
    before = made.known
    made.of_current([1, 2, 3], before)
    made.of_current([0, 1], before)
    assert made.known.former == {0}


def test_what_has_successors_keeps_them() -> None:
    made = told([0, 1])
    first = made.known
    made.of_successors(0, [], first)
    made.of_successors(0, [2, 3], first)
    made.of_successors(0, [], first)  # asked for before that was known
    with pytest.raises(TakenBackError, match="segment 0 has no successors"):
        made.of_successors(0, [], made.known)


def test_what_was_there_is_known_for_good() -> None:
    made = told([0, 1])
    made.of_none(7, made.known)
    made.of_none(0, Known())
    with pytest.raises(TakenBackError, match="segment 0 is not there"):
        made.of_none(0, made.known)
