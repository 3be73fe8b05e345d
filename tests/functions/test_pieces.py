"""A batch with events that fail: each event is handled or given up, in order, and the others are not repeated much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nadi.functions.handlers.event import Failure, Outcome
from nadi.functions.worker import Pieces, Verdict

FAILURE = Failure(kind="raised", error="ValueError", message="no")


def handle(
    count: int, poison: set[int], *, by_list: bool, retries: int, lost: bool
) -> tuple[list[int], list[int], int]:
    """What was done and given up, in order, and how many calls that took."""
    pieces, calls = Pieces(count, retries), 0
    done: list[int] = []
    given_up: list[int] = []
    while (piece := pieces.current) is not None:
        calls += 1
        assert calls < 10_000
        at = next((i for i in range(piece.first, piece.last) if i in poison), None)
        if at is None:
            done += range(piece.first, piece.last)
            pieces.done(len(piece))
            continue
        if by_list:
            outcome = Outcome(done=0, failure=FAILURE, together=len(piece))
        else:
            outcome = Outcome(done=at - piece.first, failure=FAILURE, is_lost=lost)
        if outcome.done and not lost:
            done += range(piece.first, at)
            pieces.done(outcome.done)
        if pieces.failed(outcome, redo=lost) is Verdict.GIVE_UP:
            given_up.append(pieces.current.first if pieces.current else -1)
            assert pieces.skip() >= retries + 1
    return done, given_up, calls


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.booleans(), st.booleans(), st.integers(0, 3))
def test_every_event_is_done_or_given_up_once_in_order(
    count: int, poison: set[int], by_list: bool, lost: bool, retries: int
) -> None:
    poison = {i for i in poison if i < count}
    done, given_up, _ = handle(count, poison, by_list=by_list, retries=retries, lost=lost and not by_list)
    assert done == [i for i in range(count) if i not in poison]
    assert given_up == sorted(poison)


def test_one_poison_event_of_many_is_found_by_halving() -> None:
    _, given_up, calls = handle(1024, {700}, by_list=True, retries=0, lost=False)
    assert given_up == [700]
    assert calls <= 22


def test_a_failed_event_is_tried_again_with_its_attempt_counted() -> None:
    pieces = Pieces(3, retries=2)
    pieces.done(1)
    for attempt in (1, 2):
        assert pieces.current is not None
        assert pieces.current.attempt == attempt
        assert pieces.failed(Outcome(done=0, failure=FAILURE)) is Verdict.PAUSE
    assert pieces.failed(Outcome(done=0, failure=FAILURE)) is Verdict.GIVE_UP
    assert pieces.skip() == 3
    assert pieces.current is not None
    assert (pieces.current.first, pieces.current.attempt) == (2, 1)


def test_what_is_final_is_given_up_at_once_and_what_is_busy_never() -> None:
    final = Failure(kind="refused", error="HTTP 422", message="", is_final=True)
    busy = Failure(kind="unavailable", error="HTTP 503", message="", is_busy=True)
    pieces = Pieces(4, retries=1)
    for _ in range(50):
        assert pieces.failed(Outcome(done=0, failure=busy, together=4)) is Verdict.PAUSE
        assert pieces.current is not None
        assert len(pieces.current) == 4
    assert pieces.failed(Outcome(done=0, failure=final)) is Verdict.GIVE_UP
