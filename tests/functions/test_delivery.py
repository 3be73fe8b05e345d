"""Delivery of a batch to a handler: each event is handled or fails for good, in order, with few repeats, and a stopping
worker ends after the current event."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.functions import Function, HandlerEvent
from nadi.functions.handlers.event import Failure, Outcome, Output
from nadi.functions.progress import Counters
from nadi.functions.worker import Delivery, FailureAction, Pieces, Stopping
from nadi.model.event import whole_events
from nadi.model.framing import frame_events
from nadi.process import DeadLetter

FAILURE = Failure(kind="raised", error="ValueError", message="no")


class Refusing:
    """A handler that fails at each event, or at a whole batch."""

    def __init__(self, together: bool) -> None:
        self.together, self.calls = together, 0

    async def start(self) -> None: ...

    async def call(self, events: Sequence[HandlerEvent], attempt: int) -> Outcome:
        self.calls += 1
        return Outcome(done=0, failure=FAILURE, together=len(events) if self.together else 1)

    async def close(self) -> None: ...


class Written:
    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def begin(self, end: int) -> None: ...

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        self.letters += [DeadLetter.decode(data) for _, data in letters]

    async def close(self) -> None: ...


@pytest.mark.parametrize(("together", "calls", "letters"), [(False, 3, 3), (True, 3, 1)])
async def test_delivery_stops_between_failed_events(together: bool, calls: int, letters: int) -> None:
    function = Function(scope="s", stream="in", handler="m:f", retries=0, dead_letters="dead")
    handler, written = Refusing(together), Written()

    async def pause(seconds: float) -> None:
        if handler.calls == 3:
            raise Stopping

    block, _ = whole_events(memoryview(frame_events([b"%d" % i for i in range(4)])))
    delivery = Delivery(function, handler, Counters(), logging.getLogger("test"), pause)
    with pytest.raises(Stopping):
        await delivery.deliver("s/in/0.#epoch.0", block, written)
    assert handler.calls == calls
    assert [letter.data for letter in written.letters] == [b"%d" % i for i in range(letters)]


class Taking:
    """A handler that takes no time per event, and a store that takes a second per call."""

    def __init__(self) -> None:
        self.now = 0.0

    async def start(self) -> None: ...

    async def call(self, events: Sequence[HandlerEvent], attempt: int) -> Outcome:
        return Outcome(done=len(events))

    def begin(self, end: int) -> None: ...

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        self.now += 1.0

    async def close(self) -> None: ...


@pytest.mark.parametrize("events", [1, 20, 100])
async def test_workers_busy_with_small_batches_are_known_to_handle_full_ones(events: int) -> None:
    function, both = Function(scope="s", stream="in", handler="m:f", batch_events=100), Taking()
    counters = Counters(lambda: both.now)

    async def pause(seconds: float) -> None: ...

    block, _ = whole_events(memoryview(frame_events([b"%03d" % i for i in range(events)])))
    delivery = Delivery(function, both, counters, logging.getLogger("test"), pause)
    for _ in range(10):
        with counters.busy():
            await delivery.deliver("s/in/0.#epoch.0", block, both)
    work = counters.work()
    full_per_s = 100 * block.size_bytes / events
    assert work.size_bytes / work.busy_s == pytest.approx(full_per_s, rel=0.1)


# --- retries --------------------------------------------------------------


def handle(
    count: int, poison: set[int], *, by_list: bool, retries: int, lost: bool
) -> tuple[list[int], list[int], int]:
    """Return the handled and failed events, in order, and the number of calls."""
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
        if pieces.failed(outcome, redo=lost) is FailureAction.GIVE_UP:
            given_up.append(pieces.current.first if pieces.current else -1)
            assert pieces.skip() >= retries + 1
    return done, given_up, calls


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.booleans(), st.booleans(), st.integers(0, 3))
def test_pieces_handle_or_fail_each_event_once_in_order(
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
        assert pieces.failed(Outcome(done=0, failure=FAILURE)) is FailureAction.PAUSE
    assert pieces.failed(Outcome(done=0, failure=FAILURE)) is FailureAction.GIVE_UP
    assert pieces.skip() == 3
    assert pieces.current is not None
    assert (pieces.current.first, pieces.current.attempt) == (2, 1)


def test_final_failure_is_not_retried_and_busy_is_without_limit() -> None:
    final = Failure(kind="refused", error="HTTP 422", message="", is_final=True)
    busy = Failure(kind="unavailable", error="HTTP 503", message="", is_busy=True)
    pieces = Pieces(4, retries=1)
    for _ in range(50):
        assert pieces.failed(Outcome(done=0, failure=busy, together=4)) is FailureAction.PAUSE
        assert pieces.current is not None
        assert len(pieces.current) == 4
    assert pieces.failed(Outcome(done=0, failure=final)) is FailureAction.GIVE_UP
